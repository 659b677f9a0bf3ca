//! `receipt verify` and `receipt rebuild`: the files are the truth, and the index is made of them.

use super::{StoreArgs, short};
use crate::outcome::{NO, Outcome, Report};
use ::receipt::Store;
use ::receipt::store::Looked;
use clap::Args;
use diag::Severity;
use serde_json::json;

/// Arguments of `receipt verify`.
#[derive(Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Arguments of `receipt rebuild`.
#[derive(Args)]
pub struct RebuildArgs {
    #[command(flatten)]
    pub store: StoreArgs,
}

pub fn run(args: &VerifyArgs) -> Outcome {
    let store = args.store.open()?;
    let looked = store.verify()?;
    let report = report(&store, &looked, "hold what their names say");
    // A damaged file is a no; an index that is behind is made again by whoever needs it.
    match looked.notes.iter().any(|note| note.severity != Severity::Note) {
        true => Ok(report.refused(NO, [])),
        false => Ok(report),
    }
}

pub fn rebuild(args: &RebuildArgs) -> Outcome {
    let store = args.store.open()?;
    let looked = store.rebuild()?;
    Ok(report(&store, &looked, "are in the index, made again"))
}

fn report(store: &Store, looked: &Looked, what: &str) -> Report {
    let number = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let mut text = format!(
        "{} and {} of {} {what}\n",
        number(looked.receipts, "receipt"),
        number(looked.retractions, "retraction"),
        diag::quote::shown(store.root())
    );
    for id in &looked.restored {
        text += &format!("{} was whole, and is back from quarantine\n", short(id));
    }
    let json = json!({
        "store": store.root().display().to_string(), "receipts": looked.receipts, "retractions": looked.retractions,
        "restored": looked.restored, "findings": looked.notes,
    });
    Report::new(text, json).with_findings(&looked.notes)
}
