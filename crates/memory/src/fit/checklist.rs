//! The production checklist: what must be true of an estimate before a launch trusts it, each
//! item with its evidence. Every item can fail; what an item cannot find out it does not hold.

use super::{Entry, Fit, RankClass, Verdict, dispatch_bytes, outside};
use crate::serving::{Item as Served, ServeRequest, Serving};
use case::Case;
use layout::Recompute;
use layout::ownership::Owner;
use ledger::Ledger;
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
        replicated(case, worst),
        optimizers(case, worst),
        routing(case, worst),
        recompute(case, fit),
        serving(case),
        headroom(fit),
    ]
}

fn item(what: &'static str, holds: bool, evidence: String) -> Item {
    Item { what, holds, evidence }
}

/// What is priced is what the recipe says: no seam gives a part up, and gradients are in the format
/// that was asked for.
fn degrees(case: &Case) -> Item {
    let (layout, options) = (&case.layout, &case.options);
    let features: Vec<_> = case.recipe.features.listed().iter().filter(|(_, on)| *on).map(|(f, _)| f.name()).collect();
    let features = if features.is_empty() { "none".to_string() } else { features.join(", ") };
    let given_up: Vec<String> = case
        .seams
        .iter()
        .filter(|seam| seam.gives_up)
        .map(|seam| format!("{} runs as {}", seam.wanted, seam.runs))
        .collect();
    let priced = Ledger::of_case(case).map(|ledger| ledger.gradients());
    let gradients = options.state.gradients;
    let is_said = priced.as_ref().is_ok_and(|priced| *priced == gradients);
    let mut evidence = format!(
        "{}, weights {}, gradients {gradients}, features: {features}",
        layout.words(case.recipe.uses(Mixer::Moe)).join(" "),
        case.recipe.precision.weights,
    );
    if let Some(priced) = priced.ok().filter(|_| !is_said) {
        evidence += &format!("; gradients are priced in {priced}");
    }
    if !given_up.is_empty() {
        evidence += &format!("; not the recipe's: {}", given_up.join(", "));
    }
    item("real degrees, precision and features", is_said && given_up.is_empty(), evidence)
}

fn replicated(case: &Case, worst: &RankClass) -> Item {
    let bytes = worst.line(Entry::Ledger(Line::ReplicatedParams));
    let elements: u64 =
        case.table.owned(&case.layout, worst.stage, Owner::Replicated).map(|(_, elements)| elements).sum();
    let evidence = format!("{} on a line of their own, for {} parameters", Bytes(bytes), units::count(elements));
    item("replicated tensors visible", (bytes > 0) == (elements > 0), evidence)
}

fn optimizers(case: &Case, worst: &RankClass) -> Item {
    let (muon, adam) =
        (worst.line(Entry::Ledger(Line::MatrixOptimizer)), worst.line(Entry::Ledger(Line::OtherOptimizer)));
    let stepped = |optimizer: Optimizer| {
        let rows = case.table.rows.iter().filter(|row| row.tensor.optimizer == optimizer);
        rows.map(|row| case.table.copies_on_stage(row, worst.stage)).sum::<u64>() > 0
    };
    // State that is on the host is on no line of the device.
    let has_adam = adam > 0 || case.options.offload > 0.0;
    let holds = stepped(Optimizer::Muon) == (muon > 0) && (!stepped(Optimizer::AdamW) || has_adam);
    item("Muon and AdamW apart", holds, format!("Muon {}, AdamW and main weights {}", Bytes(muon), Bytes(adam)))
}

fn routing(case: &Case, worst: &RankClass) -> Item {
    let bytes = worst.line(Entry::Ledger(Line::RoutingScratch));
    let layer = super::routing(case, worst.stage);
    let needed = case.layout.ep.splits() && layer.is_some();
    let evidence = match layer {
        Some(layer) => format!("{} at the peak; one layer's buffers take {}", Bytes(bytes), layer.held.total),
        None => "the stage has no experts".to_string(),
    };
    item("dispatch and combine scratch whenever ep is on", !needed || bytes > 0, evidence)
}

/// The policy in force is compared with computing nothing again, or with computing everything again:
/// an estimate that does not move with the policy does not know of it.
fn recompute(case: &Case, fit: &Fit) -> Item {
    let what = "activations under the recompute policy in force";
    let kept = |fit: &Fit| {
        let worst = fit.worst();
        [Line::Activations, Line::FeatureActivations, Line::ExpertInputs, Line::RoutingScratch]
            .map(|line| worst.line(Entry::Ledger(line)))
            .iter()
            .sum::<u64>()
    };
    let (is_on, other) = match &case.layout.recompute {
        Recompute::None => (false, Recompute::Full),
        _ => (true, Recompute::None),
    };
    let words = other.to_string();
    let changed = case.with(|asked| asked.layout.recompute = Some(other));
    let Some(beside) = changed.ok().and_then(|case| Fit::price(&case, fit.margin).ok()) else {
        return item(what, false, format!("--recompute {words}, to compare with, has no price"));
    };
    let (here, there) = (kept(fit), kept(&beside));
    let evidence = format!("{} kept under {}, {} under {words}", Bytes(here), case.layout.recompute, Bytes(there));
    item(what, if is_on { here < there } else { here > there }, evidence)
}

/// Serving this layout: one sequence of the training length must find room beside the weights.
fn serving(case: &Case) -> Item {
    let what = "key/value cache for serving, not assumed covered";
    let request = ServeRequest::usual(1, case.recipe.sequence);
    let device = &case.on().device;
    let dispatch = dispatch_bytes(&case.recipe, &case.layout, &case.options);
    let outside = outside(device, &case.layout, case.recipe.uses(Mixer::Moe), dispatch);
    let reserve: u64 = outside.iter().map(|held| held.bytes).sum();
    let mut worst: Option<(u64, u64)> = None;
    for stage in 0..case.layout.pp.get() as usize {
        let serving = Serving::new(&case.recipe, &case.layout, &case.table, stage);
        let Some(price) = serving.ok().and_then(|serving| serving.price(&request).ok()) else {
            return item(what, false, format!("stage {stage} cannot be priced for serving"));
        };
        let cache =
            price.of(Served::KvCache).0 + price.of(Served::RecurrentState).0 + price.of(Served::RecurrentTail).0;
        worst = worst.max(Some((price.total.0, cache)));
    }
    let (total, cache) = worst.unwrap_or_default();
    let evidence = format!(
        "no line above holds any: a sequence of {} tokens takes {} of cache and state, {} with weights (`fit --serve`)",
        request.context,
        Bytes(cache),
        Bytes(total)
    );
    item(what, total + reserve <= device.visible_bytes(), evidence)
}

fn headroom(fit: &Fit) -> Item {
    let left = fit.worst().headroom;
    let evidence = match u64::try_from(left) {
        Ok(left) => format!("{} left, {} asked for", Bytes(left), fit.margin.headroom),
        Err(_) => format!("{} over the device", Bytes(left.unsigned_abs())),
    };
    item("headroom for compile peaks and fragmentation", fit.verdict == Verdict::Fits, evidence)
}
