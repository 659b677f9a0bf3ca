//! Whether two runs learned the same, in three tiers: bit for bit, within the order of accumulation, statistically.
//!
//! The second tier's tolerance. A step's loss is a mean over T tokens. Reordering a sum of n terms moves it by about
//! √n roundings of the format it runs in (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section
//! 4.2: the probabilistic bound). What a block hands on is rounded to the compute format, with unit roundoff u, twice
//! a block (its product and the residual sum), so a token's loss moves by about u·√(2B) with B blocks, and the mean of
//! T tokens by that over √T. Sums themselves run in 32 bits over H terms, the model's width: 2⁻²⁴·√H. We allow four of
//! both together. Each update carries the difference into the weights, so step s may be s times as far off; beyond
//! [`JUDGED`] steps training amplifies differences by itself, and this tier says nothing.

use super::{Subject, same_seed};
use crate::statistics::{Summary, Welch, welch};
use crate::{Kind, Receipt};
use serde::Serialize;
use std::collections::BTreeMap;

/// Steps over which the order of accumulation is judged.
pub const JUDGED: usize = 10;

/// The last share of the common steps, whose mean stands for where a run arrived.
const LATE: f64 = 0.2;

/// How alike two curves are: the strongest that holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sameness {
    /// Every common step has the same bits.
    Bits,
    /// Every common step prints the same; the log's digits cannot show more.
    Printed {
        /// Significant digits.
        digits: u8,
    },
    /// Apart by no more than another order of summation explains, over the judged steps.
    Order,
    /// Several runs a side, whose late means cannot be told apart.
    Statistically,
    /// Several runs a side, whose late means differ.
    Different,
    /// Apart by more than the order explains, and one run a side says nothing of noise.
    Undecided,
}

/// The first step at which two curves part by more than the order of accumulation explains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parted {
    /// As the engine counts.
    pub step: u64,
    /// Its losses.
    pub old: f64,
    /// The second run's.
    pub new: f64,
    /// How far apart they may be there, relative.
    pub allowed: f64,
}

/// Losses of two sides.
#[derive(Clone, Debug, Serialize)]
pub struct Losses {
    /// Steps that both first runs have.
    pub steps: usize,
    /// Significant digits that the coarser source prints; none where losses were read as they were held.
    pub digits: Option<u8>,
    /// The largest relative difference of a common step.
    pub largest: f64,
    /// Where they part.
    pub parted: Option<Parted>,
    /// Mean losses of the last fifth of the common steps, run by run.
    pub late: Option<(Summary, Summary)>,
    /// Whether those differ; none with fewer than two runs a side.
    pub test: Option<Welch>,
    /// The tier.
    pub same: Sameness,
    /// The seeds are known to differ, so that only the third tier can hold.
    pub other_seed: bool,
}

/// Losses by step; of a step that ran twice, the later run's.
fn curve(receipt: &Receipt) -> BTreeMap<u64, f64> {
    receipt.evidence.steps.iter().filter_map(|step| Some((step.number, step.loss?))).collect()
}

/// Significant digits that a run's losses were printed with.
fn digits(receipt: &Receipt) -> Option<u8> {
    let used = receipt.evidence.steps.iter().filter(|step| step.loss.is_some()).map(|step| step.source);
    used.filter_map(|source| receipt.evidence.sources.get(source)?.digits.get("loss").copied()).min()
}

/// Half a unit of the last printed digit, relative to the value, at most.
fn printed(digits: Option<u8>) -> f64 {
    digits.map_or(0.0, |digits| 0.5 * 10f64.powi(1 - i32::from(digits)))
}

/// The unit roundoff of a format by its name: 2⁻ᵖ with p bits of significand, the hidden one included.
fn roundoff(precision: &str) -> f64 {
    match precision {
        p if p.contains("f64") || p.contains("fp64") => 2f64.powi(-53),
        p if p.contains("fp8") || p.contains("mxfp8") || p.contains("e4m3") => 2f64.powi(-4),
        p if p.contains("fp4") => 2f64.powi(-2),
        p if p.contains("bf16") => 2f64.powi(-8),
        p if p.contains("fp16") => 2f64.powi(-11),
        p if p.contains("f32") || p.contains("fp32") => 2f64.powi(-24),
        // Nobody said: what most train in.
        _ => 2f64.powi(-8),
    }
}

