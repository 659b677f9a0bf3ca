//! Writes the TOML that [`crate::Recipe::parse`] reads. Only what differs from a default is written, so
//! that an imported recipe reads as a person would have typed it.

use diag::quote;
use std::fmt::Write;

/// A field of a recipe, whether its text names it or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its table and key: `moe.router.scaling`.
    pub path: String,
    /// Its value as TOML; `none` where it is not set.
    pub value: String,
    /// Whether a recipe that leaves it out says the same.
    pub is_default: bool,
}

/// Collects the fields of a recipe, from which its text is written.
#[derive(Default)]
pub struct Toml {
    lines: Vec<Line>,
}

enum Line {
    /// A table; an optional one is written where one of its keys is.
    Table {
        name: String,
        is_optional: bool,
    },
    Key {
        key: String,
        value: String,
        is_default: bool,
    },
}

impl Toml {
    /// The text: what differs from a default.
    pub fn finish(&self) -> String {
        let mut out = String::new();
        let mut waiting: Option<&str> = None;
        for line in &self.lines {
            match line {
                Line::Table { name, is_optional: true } => waiting = Some(name),
                Line::Table { name, is_optional: false } => {
                    waiting = None;
                    let _ = write!(out, "\n[{name}]\n");
                }
                Line::Key { is_default: true, .. } => {}
                Line::Key { key, value, .. } => {
                    if let Some(name) = waiting.take() {
                        let _ = write!(out, "\n[{name}]\n");
                    }
                    let _ = writeln!(out, "{key} = {value}");
                }
            }
        }
        out
    }

    /// Every field, defaults included.
    pub fn fields(&self) -> Vec<Field> {
        let mut table = "";
        let mut fields = Vec::new();
        for line in &self.lines {
            match line {
                Line::Table { name, .. } => table = name,
                Line::Key { key, value, is_default } => {
                    let path =
                        if table.is_empty() { key.clone() } else { format!("{table}.{}", key.trim_matches('"')) };
                    fields.push(Field { path, value: value.clone(), is_default: *is_default });
                }
            }
        }
        fields
    }

    fn push(&mut self, key: &str, value: String, is_default: bool) {
        self.lines.push(Line::Key { key: key.to_string(), value, is_default });
    }

    /// Starts a table.
    pub fn table(&mut self, name: &str) {
        self.lines.push(Line::Table { name: name.to_string(), is_optional: false });
    }

    /// Starts a table that is left out where all its keys are.
    pub fn optional_table(&mut self, name: &str) {
        self.lines.push(Line::Table { name: name.to_string(), is_optional: true });
    }

    /// A whole number.
    pub fn int(&mut self, key: &str, value: u64) {
        self.push(key, value.to_string(), false);
    }

    /// A whole number, unless it is the default.
    pub fn int_unless(&mut self, key: &str, value: u64, default: u64) {
        self.push(key, value.to_string(), value == default);
    }

    /// A whole number, if there is one.
    pub fn some_int(&mut self, key: &str, value: Option<u64>) {
        self.push(key, value.map_or_else(|| NONE.to_string(), |v| v.to_string()), value.is_none());
    }

    /// A number.
    pub fn float(&mut self, key: &str, value: f64) {
        self.push(key, format!("{value:?}"), false);
    }

    /// A number, unless it is the default.
    pub fn float_unless(&mut self, key: &str, value: f64, default: f64) {
        self.push(key, format!("{value:?}"), value == default);
    }

    /// A number, if there is one.
    pub fn some_float(&mut self, key: &str, value: Option<f64>) {
        self.push(key, value.map_or_else(|| NONE.to_string(), |v| format!("{v:?}")), value.is_none());
    }

    /// A list of numbers, unless it is all ones.
    pub fn floats_unless_ones(&mut self, key: &str, values: &[f64]) {
        let items: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
        self.push(key, format!("[{}]", items.join(", ")), values.iter().all(|v| *v == 1.0));
    }

    /// A flag, unless it is the default.
    pub fn flag_unless(&mut self, key: &str, value: bool, default: bool) {
        self.push(key, value.to_string(), value == default);
    }

    /// A text under a key that may be any text.
    pub fn text_under(&mut self, key: &str, value: &str) {
        self.text(&quote::toml(key), value);
    }

    /// A text, escaped.
    pub fn text(&mut self, key: &str, value: &str) {
        self.push(key, quote::toml(value), false);
    }

    /// A word, unless it is the default.
    pub fn word_unless(&mut self, key: &str, value: &str, default: &str) {
        self.push(key, quote::toml(value), value == default);
    }

    /// A list of whole numbers, unless it is empty.
    pub fn ints(&mut self, key: &str, values: &[u64]) {
        let items: Vec<String> = values.iter().map(u64::to_string).collect();
        self.push(key, format!("[{}]", items.join(", ")), values.is_empty());
    }

    /// A list of words, unless it is empty.
    pub fn words(&mut self, key: &str, values: &[&str]) {
        let items: Vec<String> = values.iter().map(|v| quote::toml(v)).collect();
        self.push(key, format!("[{}]", items.join(", ")), values.is_empty());
    }
}

/// What stands in the place of a value that is not set.
const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let mut toml = Toml::default();
        toml.text("name", "a\"b\\c\nd\u{1b}é");
        assert_eq!(toml.finish(), "name = \"a\\\"b\\\\c\\nd\\u001Bé\"\n");
    }
}
