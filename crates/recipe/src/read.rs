//! Reading TOML that people write: every mistake is reported, each where it stands, and an
//! unknown key gets a "did you mean". Knows TOML and findings; knows no model.

use diag::{Blame, Finding, Span, did_you_mean};
use std::cell::RefCell;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// Where findings of one file are collected.
pub type Findings = RefCell<Vec<Finding>>;

/// A TOML table being read: it remembers which keys were asked for.
pub struct Section<'a> {
    path: String,
    table: &'a DeTable<'a>,
    span: Span,
    asked: Vec<&'static str>,
    findings: &'a Findings,
}

fn span(range: Range<usize>) -> Span {
    Span { start: range.start, end: range.end }
}

impl<'a> Section<'a> {
    /// The root table of a parsed file.
    pub fn root(table: &'a DeTable<'a>, findings: &'a Findings) -> Section<'a> {
        Section { path: String::new(), table, span: Span { start: 0, end: 0 }, asked: Vec::new(), findings }
    }

    /// The dotted name of a key of this table.
    fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }

    /// Reports something about `key`, pointing at its value when it is there.
    pub fn report(&self, key: &str, finding: Finding) {
        let at = self.table.get(key).map(|value| span(value.span()));
        self.findings.borrow_mut().push(finding.at(at.or_else(|| (!self.path.is_empty()).then(|| self.span.clone()))));
    }

    fn wrong(&self, key: &str, wanted: &str) {
        let found = self.table.get(key).map_or("nothing", |v| v.get_ref().type_str());
        let message = format!("`{}` must be {wanted}, found {found}", self.name(key));
        self.report(key, Finding::error("recipe/type", Blame::Recipe, self.name(key), message));
    }

    fn missing(&self, key: &str, wanted: &str) {
        let table = if self.path.is_empty() { "the recipe".to_string() } else { format!("`[{}]`", self.path) };
        let message = format!("{table} lacks `{key}`, {wanted}");
        self.report(key, Finding::error("recipe/missing-key", Blame::Recipe, self.name(key), message));
    }

    fn value(&mut self, key: &'static str) -> Option<&'a DeValue<'a>> {
        self.asked.push(key);
        self.table.get(key).map(|v| v.get_ref())
    }

