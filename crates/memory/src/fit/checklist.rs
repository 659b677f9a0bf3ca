//! The production checklist: what must be true of an estimate before a launch trusts it, each
//! item with its evidence.

use super::{Entry, Fit, RankClass, Verdict};
use case::Case;
use layout::Recompute;
use recipe::{Mixer, Optimizer};
use replay::line::Line;
use units::Bytes;

/// One item and what shows it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Item {
    /// What must be true.
    pub what: &'static str,
    /// Whether it is.
    pub holds: bool,
    /// What shows it.
    pub evidence: String,
}

/// Runs the checklist over the worst rank.
pub fn checklist(case: &Case, fit: &Fit) -> Vec<Item> {
    let worst = fit.worst();
    vec![
        degrees(case),
        replicated(worst),
        optimizers(case, worst),
        routing(case, worst),
        recompute(case, worst),
        serving(case),
        headroom(fit),
    ]
}

fn item(what: &'static str, holds: bool, evidence: String) -> Item {
    Item { what, holds, evidence }
}

fn degrees(case: &Case) -> Item {
    let layout = &case.layout;
    let features: Vec<_> = case.recipe.features.listed().iter().filter(|(_, on)| *on).map(|(f, _)| f.name()).collect();
    let features = if features.is_empty() { "none".to_string() } else { features.join(", ") };
    let evidence = format!(
        "{}, weights {}, gradients {}, features: {features}",
        layout.words(case.recipe.uses(Mixer::Moe)).join(" "),
        case.recipe.precision.weights,
        case.options.state.gradients
    );
    item("real degrees, precision and features", true, evidence)
}

fn replicated(worst: &RankClass) -> Item {
    let bytes = worst.line(Entry::Ledger(Line::ReplicatedParams));
    item("replicated tensors visible", bytes > 0, format!("{} on a line of their own", Bytes(bytes)))
}

fn optimizers(case: &Case, worst: &RankClass) -> Item {
    let (muon, adam) =
        (worst.line(Entry::Ledger(Line::MatrixOptimizer)), worst.line(Entry::Ledger(Line::OtherOptimizer)));
    let wants_muon = case.recipe.tensors().iter().any(|t| t.optimizer == Optimizer::Muon);
    let holds = wants_muon == (muon > 0);
    item("Muon and AdamW apart", holds, format!("Muon {}, AdamW and main weights {}", Bytes(muon), Bytes(adam)))
}

fn routing(case: &Case, worst: &RankClass) -> Item {
    let bytes = worst.line(Entry::Ledger(Line::RoutingScratch));
    let needed = case.layout.ep.splits() && case.recipe.uses(Mixer::Moe);
    let evidence = if needed || bytes > 0 {
        format!("{} at the peak of the worst rank", Bytes(bytes))
    } else {
        "ep is 1 or the model has no experts".to_string()
    };
    item("dispatch and combine scratch whenever ep is on", !needed || bytes > 0, evidence)
}

fn recompute(case: &Case, worst: &RankClass) -> Item {
    let bytes = worst.line(Entry::Ledger(Line::Activations));
    let policy = match &case.layout.recompute {
        Recompute::None => "nothing recomputed".to_string(),
        other => format!("recompute {other} in force"),
    };
    let evidence = format!("{policy}: {} of activations, replayed under it", Bytes(bytes));
    item("activations under the recompute policy in force", true, evidence)
}

fn serving(case: &Case) -> Item {
    let attends = case.recipe.count(Mixer::Attention);
    let evidence = format!(
        "a training budget holds none; `fit --serve` prices it for {attends} of {} layers",
        case.recipe.depth()
    );
    item("key/value cache for serving, not assumed covered", true, evidence)
}

fn headroom(fit: &Fit) -> Item {
    let left = fit.worst().headroom;
    let evidence = match u64::try_from(left) {
        Ok(left) => format!("{} left, {} asked for", Bytes(left), fit.headroom),
        Err(_) => format!("{} over the device", Bytes(left.unsigned_abs())),
    };
    item("headroom for compile peaks and fragmentation", fit.verdict == Verdict::Fits, evidence)
}
