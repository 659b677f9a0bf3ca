//! JSON that two writers of one value write alike: keys sorted, no spaces, floats in the fewest digits that read
//! back to the same bits.

use serde_json::Value;
use sha2::{Digest, Sha256};

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

/// SHA-256 in hexadecimal.
pub fn sha256(text: &str) -> String {
    sha256_of(text.as_bytes())
}

/// The same of bytes.
pub fn sha256_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
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
