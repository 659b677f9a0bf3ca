//! Nested configuration: dotted keys into a tree, and the tree as YAML that both YAML 1.1 and 1.2
//! read alike.

use crate::emission::Argument;
use diag::quote;
use serde_json::{Map, Value, json};

/// Arguments whose flags are dotted keys and whose values are JSON, as one object.
pub fn nested<'a>(arguments: impl IntoIterator<Item = &'a Argument>) -> Value {
    let mut root = Value::Object(Map::new());
    for argument in arguments {
        let mut at = &mut root;
        for part in argument.flag.split('.') {
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            at = &mut at[part];
        }
        *at = match argument.values.as_slice() {
            [one] => literal(one),
            many => Value::Array(many.iter().map(|v| literal(v)).collect()),
        };
    }
    root
}

/// A value as JSON; text that is no JSON is itself.
fn literal(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_string()))
}

/// The value as a YAML document.
pub fn yaml(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out
}

fn block(value: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                out.push_str(&format!("{indent}{}:", self::key(key)));
                behind(value, depth, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                block(item, depth + 1, &mut inner);
                out.push_str(&format!("{indent}- {}", inner.trim_start()));
            }
        }
        scalar => out.push_str(&format!("{indent}{}\n", self::scalar(scalar))),
    }
}

/// What stands behind a key: a scalar on its line, anything larger below it.
fn behind(value: &Value, depth: usize, out: &mut String) {
    let is_large = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if is_large {
        out.push('\n');
        block(value, depth + 1, out);
    } else {
        out.push_str(&format!(" {}\n", scalar(value)));
    }
}

fn key(text: &str) -> String {
    let words = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        && !words.contains(&text.to_lowercase().as_str());
    if is_plain { text.to_string() } else { quote::yaml(text) }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => quote::yaml(text),
        Value::Number(number) if number.is_f64() => float(number.as_f64().unwrap_or_default()),
        Value::Object(_) => "{}".to_string(),
        Value::Array(_) => "[]".to_string(),
        other => other.to_string(),
    }
}

/// A float with a point and a signed exponent: YAML 1.1 reads `1e-05` as text.
fn float(x: f64) -> String {
    let plain = format!("{x:?}");
    match plain.split_once('e') {
        None => plain,
        Some((mantissa, exponent)) => {
            let point = if mantissa.contains('.') { "" } else { ".0" };
            let sign = if exponent.starts_with('-') { "" } else { "+" };
            format!("{mantissa}{point}e{sign}{exponent}")
        }
    }
}

/// The value as a file of JSON, one value a line.
pub fn json(value: &Value) -> String {
    quote::json_document(&format!("{value:#}\n"))
}

/// JSON with one member a line, and one row a line where a member is a list or a table: as easy to
/// read as to compare, and half as long as one value a line.
pub fn json_rows(value: &Value) -> String {
    let Value::Object(members) = value else { return format!("{value}\n") };
    let rows = |open: char, rows: Vec<String>, close: char| {
        if rows.is_empty() { format!("{open}{close}") } else { format!("{open}\n  {}\n {close}", rows.join(",\n  ")) }
    };
    let member = |(key, value): (&String, &Value)| {
        let text = match value {
            Value::Array(list) if list.iter().any(Value::is_object) => {
                rows('[', list.iter().map(Value::to_string).collect(), ']')
            }
            Value::Object(table) if table.len() > 8 => {
                rows('{', table.iter().map(|(key, value)| format!("{}: {value}", json!(key))).collect(), '}')
            }
            other => other.to_string(),
        };
        format!(" {}: {text}", json!(key))
    };
    quote::json_document(&format!("{{\n{}\n}}\n", members.iter().map(member).collect::<Vec<_>>().join(",\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_is_the_same_to_both_versions() {
        let value = json!({ "a": { "b": [1, { "c": "on", "d": [] }], "on": null }, "e": 3e-05, "f": 1e20, "g": {} });
        let text = "a:\n  b:\n    - 1\n    - c: \"on\"\n      d: []\n  \"on\": null\ne: 3.0e-5\nf: 1.0e+20\ng: {}\n";
        assert_eq!(yaml(&value), text);
    }

    #[test]
    fn rows_stand_on_lines_of_their_own_and_read_back() {
        let value = json!({ "a": [{ "x": 1 }, { "x": "\n" }], "b": [1, 2], "c": {}, "d": [] });
        let text = json_rows(&value);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert_eq!(text.lines().count(), 9, "{text}");
    }

    #[test]
    fn dotted_keys_nest() {
        let kind = crate::Kind::Policy;
        let list = [Argument::new(kind, "a.b", "", "").value(1), Argument::new(kind, "a.c", "", "").value("x y")];
        assert_eq!(nested(&list), json!({ "a": { "b": 1, "c": "x y" } }));
    }
}
