//! Writes the TOML that [`crate::Recipe::parse`] reads. Only what differs from a default is written, so
//! that an imported recipe reads as a person would have typed it.

use std::fmt::Write;

/// Collects TOML text.
#[derive(Default)]
pub struct Toml {
    out: String,
}

impl Toml {
    /// The text so far.
    pub fn finish(self) -> String {
        self.out
    }

    /// Starts a table.
    pub fn table(&mut self, name: &str) {
        let _ = write!(self.out, "\n[{name}]\n");
    }

    /// A whole number.
    pub fn int(&mut self, key: &str, value: u64) {
        let _ = writeln!(self.out, "{key} = {value}");
    }

    /// A whole number, unless it is the default.
    pub fn int_unless(&mut self, key: &str, value: u64, default: u64) {
        if value != default {
            self.int(key, value);
        }
    }

    /// A whole number, if there is one.
    pub fn some_int(&mut self, key: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.int(key, value);
        }
    }

    /// A number.
    pub fn float(&mut self, key: &str, value: f64) {
        let _ = writeln!(self.out, "{key} = {value:?}");
    }

    /// A number, unless it is the default.
    pub fn float_unless(&mut self, key: &str, value: f64, default: f64) {
        if value != default {
            self.float(key, value);
        }
    }

    /// A number, if there is one.
    pub fn some_float(&mut self, key: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.float(key, value);
        }
    }

    /// A list of numbers.
    pub fn floats(&mut self, key: &str, values: &[f64]) {
        let items: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
        let _ = writeln!(self.out, "{key} = [{}]", items.join(", "));
    }

    /// A flag, unless it is the default.
    pub fn flag_unless(&mut self, key: &str, value: bool, default: bool) {
        if value != default {
            let _ = writeln!(self.out, "{key} = {value}");
        }
    }

    /// A text under a key that may be any text.
    pub fn text_under(&mut self, key: &str, value: &str) {
        self.text(&quoted(key), value);
    }

    /// A text, escaped.
    pub fn text(&mut self, key: &str, value: &str) {
        let _ = writeln!(self.out, "{key} = {}", quoted(value));
    }

    /// A word, unless it is the default.
    pub fn word_unless(&mut self, key: &str, value: &str, default: &str) {
        if value != default {
            self.text(key, value);
        }
    }

    /// A list of whole numbers.
    pub fn ints(&mut self, key: &str, values: &[u64]) {
        let items: Vec<String> = values.iter().map(u64::to_string).collect();
        let _ = writeln!(self.out, "{key} = [{}]", items.join(", "));
    }

    /// A list of words.
    pub fn words(&mut self, key: &str, values: &[&str]) {
        let items: Vec<String> = values.iter().map(|v| quoted(v)).collect();
        let _ = writeln!(self.out, "{key} = [{}]", items.join(", "));
    }
}

/// A TOML basic string: whatever the text holds, it stays text.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

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
