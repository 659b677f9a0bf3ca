//! Reading TOML that people write: every mistake is reported, each where it stands, and an
//! unknown key gets a "did you mean". Knows TOML and findings; knows neither model nor machine: what
//! a kind of file calls itself and its rules is its [`Dialect`].

use diag::{Blame, Finding, RuleId, Span, did_you_mean, quote, refuses};
use std::cell::RefCell;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// How one kind of file words its findings.
#[derive(Debug)]
pub struct Dialect {
    /// What the whole file is: `the recipe`.
    pub whole: &'static str,
    /// Who has to mend mistakes in such a file.
    pub blame: Blame,
    /// Largest file that is read; a longer one was not written by hand.
    pub most_bytes: usize,
    /// Rule of a text that is not TOML.
    pub syntax: RuleId,
    /// Rule of a text with characters that do not show.
    pub text: RuleId,
    /// Rule of a value of the wrong type.
    pub wrong_type: RuleId,
    /// Rule of a required key left out.
    pub missing_key: RuleId,
    /// Rule of a number out of range.
    pub limit: RuleId,
    /// Rule of a word that is not one of a list.
    pub choice: RuleId,
    /// Rule of a key nobody reads.
    pub unknown_key: RuleId,
}

type Findings = RefCell<Vec<Finding>>;

/// Reads a whole file. What `read` makes of it comes with notes and warnings; with any error the
/// answer is every finding.
pub fn read_text<T>(
    text: &str,
    dialect: &'static Dialect,
    read: impl FnOnce(Section) -> Option<T>,
) -> Result<(T, Vec<Finding>), Vec<Finding>> {
    if text.len() > dialect.most_bytes {
        let message =
            format!("the file has {} bytes, and {} has at most {}", text.len(), dialect.whole, dialect.most_bytes);
        return Err(vec![Finding::error(dialect.limit, dialect.blame, "file", message)]);
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(errors.iter().map(|error| syntax(error, dialect)).collect());
    }
    let findings = RefCell::new(Vec::new());
    let whole = read(Section::root(document.get_ref(), dialect, &findings));
    let findings = findings.into_inner();
    match whole {
        Some(whole) if !refuses(&findings) => Ok((whole, findings)),
        _ => Err(findings),
    }
}

fn syntax(error: &toml::de::Error, dialect: &Dialect) -> Finding {
    let message = error.message().lines().next().unwrap_or("not TOML").to_string();
    Finding::error(dialect.syntax, dialect.blame, "file", message).at(error.span().map(span))
}

/// A TOML table being read: it remembers which keys were asked for.
pub struct Section<'a> {
    path: String,
    table: &'a DeTable<'a>,
    span: Span,
    asked: Vec<&'static str>,
    dialect: &'static Dialect,
    findings: &'a Findings,
}

fn span(range: Range<usize>) -> Span {
    Span { start: range.start, end: range.end }
}

