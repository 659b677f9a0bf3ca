//! What a command comes to: text for people, JSON for machines, findings, and an exit code.

use diag::Finding;
use serde_json::{Value, json};

/// The version of every JSON answer's keys. It changes when a key changes meaning or goes.
pub const SCHEMA: &str = "shardwright/1";

/// Exit code of a no, or of wrong input.
pub const NO: u8 = 1;

/// Exit code of a command line that cannot be read.
pub const USAGE: u8 = 2;

/// Exit code of a layout that does not fit.
pub const DOES_NOT_FIT: u8 = 3;

/// Exit code of a panic.
pub const BUG: u8 = 70;

/// What is printed.
#[derive(Debug, Default)]
pub struct Report {
    /// For people; folded to their screen.
    pub text: String,
    /// Files and the like, below the text and exactly as they stand.
    pub verbatim: String,
    /// For machines; commands without it print their text.
    pub json: Option<Value>,
    /// Rendered findings, for standard error.
    pub messages: Vec<String>,
    /// What standard error is told exactly as it stands.
    pub verbatim_messages: String,
    /// Why the answer is a no, where the JSON does not say so yet.
    pub because: Vec<Finding>,
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
        Report { text, json: Some(keyed), ..Report::default() }
    }

    /// A file as the answer: not a space of it is changed.
    pub fn file(verbatim: String, json: Value) -> Report {
        Report { verbatim, ..Report::new(String::new(), json) }
    }

    /// An answer that is a file in either form.
    pub fn text(verbatim: String) -> Report {
        Report { verbatim, ..Report::default() }
    }

    /// Adds findings to be shown beside the answer.
    pub fn with_findings(mut self, findings: &[Finding]) -> Report {
        self.messages.extend(findings.iter().map(|f| diag::render(f, None)));
        self
    }

    /// Turns the answer into a no, with the reasons that JSON names; the text has said them.
    pub fn refused(mut self, exit: u8, because: impl IntoIterator<Item = Finding>) -> Report {
        self.exit = exit;
        self.because.extend(because);
        self
    }

    /// The JSON. A no carries `error` and its findings, whatever the command.
    pub fn json(&self) -> Option<Value> {
        let mut json = self.json.clone()?;
        if self.exit != 0 {
            json["error"] = json!(true);
            let mut findings = json["findings"].as_array().cloned().unwrap_or_default();
            findings.extend(self.because.iter().map(|finding| json!(finding)));
            json["findings"] = json!(findings);
        }
        Some(json)
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
        let messages = diag::render_all(&self.findings, source);
        let findings: Vec<Value> = self.findings.iter().map(|finding| placed(finding, source)).collect();
        Report { messages, ..Report::new(String::new(), json!({ "findings": findings })) }.refused(NO, [])
    }
}

/// A finding with where it stands in its text.
fn placed(finding: &Finding, source: Option<(&str, &str)>) -> Value {
    let mut json = json!(finding);
    if let (Some(span), Some((_, text))) = (&finding.span, source) {
        let (line, column) = diag::place(span, text);
        (json["line"], json["column"]) = (json!(line), json!(column));
    }
    json
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
