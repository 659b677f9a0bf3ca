//! What a legality rule is. Each is one value in one file: its id, whose fault a finding is, what of
//! a layout it reads, the words of engines that state it too, what it asks, and examples.

use super::{Case, Reads};
use crate::request::Engine;
use diag::{Blame, Finding, RuleId, Severity};

/// One question to a layout.
#[derive(Debug)]
pub struct Rule {
    /// Stable name; scripts match on it.
    pub id: RuleId,
    /// Who has to act on a finding.
    pub blame: Blame,
    /// What decides whether it speaks. Hints may look at more.
    pub reads: Reads,
    /// The condition in the words of engines that state it: added to findings under that engine.
    pub quotes: &'static [(Engine, &'static str)],
    /// What it asks.
    pub check: Check,
    /// Layouts it speaks on and layouts it does not, with what it says.
    #[cfg(test)]
    pub examples: &'static [super::example::Example],
}

/// How often a rule may speak on one layout.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// Once.
    One(fn(&Case) -> Option<Finding>),
    /// Once for each of several things it looks at.
    Each(fn(&Case) -> Vec<Finding>),
}

impl Rule {
    /// Everything it finds.
    pub fn findings(&self, case: &Case) -> Vec<Finding> {
        let mut found = match self.check {
            Check::One(check) => check(case).into_iter().collect(),
            Check::Each(check) => check(case),
        };
        let quote = self.quotes.iter().find(|(engine, _)| Some(*engine) == case.layout.engine);
        for finding in &mut found {
            debug_assert_eq!(finding.rule, self.id, "a rule speaks in its own name");
            finding.quote = quote.map(|(_, words)| words.to_string());
        }
        found
    }

    /// Whether it refuses the layout.
    pub fn refuses(&self, case: &Case) -> bool {
        diag::refuses(&self.findings(case))
    }

    /// Whether a finding is this rule's.
    pub fn found(&self, finding: &Finding) -> bool {
        finding.rule == self.id
    }

    /// A refusal.
    pub(crate) fn error(&self, object: &str, message: impl Into<String>) -> Finding {
        Finding::error(self.id, self.blame, object, message)
    }

    /// Something legal that is probably not meant.
    pub(crate) fn warning(&self, object: &str, message: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warning, ..self.error(object, message) }
    }

    /// Something to know.
    pub(crate) fn note(&self, object: &str, message: impl Into<String>) -> Finding {
        Finding { severity: Severity::Note, ..self.error(object, message) }
    }

    /// Refuses unless `count` units divide over `degree` ranks of the axis `key`.
    pub(crate) fn must_divide(
        &self,
        object: &str,
        what: &str,
        count: u64,
        key: &'static str,
        degree: u64,
    ) -> Option<Finding> {
        if count.is_multiple_of(degree) {
            return None;
        }
        let message =
            format!("cannot split `{object}` over {key}={degree}: {count} {what} are not a multiple of {degree}");
        Some(self.error(object, message).fix(key, units::divisors(count)))
    }
}
