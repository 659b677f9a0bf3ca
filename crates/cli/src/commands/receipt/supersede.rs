//! `receipt supersede`: what is no longer believed. Neither receipt is changed: a file of its own says so.

use super::{StoreArgs, short, time};
use crate::outcome::{Outcome, Report};
use ::receipt::store::{RETRACTION, Retraction};
use clap::Args;
use diag::{Blame, Finding};
use serde_json::json;

/// Arguments of `receipt supersede`.
#[derive(Args)]
pub struct SupersedeArgs {
    /// The receipt that is no longer believed, by the beginning of its name
    pub id: String,
    /// The one that is believed instead; none where nothing is
    #[arg(long, value_name = "ID")]
    pub with: Option<String>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub because: String,
    #[command(flatten)]
    pub store: StoreArgs,
}

pub fn run(args: &SupersedeArgs) -> Outcome {
    let store = args.store.open()?;
    let (id, _) = store.find(&args.id)?;
    let with = args.with.as_deref().map(|name| store.find(name)).transpose()?.map(|(with, _)| with);
    if with.as_ref() == Some(&id) {
        let message = format!("receipt {} cannot stand in its own place", short(&id));
        return Err(Finding::error("receipt/supersede", Blame::Usage, "with", message).hint("name another one").into());
    }
    if args.because.trim().is_empty() {
        let message = "a receipt is not taken back without a reason";
        return Err(Finding::error("receipt/supersede", Blame::Usage, "because", message)
            .hint("--because TEXT")
            .into());
    }
    let retraction = Retraction {
        schema: RETRACTION.to_string(),
        id: id.clone(),
        with: with.clone(),
        because: args.because.clone(),
        recorded: time::now(),
    };
    let kept = store.retract(&retraction)?;
    let text = match &with {
        Some(with) => format!("{} is superseded by {}\n", short(&id), short(with)),
        None => format!("{} is retracted\n", short(&id)),
    };
    let json =
        json!({ "id": id, "with": with, "because": args.because, "retraction": kept.id, "findings": kept.notes });
    Ok(Report::new(text, json).with_findings(&kept.notes))
}
