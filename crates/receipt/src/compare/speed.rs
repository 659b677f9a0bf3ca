//! Step times and tokens a second of two sides, with the noise there is.

use super::Subject;
use crate::Receipt;
use crate::statistics::{Summary, Welch, welch};
use evidence::MemoryKind;
use serde::Serialize;
use units::median;

/// What the noise was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Medians of several runs a side.
    Runs,
    /// Steps of one run a side: how steady it was, not how far another start of it would be off.
    Steps,
}

/// Throughput of two sides.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// What each value below is.
    pub basis: Basis,
    /// Seconds of a step behind the warm-up.
    pub old: Summary,
    /// The same of the second side.
    pub new: Summary,
    /// Relative change of the median seconds of a step; none where steps have other numbers of tokens.
    pub change: Option<f64>,
    /// Tokens a second of all devices, median.
    pub tokens_per_second: Option<(f64, f64)>,
    /// Whether the means differ; none with too few values.
    pub test: Option<Welch>,
}

impl Speed {
    /// Relative change of tokens a second.
    pub fn throughput_change(&self) -> Option<f64> {
        self.tokens_per_second.map(|(old, new)| new / old - 1.0)
    }
}

fn steps(receipt: &Receipt) -> Vec<f64> {
    receipt.evidence.steps.iter().filter(|step| !step.warm_up).filter_map(|step| step.seconds).collect()
}

/// Tokens a second: as the engine said, or from the steps.
fn tokens_per_second(subject: &Subject) -> Option<f64> {
    let evidence = &subject.receipt.evidence;
    let said: Vec<f64> = evidence.steps.iter().filter(|s| !s.warm_up).filter_map(|s| s.tokens_per_second).collect();
    median(&said).or_else(|| Some(subject.tokens()? as f64 / evidence.step_seconds()?))
}

/// Compares speed; none where a side recorded no step behind its warm-up.
pub fn speed(old: &[Subject], new: &[Subject]) -> Option<Speed> {
    let medians = |side: &[Subject]| side.iter().filter_map(|s| s.receipt.evidence.step_seconds()).collect::<Vec<_>>();
    let (a, b) = (medians(old), medians(new));
    let several = a.len() > 1 && b.len() > 1;
    let all = |side: &[Subject]| side.iter().flat_map(|s| steps(s.receipt)).collect::<Vec<_>>();
    let (basis, a, b) = if several { (Basis::Runs, a, b) } else { (Basis::Steps, all(old), all(new)) };
    let tokens = |side: &[Subject]| side.first().and_then(Subject::tokens);
    let alike = tokens(old) == tokens(new);
    // A step of another number of tokens takes another time; per token they may be tested.
    let per = |side: &[Subject]| if alike { 1.0 } else { tokens(side).unwrap_or(1) as f64 };
    let scaled = |values: &[f64], by: f64| values.iter().map(|v| v / by).collect::<Vec<_>>();
    let test = (alike || tokens(old).is_some() && tokens(new).is_some())
        .then(|| welch(&scaled(&a, per(old)), &scaled(&b, per(new))))
        .flatten();
    let rates = |side: &[Subject]| median(&side.iter().filter_map(tokens_per_second).collect::<Vec<_>>());
    let (old_summary, new_summary) = (Summary::of(&a)?, Summary::of(&b)?);
    Some(Speed {
        basis,
        old: old_summary,
        new: new_summary,
        change: alike.then(|| new_summary.median / old_summary.median - 1.0),
        tokens_per_second: rates(old).zip(rates(new)),
        test,
    })
}

/// The largest peak of a run: allocated if it was recorded, else reserved, else of the whole device.
pub fn peak_of(receipt: &Receipt) -> Option<(MemoryKind, u64)> {
    let kinds = [MemoryKind::AllocatedPeak, MemoryKind::ReservedPeak, MemoryKind::DeviceUsedPeak];
    kinds.into_iter().find_map(|kind| Some((kind, receipt.evidence.most(kind, None)?.bytes)))
}