    /// Whether the key stands in the table; does not count as asking for it.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    fn whole(&self, key: &str, value: &DeValue, least: u64, most: u64) -> Option<u64> {
        let DeValue::Integer(int) = value else {
            self.wrong(key, "a whole number");
            return None;
        };
        let parsed = i128::from_str_radix(int.as_str(), int.radix()).ok();
        let fits = parsed.and_then(|n| u64::try_from(n).ok()).filter(|n| (least..=most).contains(n));
        if fits.is_none() {
            let shown: String = int.as_str().chars().take(24).collect();
            let message = format!("`{}` is {shown}, outside {least} to {most}", self.name(key));
            self.report(key, Finding::error("recipe/limit", Blame::Recipe, self.name(key), message));
        }
        fits
    }

    /// A required count from one to `most`.
    pub fn count(&mut self, key: &'static str, most: u64) -> Option<u64> {
        match self.value(key) {
            Some(value) => self.whole(key, value, 1, most),
            None => {
                self.missing(key, "a whole number");
                None
            }
        }
    }

    /// A count that may be left out.
    pub fn optional_count(&mut self, key: &'static str, most: u64) -> Option<u64> {
        let value = self.value(key)?;
        self.whole(key, value, 1, most)
    }

    /// A count with a default.
    pub fn count_or(&mut self, key: &'static str, most: u64, default: u64) -> Option<u64> {
        match self.value(key) {
            Some(value) => self.whole(key, value, 1, most),
            None => Some(default),
        }
    }

    /// Like [`Section::count_or`], zero allowed.
    pub fn natural_or(&mut self, key: &'static str, most: u64, default: u64) -> Option<u64> {
        match self.value(key) {
            Some(value) => self.whole(key, value, 0, most),
            None => Some(default),
        }
    }

    /// A yes or no.
    pub fn flag_or(&mut self, key: &'static str, default: bool) -> bool {
        match self.value(key) {
            None => default,
            Some(DeValue::Boolean(flag)) => *flag,
            Some(_) => {
                self.wrong(key, "`true` or `false`");
                default
            }
        }
    }

    /// A positive number that may be left out.
    pub fn positive(&mut self, key: &'static str) -> Option<f64> {
        let number = match self.value(key)? {
            DeValue::Integer(int) => i64::from_str_radix(int.as_str(), int.radix()).ok().map(|n| n as f64),
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            _ => None,
        };
        let good = number.filter(|n| n.is_finite() && *n > 0.0);
        if good.is_none() {
            self.wrong(key, "a positive number");
        }
        good
    }

    /// A text that may be left out.
    pub fn text(&mut self, key: &'static str) -> Option<&'a str> {
        match self.value(key)? {
            DeValue::String(text) => Some(text.as_ref()),
            _ => {
                self.wrong(key, "a text");
                None
            }
        }
    }

    /// A required text.
    pub fn required_text(&mut self, key: &'static str) -> Option<&'a str> {
        if !self.has(key) {
            self.asked.push(key);
            self.missing(key, "a text");
            return None;
        }
        self.text(key)
    }

    /// One word of a list, or the default when the key is left out.
    pub fn choice<T: Copy>(&mut self, key: &'static str, words: &[(&'static str, T)], default: T) -> T {
        let Some(text) = self.text(key) else { return default };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return *value;
        }
        let all = words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        let hint = match did_you_mean(text, words.iter().map(|(word, _)| *word)) {
            Some(word) => format!("did you mean `{word}`? it may be {all}"),
            None => format!("it may be {all}"),
        };
        let shown: String = text.chars().take(40).collect();
        let message = format!("`{}` cannot be `{shown}`", self.name(key));
        self.report(key, Finding::error("recipe/choice", Blame::Recipe, self.name(key), message).hint(hint));
        default
    }

    /// A list of whole numbers that may be left out.
    pub fn naturals(&mut self, key: &'static str, most: u64) -> Option<Vec<u64>> {
        let DeValue::Array(items) = self.value(key)? else {
            self.wrong(key, "a list of whole numbers");
            return None;
        };
        items.iter().map(|item| self.whole(key, item.get_ref(), 0, most)).collect()
    }

    /// A list of words that may be left out.
    pub fn words(&mut self, key: &'static str) -> Option<Vec<&'a str>> {
        let DeValue::Array(items) = self.value(key)? else {
            self.wrong(key, "a list of texts");
            return None;
        };
        let words = items.iter().map(|item| match item.get_ref() {
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        });
        let words: Option<Vec<_>> = words.collect();
        if words.is_none() {
            self.wrong(key, "a list of texts");
        }
        words
    }

    /// A table inside this one that may be left out.
    pub fn section(&mut self, key: &'static str) -> Option<Section<'a>> {
        self.asked.push(key);
        let value = self.table.get(key)?;
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong(key, "a table");
            return None;
        };
        Some(Section {
            path: self.name(key),
            table,
            span: span(value.span()),
            asked: Vec::new(),
            findings: self.findings,
        })
    }

    /// Reports every key that nobody asked for.
    pub fn finish(self) {
        for (key, _) in self.table.iter() {
            let name: &str = key.get_ref();
            if self.asked.contains(&name) {
                continue;
            }
            let shown: String = name.chars().take(60).collect();
            let place = if self.path.is_empty() { String::new() } else { format!(" in `[{}]`", self.path) };
            let mut finding = Finding::error(
                "recipe/unknown-key",
                Blame::Recipe,
                self.name(&shown),
                format!("unknown key `{shown}`{place}"),
            );
            finding = match did_you_mean(name, self.asked.iter().copied()) {
                Some(word) => finding.hint(format!("did you mean `{word}`?")),
                None => finding.hint(format!("known here: {}", self.asked.join(", "))),
            };
            self.findings.borrow_mut().push(finding.at(Some(span(key.span()))));
        }
    }
}
