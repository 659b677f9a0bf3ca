//! From two runs whose losses part to the first step, the first tensor, and the axis that could explain it. Works on
//! norms of whole logical tensors, so the two runs may be split in any way.
//!
//! It names suspects by what each axis touches. That a suspect is at fault is shown by a rehearsal, or by looking.

mod axes;

pub use axes::{Fault, Suspect};

use crate::Receipt;
use crate::compare::{Parted, Subject, parted};
use diag::{Blame, Finding};
use evidence::{TensorKind, TensorStat};
use serde::Serialize;
use std::collections::BTreeMap;

/// A tensor whose norms differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Apart {
    /// The step.
    pub step: u64,
    /// Its path, as the ownership table or the hook names it.
    pub path: String,
    /// Which tensor of the path.
    pub kind: TensorKind,
    /// Norms.
    pub old: f64,
    /// Of the second run.
    pub new: f64,
    /// Relative difference; infinite where one is no number.
    #[serde(serialize_with = "finite")]
    pub difference: f64,
}

fn finite<S: serde::Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.serialize_str("infinite") }
}

/// The first tensor that is no number in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotANumber {
    /// `first` or `second`.
    pub run: &'static str,
    /// The step.
    pub step: u64,
    /// Its path.
    pub path: String,
    /// Which tensor of the path.
    pub kind: TensorKind,
    /// Elements that are none.
    pub elements: u64,
}

/// What two runs show.
#[derive(Clone, Debug, Serialize)]
pub struct Localised {
    /// Where losses part; none where they do not, or were not recorded.
    pub parted: Option<Parted>,
    /// The first tensor that is off, and the pass it is off in.
    pub first: Option<Apart>,
    /// Tensors of its step and kind that are off, of how many.
    pub off: usize,
    /// Tensors of its step and kind that both runs have.
    pub of: usize,
    /// Of those the first few, in order.
    pub others: Vec<Apart>,
    /// What the first tensor says of where to look.
    pub reading: Option<Fault>,
    /// Axes that could explain it, likeliest first.
    pub suspects: Vec<Suspect>,
    /// A run carries its job, so that axes can be judged at all.
    pub has_job: bool,
    /// The first tensor that is no number, in either run.
    pub not_a_number: Vec<NotANumber>,
    /// How far apart norms may be.
    pub tolerance: f64,
}

/// The order in which to bisect a NaN: each question halves what is left, cheapest first.
pub const NAN_ORDER: [&str; 6] = [
    "the batch: the step again on one rank with the same data; a NaN there too is no split's",
    "forward or backward: an activation that is no number comes before the loss, else look at gradients",
    "the first block in depth whose activation is no number; its input is still one",
    "the format: the same block in bf16 without fp8, then in fp32; loss scale and amax history",
    "the reduction behind it: dtype on both sides, and ranks that contribute nothing (an expert without tokens)",
    "the update: moments, epsilon and learning rate of the step before, where forward was well until then",
];

/// How far apart norms of one tensor may be, by the format products run in: what a rehearsal allows in f64 and f32, and
/// a few roundings of the narrow formats.
fn tolerance(a: &Subject, b: &Subject) -> f64 {
    let of = |subject: &Subject| -> f64 {
        match subject.receipt.overlay["precision"].as_str().unwrap_or("bf16") {
            "f64" | "fp64" => 1e-9,
            "f32" | "fp32" => 1e-4,
            "fp16" => 5e-3,
            p if p.contains("fp8") || p.contains("fp4") => 5e-2,
            _ => 1e-2,
        }
    };
    of(a).max(of(b))
}

/// A run's statistics by step, kind and path, and their order.
struct Norms<'a> {
    order: Vec<&'a TensorStat>,
    by_key: BTreeMap<(u64, TensorKind, &'a str), &'a TensorStat>,
}

