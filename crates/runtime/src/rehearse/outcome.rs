//! Results of a rehearsal.

use super::{JUDGED_STEPS, Number, compare};
use crate::report::{AxisLine, MemoryLine, PhaseLine, StepHeld};
use crate::stats::Norm;
use diag::Finding;
use layout::activations::Dealing;

/// Results of one rank, in numbers only, so that they can be sent between processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RankOutcome {
    pub losses: Vec<f64>,
    /// Differences from the run on one rank, by row of the ownership table.
    pub gradients: Vec<f64>,
    pub weights: Vec<f64>,
    /// Bytes of the first step by axis, in the order of [`crate::report::AXES`], and where tokens were
    /// routed in it.
    pub moved: Vec<u64>,
    pub routing: Dealing,
    /// Of the step in which this rank kept the most for backward.
    pub held: StepHeld,
    /// What [`crate::stats`] counted, step after step.
    pub counted: Vec<f64>,
}

impl RankOutcome {
    /// All numbers in one list, each part after its length. Counts of bytes are exact up to 2^53.
    pub fn encode(&self) -> Vec<f64> {
        let counts = |v: &[u64]| v.iter().map(|n| *n as f64).collect::<Vec<_>>();
        let all = [
            self.losses.clone(),
            self.gradients.clone(),
            self.weights.clone(),
            counts(&self.moved),
            counts(&travel::dealing(&self.routing)),
            counts(&travel::phases(&self.held.phases)),
            counts(&travel::dealing(&self.held.routing)),
            self.counted.clone(),
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
            routing: travel::to_dealing(&counts(next())),
            held: StepHeld { phases: travel::to_phases(&counts(next())), routing: travel::to_dealing(&counts(next())) },
            counted: next(),
        }
    }
}

/// Encoding of what was held and of routing as counts, and back.
mod travel {
    use crate::report::HeldInPhase;
    use layout::activations::{Dealing, Routed};
    use ledger::shardwright::{Held, Phase};

    /// For each phase its number, its lines, and whether there is a peak and which.
    pub fn phases(phases: &[HeldInPhase]) -> Vec<u64> {
        let one = |p: &HeldInPhase| {
            let Held { weights, gradients, sums, optimizer, saved } = p.held;
            let peak = [u64::from(p.peak.is_some()), p.peak.unwrap_or(0)];
            [p.phase as u64, weights, gradients, sums, optimizer, saved, peak[0], peak[1]]
        };
        phases.iter().flat_map(one).collect()
    }

    pub fn to_phases(counts: &[u64]) -> Vec<HeldInPhase> {
        let one = |c: &[u64; 8]| {
            let [phase, weights, gradients, sums, optimizer, saved, has_peak, peak] = *c;
            let (_, phase) = Phase::ALL.get(phase as usize)?;
            let held = Held { weights, gradients, sums, optimizer, saved };
            Some(HeldInPhase { phase: *phase, held, peak: (has_peak == 1).then_some(peak) })
        };
        counts.as_chunks::<8>().0.iter().filter_map(one).collect()
    }

    /// For each block its microbatch, its chunk and its rows.
    pub fn dealing(dealing: &Dealing) -> Vec<u64> {
        let pass = |((microbatch, chunk), blocks): (&(u32, u32), &Vec<Routed>)| {
            let at = [u64::from(*microbatch), u64::from(*chunk)];
            blocks.iter().map(move |b| [at[0], at[1], b.sent, b.arrived, b.came]).collect::<Vec<_>>()
        };
        dealing.0.iter().flat_map(pass).flatten().collect()
    }

    pub fn to_dealing(counts: &[u64]) -> Dealing {
        let mut out = Dealing::default();
        for [microbatch, chunk, sent, arrived, came] in counts.as_chunks::<5>().0 {
            let pass = out.0.entry((*microbatch as u32, *chunk as u32)).or_default();
            pass.push(Routed { sent: *sent, arrived: *arrived, came: *came });
        }
        out
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_travels_comes_back() {
            let held = Held { weights: 1, gradients: 2, sums: 3, optimizer: 4, saved: 5 };
            let peaks = [Some(7), None, Some(0), Some(9)];
            let all: Vec<_> = Phase::ALL.iter().zip(peaks).map(|((_, phase), peak)| (*phase, peak)).collect();
            let all: Vec<_> = all.into_iter().map(|(phase, peak)| HeldInPhase { phase, held, peak }).collect();
            assert_eq!(to_phases(&phases(&all)), all);
            let rows = |sent| Routed { sent, arrived: sent + 1, came: 2 * sent };
            let dealt = Dealing([((0, 1), vec![rows(3), rows(0)]), ((2, 0), vec![rows(4)])].into());
            assert_eq!(to_dealing(&dealing(&dealt)), dealt);
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
    /// The largest difference that passes.
    pub tolerance: f64,
    /// Steps whose losses and weights are judged.
    pub steps: u64,
    /// Largest relative difference of the judged losses.
    pub loss: f64,
    /// The same over all steps, judged or not: how rounding grew.
    pub drift: f64,
    /// Tensors by how far the first step's gradient is off, worst first.
    pub gradients: Vec<Worst>,
    /// Tensors by how far the weights are off after the judged steps, worst first.
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
    /// Index among the model's expert layers, in the order of depth.
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
    /// For every rank and line, bytes predicted and held in the step in which it kept the most.
    pub memory: Vec<MemoryLine>,
    /// The phases of that step on every rank.
    pub phases: Vec<PhaseLine>,
    /// Router load.
    pub load: Vec<Load>,
    /// Norms on one rank and on all, if they were asked for.
    pub norms: (Vec<Norm>, Vec<Norm>),
    /// Wall time on one rank and on all.
    pub seconds: (f64, f64),
}

/// How the run ended on some ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Ranks with this ending, ascending.
    pub ranks: Vec<usize>,
    /// Why it ended there.
    pub finding: Finding,
}

/// How a rehearsal ended.
pub enum Outcome {
    /// It ran to its end.
    Ran(Box<Rehearsal>),
    /// It ended early: why, by rank, and after how many seconds.
    Ended(Vec<Ending>, f64),
    /// This process is not the one that reports.
    Elsewhere,
}

/// Groups ranks that ended with the same finding.
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

/// What the split run is compared with, besides tensors.
pub(super) struct Expected {
    pub losses: Vec<f64>,
    pub seconds: f64,
    pub load: Vec<Vec<u64>>,
    pub traffic: Vec<AxisLine>,
    pub memory: Vec<MemoryLine>,
    pub phases: Vec<PhaseLine>,
    pub paths: Vec<String>,
    pub norms: (Vec<Norm>, Vec<Norm>),
    pub number: Number,
}

/// Combines the results of all ranks into one.
pub(super) fn join(ranks: &[RankOutcome], expected: Expected, seconds: f64) -> Rehearsal {
    let Expected { losses: one, traffic, memory, phases, paths, norms, number, .. } = expected;
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
        phases,
        load: expected.load.into_iter().enumerate().map(|(layer, tokens)| Load { layer, tokens }).collect(),
        norms,
        seconds: (expected.seconds, seconds),
    }
}