/// The relative difference of a first step's loss that another order of accumulation explains.
pub fn tolerance(subject: &Subject) -> f64 {
    let precision = subject.receipt.overlay["precision"].as_str().unwrap_or("bf16");
    // What `rehearse` holds its own losses to: optimizers divide by roots of small numbers, which makes steps of rounding.
    match (subject.receipt.kind, precision) {
        (Kind::Rehearsal, "f64") => return 1e-9,
        (Kind::Rehearsal, "f32") => return 1e-4,
        _ => {}
    }
    let u = roundoff(precision);
    let recipe = subject.case.as_ref().map(|case| &case.source);
    let blocks = recipe.map_or(1, |recipe| recipe.blocks().count()).max(1) as f64;
    let width = recipe.map_or(1.0, |recipe| recipe.hidden as f64);
    let tokens = subject.tokens().unwrap_or(1) as f64;
    4.0 * (u * (2.0 * blocks / tokens).sqrt() + u.min(2f64.powi(-24)) * width.sqrt())
}

fn apart(old: f64, new: f64) -> f64 {
    let difference = (old - new).abs() / old.abs().max(f64::MIN_POSITIVE);
    if difference.is_nan() { f64::INFINITY } else { difference }
}

/// Where two runs part.
pub fn parted(old: &Subject, new: &Subject) -> Option<Parted> {
    let (a, b) = (curve(old.receipt), curve(new.receipt));
    let each = tolerance(old).max(tolerance(new));
    let rounds = printed(digits(old.receipt)) + printed(digits(new.receipt));
    let common = a.iter().filter_map(|(step, loss)| Some((*step, *loss, *b.get(step)?)));
    for (nth, (step, old, new)) in common.enumerate() {
        let allowed = (nth + 1) as f64 * each + rounds;
        if apart(old, new) > allowed {
            return Some(Parted { step, old, new, allowed });
        }
    }
    None
}

/// Compares losses; none where the sides have no step in common.
pub fn losses(old: &[Subject], new: &[Subject]) -> Option<Losses> {
    let (a, b) = (old.first()?, new.first()?);
    let (one, other) = (curve(a.receipt), curve(b.receipt));
    let common: Vec<(u64, f64, f64)> =
        one.iter().filter_map(|(step, loss)| Some((*step, *loss, *other.get(step)?))).collect();
    if common.is_empty() {
        return None;
    }
    let digits = [a, b].iter().filter_map(|s| digits(s.receipt)).min();
    let largest = common.iter().map(|(_, x, y)| apart(*x, *y)).fold(0.0, f64::max);
    let parted = parted(a, b);
    let late = late(old, new);
    let test = late.as_ref().and_then(|(a, b)| welch(a, b));
    let judged: Vec<u64> = common.iter().take(JUDGED).map(|(step, ..)| *step).collect();
    let in_order = parted.is_none_or(|parted| !judged.contains(&parted.step));
    let same = match (largest == 0.0, digits, test) {
        (true, None, _) => Sameness::Bits,
        (true, Some(digits), _) => Sameness::Printed { digits },
        _ if in_order => Sameness::Order,
        (_, _, Some(test)) if test.differs() => Sameness::Different,
        (_, _, Some(_)) => Sameness::Statistically,
        (_, _, None) => Sameness::Undecided,
    };
    Some(Losses {
        steps: common.len(),
        digits,
        largest,
        parted,
        late: late.and_then(|(a, b)| Some((Summary::of(&a)?, Summary::of(&b)?))),
        test,
        same,
        other_seed: same_seed(a.receipt, b.receipt) == Some(false),
    })
}

/// Mean loss of every run over the last steps that all of them have.
fn late(old: &[Subject], new: &[Subject]) -> Option<(Vec<f64>, Vec<f64>)> {
    let curves = |side: &[Subject]| side.iter().map(|s| curve(s.receipt)).collect::<Vec<_>>();
    let (a, b) = (curves(old), curves(new));
    let mut steps: Vec<u64> = a.first()?.keys().copied().collect();
    steps.retain(|step| a.iter().chain(&b).all(|curve| curve.contains_key(step)));
    let count = ((steps.len() as f64 * LATE).ceil() as usize).max(1);
    let window = steps.get(steps.len().checked_sub(count)?..)?;
    let mean = |curve: &BTreeMap<u64, f64>| window.iter().map(|step| curve[step]).sum::<f64>() / count as f64;
    (!window.is_empty()).then(|| (a.iter().map(mean).collect(), b.iter().map(mean).collect()))
}
