//! The shape of answers as JSON Schema: seen from samples, and held to.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// How deep shapes are looked at; below that anything may stand.
const DEPTH: usize = 4;

/// Objects with more keys than this are tables by name.
const TABLE: usize = 40;

/// What was seen at one place.
#[derive(Default)]
pub struct Seen {
    kinds: BTreeMap<&'static str, usize>,
    properties: BTreeMap<String, Seen>,
    /// Keys in the order they were first seen.
    order: Vec<String>,
    items: Option<Box<Seen>>,
    most_keys: usize,
}

impl Seen {
    /// Looks at one more value.
    pub fn look(&mut self, value: &Value, depth: usize) {
        *self.kinds.entry(kind(value)).or_default() += 1;
        if depth == DEPTH {
            return;
        }
        match value {
            Value::Object(object) => {
                self.most_keys = self.most_keys.max(object.len());
                for (key, value) in object {
                    if !self.properties.contains_key(key) {
                        self.order.push(key.clone());
                    }
                    self.properties.entry(key.clone()).or_default().look(value, depth + 1);
                }
            }
            Value::Array(values) => {
                let items = self.items.get_or_insert_with(Box::default);
                values.iter().for_each(|value| items.look(value, depth + 1));
            }
            _ => {}
        }
    }

    /// As a schema. Keys that every object had are required; names of tensors, files and the like are no keys.
    pub fn schema(&self, depth: usize) -> Value {
        let mut schema = Map::new();
        let mut kinds: Vec<&str> = self.kinds.keys().copied().collect();
        if kinds.contains(&"number") {
            kinds.retain(|kind| *kind != "integer");
        }
        match kinds[..] {
            [] => return json!({}),
            [one] => schema.insert("type".into(), json!(one)),
            _ => schema.insert("type".into(), json!(kinds)),
        };
        if depth == DEPTH {
            return Value::Object(schema);
        }
        let objects = self.kinds.get("object").copied().unwrap_or(0);
        let are_names = self.order.iter().any(|key| !is_key(key));
        if objects > 0 && !are_names && self.most_keys <= TABLE {
            let seen = |key: &&String| self.properties[*key].kinds.values().sum::<usize>() == objects;
            let required: Vec<&String> = self.order.iter().filter(seen).collect();
            let properties: Map<String, Value> =
                self.order.iter().map(|key| (key.clone(), self.properties[key].schema(depth + 1))).collect();
            schema.insert("properties".into(), Value::Object(properties));
            if !required.is_empty() {
                schema.insert("required".into(), json!(required));
            }
        }
        if let Some(items) = &self.items {
            schema.insert("items".into(), items.schema(depth + 1));
        }
        Value::Object(schema)
    }
}

fn is_key(key: &str) -> bool {
    key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !key.starts_with(|c: char| c.is_ascii_digit())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// What a value breaks of a schema: the subset of JSON Schema that the document uses.
pub fn breaks(value: &Value, schema: &Value, schemas: &Value, at: &str, broken: &mut Vec<String>) {
    let mut say = |what: String| broken.push(format!("{at}: {what}"));
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/components/schemas/");
        return match schemas.get(name) {
            Some(schema) => breaks(value, schema, schemas, at, broken),
            None => say(format!("no schema {name}")),
        };
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let holds = |schema: &Value| {
            let mut broken = Vec::new();
            breaks(value, schema, schemas, at, &mut broken);
            broken.is_empty()
        };
        if !any.iter().any(holds) {
            say("none of anyOf".to_string());
        }
    }
    if schema.get("const").is_some_and(|only| only != value) {
        say(format!("{value} is not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        say(format!("{value} is not among {}", schema["enum"]));
    }
    let is = |wanted: &Value| {
        let kind = kind(value);
        wanted == kind || (wanted == "number" && kind == "integer")
    };
    match &schema["type"] {
        Value::Null => {}
        Value::Array(any) if any.iter().any(is) => {}
        one if is(one) => {}
        wanted => say(format!("{} is not {wanted}", kind(value))),
    }
    if let Value::Object(object) = value {
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(key) {
                say(format!("no {key}"));
            }
        }
        for (key, value) in object {
            match schema["properties"].get(key) {
                Some(schema) => breaks(value, schema, schemas, &format!("{at}.{key}"), broken),
                None if schema["additionalProperties"] == json!(false) => broken.push(format!("{at}: unknown {key}")),
                None => {}
            }
        }
    }
    if let (Value::Array(values), Some(items)) = (value, schema.get("items")) {
        for (number, value) in values.iter().enumerate() {
            breaks(value, items, schemas, &format!("{at}[{number}]"), broken);
        }
    }
}
