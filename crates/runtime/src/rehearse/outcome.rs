//! What a rehearsal comes to.

use super::{JUDGED_STEPS, Number, compare};
use crate::report::{AxisLine, MemoryLine};
use diag::Finding;
use memory::ledger::shardwright::Held;

/// What one rank came to, in numbers only, so that it travels between processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RankOutcome {
    pub losses: Vec<f64>,
    /// By row of the ownership table.
    pub gradients: Vec<f64>,
    pub weights: Vec<f64>,
    /// Bytes of a step by axis, as [`crate::report::moved`] has them.
    pub moved: Vec<u64>,
    pub held: Held,
}

impl RankOutcome {
    /// End to end, each behind its length. Counts of bytes are exact up to 2^53.
    pub fn encode(&self) -> Vec<f64> {
        let counts = |v: &[u64]| v.iter().map(|n| *n as f64).collect::<Vec<_>>();
        let all = [
            self.losses.clone(),
            self.gradients.clone(),
            self.weights.clone(),
            counts(&self.moved),
            counts(&[self.held.weights, self.held.gradients, self.held.optimizer, self.held.saved]),
        ];
        all.into_iter().flat_map(|part| std::iter::once(part.len() as f64).chain(part)).collect()
    }

    pub fn decode(mut values: &[f64]) -> RankOutcome {
        let mut next = || {
            let (len, rest) = values.split_first().map_or((0, &[][..]), |(n, rest)| (*n as usize, rest));
            let (part, rest) = rest.split_at(len);
            values = rest;
            part.to_vec()
        };
        let counts = |v: Vec<f64>| v.into_iter().map(|n| n as u64).collect::<Vec<_>>();
        RankOutcome {
            losses: next(),
            gradients: next(),
            weights: next(),
            moved: counts(next()),
            held: match counts(next())[..] {
                [weights, gradients, optimizer, saved] => Held { weights, gradients, optimizer, saved },
                _ => Held::default(),
            },
        }
    }
}

/// A tensor and how far it is off.
#[derive(Clone, Debug, PartialEq)]
pub struct Worst {
    /// Its path.
    pub path: String,
    /// The largest difference, relative to the tensor's largest value.
    pub difference: f64,
}

/// How far the split run is from one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Parity {
    /// The largest that passes.
    pub tolerance: f64,
    /// Steps whose losses and weights are judged.
    pub steps: u64,
    /// Largest relative difference of the judged losses.
    pub loss: f64,
    /// The same over all steps: how rounding grew.
    pub drift: f64,
    /// Tensors by how far the first step's gradient is off, worst first.
    pub gradients: Vec<Worst>,
    /// Tensors by how far the weights are off behind the judged steps, worst first.
    pub weights: Vec<Worst>,
}

impl Parity {
    /// Largest difference of a gradient.
    pub fn gradient(&self) -> f64 {
        self.gradients.first().map_or(0.0, |w| w.difference)
    }

    /// Largest difference of a weight.
    pub fn weight(&self) -> f64 {
        self.weights.first().map_or(0.0, |w| w.difference)
    }

    /// Whether everything is within the tolerance.
    pub fn passes(&self) -> bool {
        [self.loss, self.gradient(), self.weight()].iter().all(|d| *d <= self.tolerance)
    }
}

/// Tokens that chose each expert of a layer, over all steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Which of the model's expert layers, in the order of depth.
    pub layer: usize,
    /// By expert.
    pub tokens: Vec<u64>,
}

/// A rehearsal that ran to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Rehearsal {
    /// Losses on one rank.
    pub one: Vec<f64>,
    /// Losses on all ranks.
    pub many: Vec<f64>,
    /// How far they are apart.
    pub parity: Parity,
    /// Bytes of a step by axis.
    pub traffic: Vec<AxisLine>,
    /// For every rank and line, bytes predicted and held.
    pub memory: Vec<MemoryLine>,
    /// Router load.
    pub load: Vec<Load>,
    /// Wall time on one rank and on all.
    pub seconds: (f64, f64),
}

/// How the run ended on some ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// The ranks.
    pub ranks: Vec<usize>,
    /// Why.
    pub finding: Finding,
}

/// What a rehearsal comes to.
pub enum Outcome {
    /// It ran.
    Ran(Box<Rehearsal>),
    /// It ended early: why, by rank, and after how many seconds.
    Ended(Vec<Ending>, f64),
    /// Another process reports.
    Elsewhere,
}

/// Ranks that ended alike, together.
pub fn endings(results: &[(usize, Option<Finding>)]) -> Vec<Ending> {
    let mut out: Vec<Ending> = Vec::new();
    for (rank, finding) in results {
        let Some(finding) = finding else { continue };
        match out.iter_mut().find(|e| e.finding == *finding) {
            Some(ending) => ending.ranks.push(*rank),
            None => out.push(Ending { ranks: vec![*rank], finding: finding.clone() }),
        }
    }
    out
}

/// What one rank is compared with, besides tensors.
pub(super) struct Expected {
    pub losses: Vec<f64>,
    pub seconds: f64,
    pub load: Vec<Vec<u64>>,
    pub traffic: Vec<AxisLine>,
    pub memory: Vec<MemoryLine>,
    pub paths: Vec<String>,
    pub number: Number,
}

/// Joins what the ranks came to.
pub(super) fn join(ranks: &[RankOutcome], expected: Expected, seconds: f64) -> Rehearsal {
    let Expected { losses: one, traffic, memory, paths, number, .. } = expected;
    let worst = |pick: fn(&RankOutcome) -> &Vec<f64>| {
        let of = |at: usize| ranks.iter().map(|r| pick(r)[at]).fold(0.0, f64::max);
        let mut all: Vec<Worst> =
            paths.iter().enumerate().map(|(at, p)| Worst { path: p.clone(), difference: of(at) }).collect();
        all.sort_by(|a, b| b.difference.total_cmp(&a.difference));
        all
    };
    let many = ranks[0].losses.clone();
    let judged = one.len().min(JUDGED_STEPS as usize);
    let parity = Parity {
        tolerance: number.tolerance(),
        steps: judged as u64,
        loss: ranks.iter().map(|r| compare::curves(&one[..judged], &r.losses[..judged])).fold(0.0, f64::max),
        drift: compare::curves(&one, &many),
        gradients: worst(|r| &r.gradients),
        weights: worst(|r| &r.weights),
    };
    Rehearsal {
        one,
        many,
        parity,
        traffic,
        memory,
        load: expected.load.into_iter().enumerate().map(|(layer, tokens)| Load { layer, tokens }).collect(),
        seconds: (expected.seconds, seconds),
    }
}
