//! What a rehearsal comes to.

use super::memory::Line;
use super::traffic::{AXES, BESIDES};
use super::{JUDGED_STEPS, Number, compare};
use diag::Finding;

/// What one rank came to, in numbers only, so that it travels between processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RankOutcome {
    pub losses: Vec<f64>,
    /// By row of the ownership table.
    pub gradients: Vec<f64>,
    pub weights: Vec<f64>,
    /// Bytes of a step by axis, and of calls besides.
    pub listed: Vec<u64>,
    pub besides: Vec<u64>,
    /// Bytes this rank brings to sums over the tensor axis.
    pub partial: u64,
    /// By line, counted and held.
    pub counted: Vec<u64>,
    pub held: Vec<u64>,
}

impl RankOutcome {
    /// End to end, each behind its length. Counts of bytes are exact up to 2^53.
    #[cfg(feature = "mpi")]
    pub fn encode(&self) -> Vec<f64> {
        let counts = |v: &[u64]| v.iter().map(|n| *n as f64).collect::<Vec<_>>();
        let all = [
            self.losses.clone(),
            self.gradients.clone(),
            self.weights.clone(),
            counts(&self.listed),
            counts(&self.besides),
            counts(&[self.partial]),
            counts(&self.counted),
            counts(&self.held),
        ];
        all.into_iter().flat_map(|part| std::iter::once(part.len() as f64).chain(part)).collect()
    }

    #[cfg(feature = "mpi")]
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
            listed: counts(next()),
            besides: counts(next()),
            partial: counts(next()).first().copied().unwrap_or(0),
            counted: counts(next()),
            held: counts(next()),
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

/// Bytes of a step on an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The axis.
    pub axis: &'static str,
    /// What the layout's exchanges come to.
    pub predicted: u64,
    /// What was put into calls.
    pub moved: u64,
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
    pub traffic: Vec<Moves>,
    /// Bytes of a step in calls the layout does not list: name, why, bytes.
    pub besides: Vec<(&'static str, &'static str, u64)>,
    /// For every rank and line, bytes counted and held.
    pub memory: Vec<(usize, Line, u64, u64)>,
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
pub(super) fn endings(results: &[(usize, Option<Finding>)]) -> Vec<Ending> {
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
    pub predicted: Vec<u64>,
    pub paths: Vec<String>,
    pub number: Number,
}

/// Joins what the ranks came to.
pub(super) fn join(ranks: &[RankOutcome], expected: Expected, seconds: f64) -> Rehearsal {
    let Expected { losses: one, predicted, paths, number, .. } = expected;
    let sum = |pick: fn(&RankOutcome) -> &Vec<u64>, at: usize| ranks.iter().map(|r| pick(r)[at]).sum::<u64>();
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
    let partial: u64 = ranks.iter().map(|r| r.partial).sum();
    let moves = AXES.iter().enumerate().map(|(at, &axis)| Moves {
        axis,
        predicted: predicted[at] + if axis == "tp" { partial } else { 0 },
        moved: sum(|r| &r.listed, at),
    });
    let traffic = moves.filter(|m| m.predicted > 0 || m.moved > 0).collect();
    let besides = BESIDES.iter().enumerate().map(|(at, (name, why))| (*name, *why, sum(|r| &r.besides, at)));
    let lines = |(rank, r): (usize, &RankOutcome)| {
        let line = |(at, (_, line)): (usize, &(&str, Line))| (rank, *line, r.counted[at], r.held[at]);
        Line::ALL.iter().enumerate().map(line).collect::<Vec<_>>()
    };
    Rehearsal {
        one,
        many,
        parity,
        traffic,
        besides: besides.filter(|(_, _, bytes)| *bytes > 0).collect(),
        memory: ranks.iter().enumerate().flat_map(lines).collect(),
        load: expected.load.into_iter().enumerate().map(|(layer, tokens)| Load { layer, tokens }).collect(),
        seconds: (expected.seconds, seconds),
    }
}