impl<'a> Norms<'a> {
    fn of(receipt: &'a Receipt) -> Norms<'a> {
        let mut order: Vec<&TensorStat> = receipt.evidence.tensors.iter().collect();
        // As they were made: activations, their gradients, gradients of weights; weights are the update's.
        let rank = |kind: TensorKind| match kind {
            TensorKind::Activation => 0,
            TensorKind::ActivationGradient => 1,
            TensorKind::Gradient => 2,
            TensorKind::Weight => 3,
        };
        order.sort_by_key(|stat| (stat.step, rank(stat.kind), stat.source, stat.line));
        let by_key = order.iter().map(|stat| ((stat.step, stat.kind, stat.path.as_str()), *stat)).collect();
        Norms { order, by_key }
    }
}

/// Finds where two runs part.
pub fn localise(old: &Receipt, new: &Receipt) -> Result<Localised, Finding> {
    let (a, b) = (Subject::new(old), Subject::new(new));
    let (one, other) = (Norms::of(old), Norms::of(new));
    let parted = parted(&a, &b);
    let tolerance = tolerance(&a, &b);
    let pairs: Vec<Apart> = one.order.iter().filter_map(|stat| pair(stat, &other)).collect();
    if pairs.is_empty() && parted.is_none() {
        return Err(nothing(old, new));
    }
    let is_off = |apart: &&Apart| apart.difference > tolerance;
    let first = pairs.iter().find(is_off).cloned();
    let alike = |apart: &&Apart| first.as_ref().is_some_and(|f| (f.step, f.kind) == (apart.step, apart.kind));
    let of_kind: Vec<&Apart> = pairs.iter().filter(alike).collect();
    let off: Vec<&Apart> = of_kind.iter().copied().filter(is_off).collect();
    let (reading, suspects) = match &first {
        Some(first) => axes::suspects(&a, &b, first, &of_kind, tolerance),
        None => (None, Vec::new()),
    };
    Ok(Localised {
        parted,
        off: off.len(),
        of: of_kind.len(),
        others: off.iter().skip(1).take(4).map(|apart| (*apart).clone()).collect(),
        first,
        has_job: a.case.is_some() || b.case.is_some(),
        reading,
        suspects,
        not_a_number: [("first", &one), ("second", &other)]
            .into_iter()
            .filter_map(|(n, norms)| nan(n, norms))
            .collect(),
        tolerance,
    })
}

fn pair(stat: &TensorStat, other: &Norms) -> Option<Apart> {
    let theirs = other.by_key.get(&(stat.step, stat.kind, stat.path.as_str()))?;
    let difference = (stat.norm - theirs.norm).abs() / stat.norm.abs().max(theirs.norm.abs()).max(f64::MIN_POSITIVE);
    let is_number = !difference.is_nan() && stat.nonfinite == theirs.nonfinite;
    Some(Apart {
        step: stat.step,
        path: stat.path.clone(),
        kind: stat.kind,
        old: stat.norm,
        new: theirs.norm,
        difference: if is_number { difference } else { f64::INFINITY },
    })
}

fn nan(run: &'static str, norms: &Norms) -> Option<NotANumber> {
    let stat = norms.order.iter().find(|stat| stat.nonfinite > 0 || !stat.norm.is_finite())?;
    Some(NotANumber { run, step: stat.step, path: stat.path.clone(), kind: stat.kind, elements: stat.nonfinite })
}

fn nothing(old: &Receipt, new: &Receipt) -> Finding {
    let has = |receipt: &Receipt| !receipt.evidence.tensors.is_empty();
    let message = match (has(old), has(new)) {
        (true, true) => "the losses do not part, and the runs have no tensor of one step in common",
        _ => "the losses do not part, and not both runs recorded norms of tensors",
    };
    let hint = "the hook records norms (docs/receipts.md, Localise); `shardwright rehearse … --stats FILE` too";
    Finding::error("receipt/nothing-parts", Blame::Usage, "localise", message).hint(hint)
}
