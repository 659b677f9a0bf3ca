//! A query string as a body: a key that stands several times is a list.

use serde_json::{Map, Value};

/// Keys and values of a query string.
pub fn body(query: &str) -> Map<String, Value> {
    let mut body = Map::new();
    for (key, value) in query.split('&').filter(|pair| !pair.is_empty()).map(pair) {
        match body.get_mut(&key) {
            None => {
                body.insert(key, Value::String(value));
            }
            Some(Value::Array(values)) => values.push(Value::String(value)),
            Some(one) => *one = Value::Array(vec![one.take(), Value::String(value)]),
        }
    }
    body
}

fn pair(text: &str) -> (String, String) {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    (decoded(key), decoded(value))
}

/// Percent signs and pluses undone; what is no UTF-8 then is replaced.
pub fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16)).map(|digit| digit as u8);
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(high * 16 + low);
                at += 2;
            }
            (b'+', ..) => out.push(b' '),
            (byte, ..) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::body;
    use serde_json::{Value, json};

    #[test]
    fn a_query_is_a_body() {
        let read =
            Value::Object(body("recipe=nam56r&on=8xH200&with=mtp&with=mla&sp&recompute=selective%3Acore%2Battn+x"));
        let wanted = json!({ "recipe": "nam56r", "on": "8xH200", "with": ["mtp", "mla"], "sp": "", "recompute": "selective:core+attn x" });
        assert_eq!(read, wanted);
        assert_eq!(Value::Object(body("a=%zz%&%ff=1&&=")), json!({ "a": "%zz%", "\u{fffd}": "1", "": "" }));
    }
}
