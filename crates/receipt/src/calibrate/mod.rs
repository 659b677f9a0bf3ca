//! A device file of one's own from receipts: how much longer or shorter each kind of work takes than the shipped
//! curves say.
//!
//! Seconds of steps and of kernels are priced again with every kind of work a little slower, which says how much of
//! each figure it is; the factors are those that explain the receipts best, drawn towards one by as much as nobody
//! knows better, and a receipt that nothing explains does not bend the rest. What no receipt says anything of stays
//! as it was. Memory is counted and not fitted: only what lies outside the allocator is measured again.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

mod outside;
mod samples;
mod solve;

pub use outside::{Outside, headrooms, outside};
pub use samples::{Figure, Sample, Unusable, samples};

use case::Case;
use hardware::{Calibration, Factor, RANGE, Term};
use solve::{Problem, solve};

/// Spread of figures around a price that is right, as a share.
const NOISE: f64 = 0.05;
/// Spread of factors around one before anything is seen: what shipped curves are off by from device to device.
const PRIOR: f64 = 0.15;
/// The same of hosts, which differ by more.
const HOST_PRIOR: f64 = 0.5;
/// How much slower a kind of work is made to see what of a figure it is.
const NUDGE: f64 = 0.05;
/// Share of a figure from which on it says something of a kind of work.
const ANCHOR: f64 = 0.05;
/// Figures that have to say something of a kind of work before it is moved.
const ANCHORS: usize = 2;
/// Times that figures are priced again around the factors found so far.
const ROUNDS: usize = 5;

/// What receipts come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// Kinds of work that were moved.
    pub factors: Vec<Factor>,
    /// Kinds of work that stay as they were, and how many figures say something of them.
    pub kept: Vec<(Term, usize)>,
    /// Every figure before and after; after, each by factors that it was left out of.
    pub judged: Vec<Judged>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Its receipt.
    pub receipt: String,
    /// What was measured.
    pub figure: Figure,
    pub measured: f64,
    pub before: f64,
    pub after: f64,
}

impl Judged {
    /// Errors before and after, as shares of what was measured.
    pub fn errors(&self) -> (f64, f64) {
        let error = |priced: f64| (priced / self.measured - 1.0).abs();
        (error(self.before), error(self.after))
    }
}

/// Mean errors before and after.
pub fn means(judged: &[Judged]) -> (f64, f64) {
    let count = judged.len().max(1) as f64;
    let sum = judged.iter().map(Judged::errors).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    (sum.0 / count, sum.1 / count)
}

/// The factors that explain samples best.
pub fn fit(samples: &[Sample]) -> Fitted {
    let plain: Vec<f64> = samples.iter().map(|sample| sample.priced(&[])).collect();
    let all: Vec<usize> = (0..Term::ALL.len()).collect();
    // The share of each figure that each kind of work is.
    let shares = slopes(samples, &[], &all, &plain);
    let anchors = |term: usize| shares.iter().filter(|share| share[term] >= ANCHOR).count();
    let (moved, kept): (Vec<usize>, Vec<usize>) = all.into_iter().partition(|term| anchors(*term) >= ANCHORS);
    let mut logs = vec![0.0; moved.len()];
    let mut problem = Problem::default();
    for _ in 0..ROUNDS {
        let factors = named(&moved, &logs);
        let here: Vec<f64> = samples.iter().map(|sample| sample.priced(&factors)).collect();
        let slopes = slopes(samples, &factors, &moved, &here);
        let off = samples.iter().zip(&here).map(|(sample, priced)| (priced / sample.measured).ln()).collect();
        let priors = moved.iter().map(|term| prior(*term)).collect();
        problem = Problem { slopes, off, at: logs.clone(), priors, noise: NOISE };
        let next = solve(&problem, None);
        let step = next.iter().zip(&logs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        logs = next;
        if step < 1e-4 {
            break;
        }
    }
    let judged = samples.iter().enumerate().map(|(i, sample)| {
        let without = solve(&problem, Some(i));
        Judged {
            receipt: sample.receipt.clone(),
            figure: sample.figure,
            measured: sample.measured,
            before: plain[i],
            after: sample.priced(&named(&moved, &without)),
        }
    });
    let factors = named(&moved, &logs).into_iter().zip(&moved).map(|((term, seconds), index)| Factor {
        term,
        seconds,
        receipts: anchors(*index) as u64,
    });
    Fitted {
        judged: judged.collect(),
        factors: factors.collect(),
        kept: kept.into_iter().map(|term| (Term::ALL[term].1, anchors(term))).collect(),
    }
}

/// Prices samples with factors found elsewhere.
pub fn judge(samples: &[Sample], factors: &[Factor]) -> Vec<Judged> {
    let pairs: Vec<(Term, f64)> = factors.iter().map(|factor| (factor.term, factor.seconds)).collect();
    let judged = |sample: &Sample| Judged {
        receipt: sample.receipt.clone(),
        figure: sample.figure,
        measured: sample.measured,
        before: sample.priced(&[]),
        after: sample.priced(&pairs),
    };
    samples.iter().map(judged).collect()
}

fn prior(term: usize) -> f64 {
    if Term::ALL[term].1 == Term::Host { HOST_PRIOR } else { PRIOR }
}

fn named(moved: &[usize], logs: &[f64]) -> Vec<(Term, f64)> {
    let factor = |log: f64| log.exp().clamp(RANGE.0, RANGE.1);
    moved.iter().zip(logs).map(|(term, log)| (Term::ALL[*term].1, factor(*log))).collect()
}

/// By how much the logarithm of each figure grows with the logarithm of each factor.
fn slopes(samples: &[Sample], factors: &[(Term, f64)], terms: &[usize], here: &[f64]) -> Vec<Vec<f64>> {
    let slope = |sample: &Sample, priced: f64, term: Term| {
        let mut nudged = factors.to_vec();
        match nudged.iter_mut().find(|(known, _)| *known == term) {
            Some((_, factor)) => *factor *= 1.0 + NUDGE,
            None => nudged.push((term, 1.0 + NUDGE)),
        }
        (sample.priced(&nudged) / priced).ln() / (1.0 + NUDGE).ln()
    };
    let row = |(sample, priced): (&Sample, &f64)| {
        terms.iter().map(|term| slope(sample, *priced, Term::ALL[*term].1)).collect()
    };
    samples.iter().zip(here).map(row).collect()
}

/// A job on its device with other factors.
fn scaled(case: &Case, factors: &[(Term, f64)]) -> Case {
    let mut case = case.clone();
    if let Some(cluster) = &mut case.cluster {
        let terms = factors.iter().map(|(term, seconds)| Factor { term: *term, seconds: *seconds, receipts: 0 });
        cluster.device.calibration = (!factors.is_empty()).then(|| Calibration {
            receipts: 0,
            error_before: 0.0,
            error_after: 0.0,
            source: String::new(),
            terms: terms.collect(),
            headrooms: Vec::new(),
        });
    }
    case
}