impl<'a> Section<'a> {
    /// The root table of a parsed file.
    fn root(table: &'a DeTable<'a>, dialect: &'static Dialect, findings: &'a Findings) -> Section<'a> {
        Section { path: String::new(), table, span: Span { start: 0, end: 0 }, asked: Vec::new(), dialect, findings }
    }

    /// A refusal in this file's words.
    fn error(&self, rule: RuleId, key: &str, message: String) -> Finding {
        Finding::error(rule, self.dialect.blame, self.name(key), message)
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
        self.report(key, self.error(self.dialect.wrong_type, key, message));
    }

    fn missing(&self, key: &str, wanted: &str) {
        let table = if self.path.is_empty() { self.dialect.whole.to_string() } else { format!("`[{}]`", self.path) };
        let message = format!("{table} lacks `{key}`, {wanted}");
        self.report(key, self.error(self.dialect.missing_key, key, message));
    }

    fn value(&mut self, key: &'static str) -> Option<&'a DeValue<'a>> {
        self.asked.push(key);
        self.table.get(key).map(|v| v.get_ref())
    }

    /// Whether the key stands in the table; does not count as asking for it.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether the key holds a text; does not count as asking for it.
    pub fn is_text(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|value| matches!(value.get_ref(), DeValue::String(_)))
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
            self.report(key, self.error(self.dialect.limit, key, message));
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

    /// A boolean with a default.
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

    /// A number of at least zero that may be left out.
    pub fn not_negative(&mut self, key: &'static str) -> Option<f64> {
        let number = match self.value(key)? {
            DeValue::Integer(int) => i64::from_str_radix(int.as_str(), int.radix()).ok().map(|n| n as f64),
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            _ => None,
        };
        let good = number.filter(|n| n.is_finite() && *n >= 0.0);
        if good.is_none() {
            self.wrong(key, "a number of at least zero");
        }
        good
    }

    /// A required positive number.
    pub fn required_positive(&mut self, key: &'static str) -> Option<f64> {
        if !self.has(key) {
            self.asked.push(key);
            self.missing(key, "a positive number");
            return None;
        }
        self.positive(key)
    }

    /// A text that may be left out, on one line: what does not show itself is refused.
    pub fn text(&mut self, key: &'static str) -> Option<&'a str> {
        self.any_text(key).filter(|text| self.is_plain(key, text))
    }

    /// A text that may be left out and may have several lines.
    pub fn lines(&mut self, key: &'static str) -> Option<&'a str> {
        self.any_text(key).filter(|text| text.lines().all(|line| self.is_plain(key, &line.replace('\t', " "))))
    }

    fn any_text(&mut self, key: &'static str) -> Option<&'a str> {
        match self.value(key)? {
            DeValue::String(text) => Some(text.as_ref()),
            _ => {
                self.wrong(key, "a text");
                None
            }
        }
    }

    /// Whether every character of a text of `key` shows itself; reported where one does not.
    fn is_plain(&self, key: &str, text: &str) -> bool {
        let Some(at) = text.chars().position(|c| !quote::is_visible(c)) else { return true };
        let hidden: String = text.chars().skip(at).take(1).collect();
        let message = format!(
            "`{}` has `{}` as its character {}, which is no visible one: `{}`",
            quote::terminal(&self.name(key)),
            quote::terminal(&hidden),
            at + 1,
            quote::bytes(text.as_bytes(), 60)
        );
        let finding = self.error(self.dialect.text, key, message);
        self.report(key, finding.hint("write it on one line, without control characters and marks that do not show"));
        false
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
        self.report(key, self.error(self.dialect.choice, key, message).hint(hint));
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

    /// A list of positive numbers that may be left out.
    pub fn positives(&mut self, key: &'static str) -> Option<Vec<f64>> {
        let number = |item: &DeValue| match item {
            DeValue::Integer(int) => i64::from_str_radix(int.as_str(), int.radix()).ok().map(|n| n as f64),
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            _ => None,
        };
        let numbers = match self.value(key)? {
            DeValue::Array(items) => {
                items.iter().map(|item| number(item.get_ref()).filter(|n| n.is_finite() && *n > 0.0)).collect()
            }
            _ => None,
        };
        if numbers.is_none() {
            self.wrong(key, "a list of positive numbers");
        }
        numbers
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
        words.filter(|words| words.iter().all(|word| self.is_plain(key, word)))
    }

    /// A table whose keys are the writer's own and whose values are texts; none when it is left out.
    pub fn texts(&mut self, key: &'static str) -> Vec<(&'a str, &'a str)> {
        let Some(section) = self.section(key) else { return Vec::new() };
        let pair = |(name, value): (&'a toml::Spanned<toml::de::DeString<'a>>, &'a toml::Spanned<DeValue<'a>>)| {
            let name: &'a str = name.get_ref();
            match value.get_ref() {
                DeValue::String(text) if section.is_plain(name, name) && section.is_plain(name, text) => {
                    Some((name, text.as_ref()))
                }
                DeValue::String(_) => None,
                _ => {
                    section.wrong(name, "a text");
                    None
                }
            }
        };
        section.table.iter().filter_map(pair).collect()
    }

    /// A table inside this one that may be left out.
    pub fn section(&mut self, key: &'static str) -> Option<Section<'a>> {
        self.asked.push(key);
        let value = self.table.get(key)?;
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong(key, "a table");
            return None;
        };
        Some(self.inner(key, table, span(value.span())))
    }

    /// A table whose keys are the writer's own and whose values are tables; none when it is left out.
    pub fn named_sections(&mut self, key: &'static str) -> Vec<(&'a str, Section<'a>)> {
        let Some(section) = self.section(key) else { return Vec::new() };
        let pair = |(name, value): (&'a toml::Spanned<toml::de::DeString<'a>>, &'a toml::Spanned<DeValue<'a>>)| {
            let name: &'a str = name.get_ref();
            match value.get_ref() {
                DeValue::Table(table) if section.is_plain(name, name) => {
                    Some((name, section.inner(name, table, span(value.span()))))
                }
                DeValue::Table(_) => None,
                _ => {
                    section.wrong(name, "a table");
                    None
                }
            }
        };
        section.table.iter().filter_map(pair).collect()
    }

    /// The tables of a list (`[[key]]`); none when it is left out.
    pub fn sections(&mut self, key: &'static str) -> Vec<Section<'a>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.wrong(key, "a list of tables");
            return Vec::new();
        };
        let tables = items.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => Some(self.inner(key, table, span(item.span()))),
            _ => {
                self.wrong(key, "a list of tables");
                None
            }
        });
        tables.collect()
    }

    fn inner(&self, key: &str, table: &'a DeTable<'a>, span: Span) -> Section<'a> {
        let (dialect, findings) = (self.dialect, self.findings);
        Section { path: self.name(key), table, span, asked: Vec::new(), dialect, findings }
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
            let message = format!("unknown key `{shown}`{place}");
            let mut finding = self.error(self.dialect.unknown_key, &shown, message);
            finding = match did_you_mean(name, self.asked.iter().copied()) {
                Some(word) => finding.hint(format!("did you mean `{word}`?")),
                None => finding.hint(format!("known here: {}", self.asked.join(", "))),
            };
            self.findings.borrow_mut().push(finding.at(Some(span(key.span()))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static DIALECT: Dialect = Dialect {
        whole: "the list",
        blame: Blame::Usage,
        most_bytes: 100,
        syntax: "t/syntax",
        text: "t/text",
        wrong_type: "t/type",
        missing_key: "t/missing",
        limit: "t/limit",
        choice: "t/choice",
        unknown_key: "t/unknown",
    };

    fn rates(text: &str) -> Result<Vec<f64>, Vec<String>> {
        let read = |mut root: Section| {
            let rates = root.sections("item").into_iter().map(|mut item| {
                let rate = item.required_positive("rate");
                item.finish();
                rate
            });
            // Read all before giving up on any, so that every table's mistakes are found.
            let rates: Vec<Option<f64>> = rates.collect();
            root.finish();
            rates.into_iter().collect()
        };
        let wrong =
            |findings: Vec<Finding>| findings.into_iter().map(|f| format!("{} [{}]", f.message, f.rule)).collect();
        read_text(text, &DIALECT, read).map(|(rates, _)| rates).map_err(wrong)
    }

    #[test]
    fn lists_of_tables_are_read_and_every_mistake_is_named() {
        assert_eq!(rates("[[item]]\nrate = 2\n[[item]]\nrate = 1.5\n"), Ok(vec![2.0, 1.5]));
        assert_eq!(rates(""), Ok(vec![]));
        assert_eq!(
            rates("[[item]]\nrte = 2\n[[item]]\nrate = 0\n"),
            Err(vec![
                "`[item]` lacks `rate`, a positive number [t/missing]".to_string(),
                "unknown key `rte` in `[item]` [t/unknown]".to_string(),
                "`item.rate` must be a positive number, found integer [t/type]".to_string(),
            ])
        );
        assert_eq!(rates("item = [1]"), Err(vec!["`item` must be a list of tables, found array [t/type]".to_string()]));
        assert!(rates(&"#".repeat(101)).unwrap_err()[0].contains("the list has at most 100"));
        assert!(rates("item =").unwrap_err()[0].ends_with("[t/syntax]"));
    }

    #[test]
    fn texts_show_what_they_hold() {
        let read = |text: &str| {
            let texts = |mut root: Section| {
                let (one, many) = (root.text("one"), root.lines("many"));
                let _ = (root.words("words"), root.texts("own"), root.named_sections("named").len());
                root.finish();
                Some((one.map(str::to_string), many.map(str::to_string)))
            };
            let wrong = |findings: Vec<Finding>| {
                assert!(findings.iter().all(|f| f.rule == "t/text" && f.span.is_some() && quote::is_plain(&f.message)));
                findings.len()
            };
            read_text(text, &DIALECT, texts).map(|(texts, _)| texts).map_err(wrong)
        };
        assert_eq!(read("one = \"é \\\\\"\nmany = \"a\\n\\tb\""), Ok((Some("é \\".into()), Some("a\n\tb".into()))));
        for hidden in ["\\u0000", "\\n", "\\u001b[2J", "\\u202e", "\\u009b"] {
            assert_eq!(read(&format!("one = \"a{hidden}\"")), Err(1), "{hidden}");
            assert_eq!(read(&format!("words = [\"a\", \"{hidden}\"]")), Err(1), "{hidden}");
            assert_eq!(read(&format!("own = {{ a = \"{hidden}\", \"{hidden}\" = \"b\" }}")), Err(2), "{hidden}");
            assert_eq!(read(&format!("named = {{ \"{hidden}\" = {{}} }}")), Err(1), "{hidden}");
        }
        assert_eq!(read("many = \"a\\u001b\""), Err(1));
    }
}
