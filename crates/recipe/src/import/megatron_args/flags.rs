//! Splitting a Megatron argument list and looking flags up in the engine's own list.

use crate::limits;
use diag::{Blame, Finding, did_you_mean};
use serde_json::Value;
use std::collections::BTreeMap;

/// The 847 option strings of Megatron-Core 0.19.2, with what each takes.
const OPTIONS: &str = include_str!("../../../../../data/engines/megatron_flags_0.19.2.json");

/// An argument list: each flag with its values.
pub struct Flags {
    given: BTreeMap<String, Vec<String>>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// Splits a shell command line: quotes, backslashes, continued lines and comments.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (_, '\\') => match chars.next() {
                Some('\n') | None => {}
                Some(next) => word.get_or_insert_default().push(next),
            },
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

impl Flags {
    /// Reads an argument list; whatever stands before the first flag is the launcher's.
    pub fn read(text: &str) -> Flags {
        let mut flags = Flags { given: BTreeMap::new(), findings: Vec::new() };
        let known: Value = serde_json::from_str(OPTIONS).unwrap_or_default();
        let known = &known["flags"];
        let mut current: Option<String> = None;
        for word in words(text) {
            if let Some((flag, value)) = word.strip_prefix("--").and_then(|w| w.split_once('=')) {
                flags.start(&format!("--{flag}"), known);
                flags.given.entry(format!("--{flag}")).or_default().push(value.to_string());
                current = None;
            } else if word.starts_with("--") {
                flags.start(&word, known);
                current = Some(word);
            } else if let Some(flag) = &current {
                flags.given.entry(flag.clone()).or_default().push(word);
            }
        }
        flags
    }

    fn start(&mut self, flag: &str, known: &Value) {
        if known.get(flag).is_none() {
            let shown: String = flag.chars().take(60).collect();
            let message = format!("`{shown}` is no flag of Megatron-Core 0.19.2");
            let names = known.as_object().into_iter().flat_map(|m| m.keys().map(String::as_str));
            let mut finding = Finding::error("import/megatron-flag", Blame::Recipe, shown, message);
            if let Some(close) = did_you_mean(flag, names) {
                finding = finding.hint(format!("did you mean `{close}`?"));
            }
            self.findings.push(finding);
        }
        // A repeated flag overrides, as argparse does.
        self.given.insert(flag.to_string(), Vec::new());
    }

    /// Whether the flag was given.
    pub fn has(&self, flag: &str) -> bool {
        self.given.contains_key(flag)
    }

    /// The flag's first value.
    pub fn text(&self, flag: &str) -> Option<&str> {
        self.given.get(flag)?.first().map(String::as_str)
    }

    /// All values of the flag.
    pub fn list(&self, flag: &str) -> &[String] {
        self.given.get(flag).map_or(&[], Vec::as_slice)
    }

    /// Reports a refusal about a flag.
    pub fn refuse(&mut self, flag: &str, message: impl Into<String>) {
        self.findings.push(Finding::error("import/value", Blame::Recipe, flag, message));
    }

    /// A whole number, if the flag was given.
    pub fn number(&mut self, flag: &str) -> Option<u64> {
        if self.has(flag) && self.text(flag).is_none() {
            self.refuse(flag, format!("`{flag}` has no value"));
        }
        let text = self.text(flag)?.to_string();
        let most = match flag {
            "--vocab-size" | "--padded-vocab-size" => limits::VOCAB,
            "--num-layers" => limits::DEPTH,
            "--num-experts" => limits::EXPERTS,
            "--seq-length" | "--max-position-embeddings" => limits::SEQUENCE,
            _ => limits::WIDTH,
        };
        let number = text.parse::<u64>().ok().filter(|n| (1..=most).contains(n));
        if number.is_none() {
            let shown: String = text.chars().take(40).collect();
            self.refuse(flag, format!("`{flag} {shown}` is no whole number from 1 to {most}"));
        }
        number
    }

    /// A number that must be there.
    pub fn need(&mut self, flag: &str) -> Option<u64> {
        if !self.has(flag) {
            self.refuse(flag, format!("the argument list has no `{flag}`"));
        }
        self.number(flag)
    }

    /// Flags that were given, by name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.given.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_split_as_a_shell_does() {
        let text = "torchrun x.py \\\n --a 'b c' # note\n --d=\"e\\\"f\" g";
        assert_eq!(words(text), ["torchrun", "x.py", "--a", "b c", "--d=e\"f", "g"]);
        assert_eq!(words("--x ''"), ["--x", ""]);
    }
}
