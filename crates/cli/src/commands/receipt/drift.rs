//! `receipt drift`: a history, and when something changed in it.

use super::StoreArgs;
use super::short;
use super::sides::{all, changes_text, gib};
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, wrap};
use ::receipt::drift::{Drift, Figure, Turn, drift};
use clap::Args;
use diag::{Blame, Finding};

/// Arguments of `receipt drift`.
#[derive(Args)]
pub struct DriftArgs {
    /// Receipts of one job's history, in any order
    #[arg(required = true, value_name = "RECEIPT")]
    pub receipts: Vec<String>,
    #[command(flatten)]
    pub store: StoreArgs,
}

pub fn run(args: &DriftArgs) -> Outcome {
    let history = all(&args.store, &args.receipts)?;
    let first = &history[0];
    if let Some(other) = history.iter().find(|r| r.identity.recipe != first.identity.recipe || r.kind != first.kind) {
        let message = format!(
            "this is no history of one thing: a {} of `{}` and a {} of `{}`",
            first.kind.name(),
            first.identity.recipe,
            other.kind.name(),
            other.identity.recipe
        );
        return Err(Finding::error("receipt/history", Blame::Usage, "history", message).into());
    }
    let found = drift(&history);
    let text = text(&found);
    Ok(Report::new(text, serde_json::to_value(&found).unwrap_or_default()))
}

fn shown(figure: Figure, value: f64) -> String {
    match figure {
        Figure::StepSeconds => format!("{value:.4} s"),
        Figure::PeakBytes => gib(value as u64),
        Figure::Loss => format!("{value:.5}"),
    }
}

fn text(found: &Drift) -> String {
    let mut out = format!("{} runs, in the order they were recorded\n", found.runs);
    if found.turns.is_empty() {
        out += "no figure left the noise of the runs before it\n";
    }
    for turn in &found.turns {
        out += &one(turn);
    }
    if !found.quiet.is_empty() {
        let mut table = Table::new(&["recorded", "layer", "what", "old", "new"]);
        for quiet in &found.quiet {
            let Some(change) = quiet.changes.first() else { continue };
            let layer = quiet.layer.map_or("", |layer| layer.name());
            table.row([quiet.recorded.as_str(), layer, &change.key, &change.old, &change.new]);
        }
        out += &(heading("Changed, and no figure with it") + &table.render());
    }
    out
}

fn one(turn: &Turn) -> String {
    let layer = match turn.layer {
        Some(layer) => format!("the {layer} changed there"),
        None => {
            "nothing that we record changed there: look at what no receipt holds (other jobs, fabric, storage, data)"
                .to_string()
        }
    };
    let runs = if turn.runs == 1 { "the run before".to_string() } else { format!("{} runs before", turn.runs) };
    let words = format!(
        "{} went from {} ({runs}, noise ± {}) to {}: {layer}",
        turn.figure.name(),
        shown(turn.figure, turn.before),
        shown(turn.figure, turn.noise),
        shown(turn.figure, turn.after)
    );
    let mut out = heading(&format!("{}  {}", turn.recorded, short(&turn.id))) + &wrap(&words, "  ", 100);
    if !turn.changes.is_empty() {
        out += &changes_text(&turn.changes);
    }
    out
}
