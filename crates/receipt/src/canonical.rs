//! JSON that two writers of one value write alike: keys sorted, no spaces, floats in the fewest digits that read
//! back to the same bits.

pub use launch::record::hash as sha256;

use serde_json::Value;

/// A value as canonical JSON.
pub fn canonical(value: &Value) -> String {
    sorted(value).to_string()
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            Value::Object(entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn order_of_keys_does_not_show() {
        let one: Value = serde_json::from_str(r#"{"b": [{"y": 1, "x": 0.1}], "a": null}"#).unwrap();
        assert_eq!(canonical(&one), r#"{"a":null,"b":[{"x":0.1,"y":1}]}"#);
        assert_eq!(canonical(&json!({"a": 1, "b": 2})), canonical(&json!({"b": 2, "a": 1})));
    }
}
