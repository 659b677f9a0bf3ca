//! What a command comes to: text for people, JSON for machines, findings, and an exit code.

use diag::Finding;
use serde_json::{Value, json};

/// The version of every JSON answer's keys. It changes when a key changes meaning or goes.
pub const SCHEMA: &str = "shardwright/1";

/// Exit code of a no, or of wrong input.
pub const NO: u8 = 1;

/// Exit code of a layout that does not fit.
pub const DOES_NOT_FIT: u8 = 3;

/// What is printed.
#[derive(Debug, Default)]
pub struct Report {
    /// For people.
    pub text: String,
    /// For machines; commands without it print their text.
    pub json: Option<Value>,
    /// Rendered findings, for standard error.
    pub messages: Vec<String>,
    /// Exit code.
    pub exit: u8,
}

impl Report {
    /// An answer in both forms. The schema key is added here, first.
    pub fn new(text: String, json: Value) -> Report {
        let mut keyed = json!({ "schema": SCHEMA });
        if let (Value::Object(all), Value::Object(more)) = (&mut keyed, json) {
            all.extend(more);
        }
        Report { text, json: Some(keyed), messages: Vec::new(), exit: 0 }
    }

    /// An answer that is text in either form.
    pub fn text(text: String) -> Report {
        Report { text, ..Report::default() }
    }

    /// Adds findings to be shown beside the answer.
    pub fn with_findings(mut self, findings: &[Finding]) -> Report {
        self.messages.extend(findings.iter().map(|f| diag::render(f, None)));
        self
    }

    /// Turns the answer into a no.
    pub fn refused(mut self) -> Report {
        self.exit = NO;
        self
    }
}

/// Input that cannot be answered.
#[derive(Debug)]
pub struct Refusal {
    /// Why.
    pub findings: Vec<Finding>,
    /// The text the findings point into: name and content.
    pub source: Option<(String, String)>,
}

impl Refusal {
    /// A refusal as a report: findings on standard error, and as JSON when that was asked for.
    pub fn into_report(self) -> Report {
        let source = self.source.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
        Report {
            text: String::new(),
            json: Some(json!({ "schema": SCHEMA, "error": true, "findings": self.findings })),
            messages: self.findings.iter().map(|f| diag::render(f, source)).collect(),
            exit: NO,
        }
    }
}

impl From<Finding> for Refusal {
    fn from(finding: Finding) -> Refusal {
        Refusal { findings: vec![finding], source: None }
    }
}

impl From<Vec<Finding>> for Refusal {
    fn from(findings: Vec<Finding>) -> Refusal {
        Refusal { findings, source: None }
    }
}

/// What a command returns.
pub type Outcome = Result<Report, Refusal>;
