//! `receipt localise`: where two runs part.

use super::StoreArgs;
use super::sides::one;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, item, wrap};
use ::receipt::localise::{Apart, Fault, Localised, NAN_ORDER, localise};
use clap::Args;
use evidence::TensorKind;

/// Arguments of `receipt localise`.
#[derive(Args)]
pub struct LocaliseArgs {
    /// The run that is believed: one rank, or the last that was well
    #[arg(value_name = "RECEIPT")]
    pub good: String,
    /// The run that is not
    #[arg(value_name = "RECEIPT")]
    pub bad: String,
    #[command(flatten)]
    pub store: StoreArgs,
}

pub fn run(args: &LocaliseArgs) -> Outcome {
    let (good, bad) = (one(&args.store, &args.good)?, one(&args.store, &args.bad)?);
    let found = localise(&good, &bad)?;
    let mut json = serde_json::to_value(&found).unwrap_or_default();
    if !found.not_a_number.is_empty() {
        json["bisect"] = serde_json::json!(NAN_ORDER);
    }
    Ok(Report::new(text(&found), json))
}

fn text(found: &Localised) -> String {
    let mut out = match &found.parted {
        Some(p) => format!("losses part at step {}: {:.6} and {:.6}\n", p.step, p.old, p.new),
        None => "losses do not part\n".to_string(),
    };
    match &found.first {
        Some(first) => out += &tensor(found, first),
        None if found.parted.is_some() => {
            out += &wrap(
                "no tensor of a common step is off, or none was recorded: record norms of both runs at that step \
                 (docs/receipts.md, Localise)",
                "  ",
                100,
            );
        }
        None => out += &format!("every norm agrees to {:.0e}\n", found.tolerance),
    }
    for nan in &found.not_a_number {
        let words = format!(
            "the {} run is no number first at step {}: {} of `{}`, {} elements",
            nan.run,
            nan.step,
            kind(nan.kind),
            nan.path,
            nan.elements
        );
        out += &wrap(&words, "", 100);
    }
    if !found.not_a_number.is_empty() {
        out += &nan_order();
    }
    out
}

/// The order to bisect a NaN in.
pub fn nan_order() -> String {
    let mut out = heading("Bisect in this order");
    for (at, step) in NAN_ORDER.iter().enumerate() {
        out += &item(&format!("  {}. ", at + 1), step, 100);
    }
    out
}

fn kind(kind: TensorKind) -> &'static str {
    match kind {
        TensorKind::Activation => "the activation",
        TensorKind::ActivationGradient => "the gradient of the activation",
        TensorKind::Weight => "the weight",
        TensorKind::Gradient => "the gradient",
    }
}

fn tensor(found: &Localised, first: &Apart) -> String {
    let mut out = wrap(
        &format!(
            "first tensor off: {} of `{}` at step {}; {} of {} such are",
            kind(first.kind),
            first.path,
            first.step,
            found.off,
            found.of
        ),
        "",
        100,
    );
    let mut table = Table::new(&["tensor", "norm", "other", "apart by"]).right(&[1, 2, 3]);
    for apart in std::iter::once(first).chain(&found.others) {
        let difference = format!("{:.1e}", apart.difference);
        table.row([apart.path.clone(), format!("{:.6e}", apart.old), format!("{:.6e}", apart.new), difference]);
    }
    out += &table.render();
    let reading = match found.reading {
        Some(Fault::Forward) => "a block computes or exchanges something else in forward",
        Some(Fault::Backward) => "activations agree: an exchange of backward",
        Some(Fault::Reduction) => {
            "activations and their gradients agree: a reduction of gradients is missing or doubled"
        }
        Some(Fault::Update) => "everything of the step before agrees: the update of the weights",
        None => "",
    };
    out += &wrap(reading, "  ", 100);
    if !found.has_job {
        return out
            + "  neither run carries its job, so no axis can be judged: record them with their launch or layout\n";
    }
    if found.suspects.is_empty() {
        return out + "  no axis alone explains it: look at the block itself, its kernels and its format\n";
    }
    out += &heading("Axes that could explain it");
    for suspect in &found.suspects {
        out += &item(&format!("  {:<4}", suspect.axis), &suspect.because, 100);
    }
    out += &heading("Rehearse the split");
    for suspect in &found.suspects {
        out += &format!("  {}\n", suspect.rehearse);
    }
    out
}
