//! Receipts as they are typed: files or names in the store, two by two or several a side.

use super::{StoreArgs, named};
use crate::outcome::{Refusal, Report, USAGE};
use crate::table::{Table, heading};
use ::receipt::Receipt;
use ::receipt::compare::Change;
use clap::Args;
use diag::{Blame, Finding};

/// Two sides.
#[derive(Args)]
pub struct SideArgs {
    /// Receipts: two to compare, or the runs of one job when --against names the other side
    #[arg(required = true, value_name = "RECEIPT")]
    pub receipts: Vec<String>,
    /// The other side: runs of the job to compare with
    #[arg(long, value_name = "RECEIPT", num_args = 1..)]
    pub against: Vec<String>,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// The receipts of one side.
pub fn all(store: &StoreArgs, names: &[String]) -> Result<Vec<Receipt>, Refusal> {
    names.iter().map(|name| one(store, name)).collect()
}

/// A receipt by its file, or by the beginning of its name in the store.
pub fn one(store: &StoreArgs, name: &str) -> Result<Receipt, Refusal> {
    named(&store.open()?, name).map(|(_, receipt)| receipt)
}

impl SideArgs {
    /// Old and new: `A B`, or `NEW… --against OLD…`.
    pub fn read(&self) -> Result<(Vec<Receipt>, Vec<Receipt>), Refusal> {
        match (&self.receipts[..], &self.against[..]) {
            ([old, new], []) => Ok((vec![one(&self.store, old)?], vec![one(&self.store, new)?])),
            (_, []) => {
                let message = format!("{} receipts and no --against: which are to be compared?", self.receipts.len());
                let hint = "`A B` compares two; `NEW… --against OLD…` several runs a side";
                Err(Finding::error("receipt/sides", Blame::Usage, "sides", message).hint(hint).into())
            }
            (new, old) => Ok((all(&self.store, old)?, all(&self.store, new)?)),
        }
    }
}

/// A refusal whose exit code says that the question was wrong, and not the runs.
pub fn unlike(findings: &[Finding]) -> Report {
    let messages = diag::render_all(findings, None);
    let json = serde_json::json!({ "findings": findings });
    Report { messages, ..Report::new(String::new(), json) }.refused(USAGE, [])
}

/// Changes as a table, causes first; of what may follow from them only the number where there are many.
pub fn changes_text(changes: &[Change]) -> String {
    const SHOWN: usize = 12;
    if changes.is_empty() {
        return "  nothing that is recorded differs\n".to_string();
    }
    let (follow, causes): (Vec<&Change>, Vec<&Change>) = changes.iter().partition(|change| change.may_follow);
    let mut table = Table::new(&["layer", "part", "what", "old", "new", ""]);
    let cell = |text: &str| crate::commands::shorten(text, 40);
    for change in causes.iter().chain(follow.iter().take(SHOWN.saturating_sub(causes.len()))) {
        let word = if change.may_follow { "may follow" } else { "" };
        table.row([change.layer.name(), change.part, &change.key, &cell(&change.old), &cell(&change.new), word]);
    }
    let hidden = follow.len().saturating_sub(SHOWN.saturating_sub(causes.len()));
    let more = match hidden {
        0 => String::new(),
        n => format!("\x1b[2m  and {n} more that may follow from these: --json lists them\x1b[0m\n"),
    };
    table.render() + &more
}

/// The heading of a list of changes.
pub fn changes_heading(layer: Option<::receipt::compare::Layer>) -> String {
    match layer {
        Some(layer) => heading(&format!("What differs: the {layer}")),
        None => heading("What differs"),
    }
}

/// Bytes with enough digits to see half a percent.
pub fn gib(bytes: u64) -> String {
    format!("{:.3} GiB", bytes as f64 / (1u64 << 30) as f64)
}
