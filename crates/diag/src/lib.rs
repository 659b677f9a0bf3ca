//! A finding: what is wrong or worth knowing, by which rule, whose fault it is, where it stands,
//! and what would mend it.
//!
//! This crate words and renders findings, and text from outside for every reader there is; it decides
//! nothing and prints nothing.

pub mod quote;
mod render;
mod suggest;
mod untrusted;

pub use render::{MOST_SHOWN, place, render, render_all};
pub use suggest::{did_you_mean, did_you_mean_name};
pub use untrusted::Untrusted;

use serde::Serialize;

/// The stable name of a rule, such as `tp/heads`. Scripts match on it, so it never changes meaning.
pub type RuleId = &'static str;

/// Who has to change something for the finding to go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blame {
    /// The file or text that describes the model.
    Recipe,
    /// The degrees, batch or schedule asked for.
    Layout,
    /// The engine cannot do what the plan says.
    Engine,
    /// The engine has no block or feature of that kind, so that a patch of one's own could stand
    /// there. For scripts it is the engine's.
    #[serde(rename = "engine")]
    Missing,
    /// The machine or its configuration.
    Environment,
    /// How the command was typed.
    Usage,
    /// We are wrong.
    Bug,
}

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Something the reader should know: a derived value, a seam, a replicated surface.
    Note,
    /// Legal, and probably not what was meant.
    Warning,
    /// Refused.
    Error,
}

/// A place in a text that a person wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Byte offset of the first byte.
    pub start: usize,
    /// Byte offset after the last byte.
    pub end: usize,
}

/// Values of one key that would make a finding go away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// The layout or recipe key to change, as typed on the command line without dashes.
    pub key: &'static str,
    /// Values that satisfy the rule, ascending; each alone removes the finding.
    pub values: Vec<u64>,
}

/// One thing to tell the user.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Which rule found it.
    pub rule: RuleId,
    /// Who has to act.
    pub blame: Blame,
    /// How much it weighs.
    pub severity: Severity,
    /// The thing the rule looked at: a tensor path, a key, a stage.
    pub object: String,
    /// Lowercase phrase with backticked literals: what, with its values.
    pub message: String,
    /// What the user can change, with values that would satisfy the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The engine's own condition, quoted, where an engine refuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// Machine-readable form of the hint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
    /// Where in the user's text it stands.
    #[serde(skip)]
    pub span: Option<Span>,
}

impl Finding {
    /// With [`Severity::Error`]: what was asked for is refused.
    pub fn error(rule: RuleId, blame: Blame, object: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding {
            rule,
            blame,
            severity: Severity::Error,
            object: object.into(),
            message: message.into(),
            hint: None,
            quote: None,
            fix: None,
            span: None,
        }
    }

    /// With [`Severity::Warning`]: legal, and probably not meant.
    pub fn warning(rule: RuleId, blame: Blame, object: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warning, ..Finding::error(rule, blame, object, message) }
    }

    /// With [`Severity::Note`]: something the reader should know.
    pub fn note(rule: RuleId, blame: Blame, object: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { severity: Severity::Note, ..Finding::error(rule, blame, object, message) }
    }

    /// Says what the user can change.
    pub fn hint(mut self, hint: impl Into<String>) -> Finding {
        self.hint = Some(hint.into());
        self
    }

    /// Quotes the engine's own condition.
    pub fn quote(mut self, quote: impl Into<String>) -> Finding {
        self.quote = Some(quote.into());
        self
    }

    /// Adds the values of `key` that would do, as the hint and for machines.
    pub fn fix(mut self, key: &'static str, values: Vec<u64>) -> Finding {
        if self.hint.is_none() && !values.is_empty() {
            self.hint = Some(format!("{key} may be {}", list(&values)));
        }
        self.fix = Some(Fix { key, values });
        self
    }

    /// Points into the user's text.
    pub fn at(mut self, span: Option<Span>) -> Finding {
        self.span = span;
        self
    }
}

/// Whether any finding refuses.
pub fn refuses(findings: &[Finding]) -> bool {
    findings.iter().any(|f| f.severity == Severity::Error)
}

/// Numbers as prose, cut short when there are many: `1, 2, 4 … 128`.
pub fn list(values: &[u64]) -> String {
    const SHOWN: usize = 8;
    let join = |v: &[u64]| v.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match values {
        [] => "nothing".to_string(),
        [.., last] if values.len() > SHOWN => format!("{} … {last}", join(&values[..SHOWN - 1])),
        _ => join(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_words_its_own_hint() {
        let finding = Finding::error("tp/heads", Blame::Layout, "attention", "no").fix("tp", vec![1, 2]);
        assert_eq!(finding.hint.as_deref(), Some("tp may be 1, 2"));
    }

    #[test]
    fn long_lists_are_cut() {
        let many: Vec<u64> = (1..=20).collect();
        assert_eq!(list(&many), "1, 2, 3, 4, 5, 6, 7 … 20");
        assert_eq!(list(&[]), "nothing");
    }

    #[test]
    fn only_errors_refuse() {
        let note = Finding::note("a/b", Blame::Layout, "x", "y");
        assert!(!refuses(std::slice::from_ref(&note)));
        assert!(refuses(&[note, Finding::error("a/b", Blame::Layout, "x", "y")]));
    }
}
