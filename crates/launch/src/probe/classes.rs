//! Ranks to become, and what is predicted of each: as probed, and as the job asked for would have it.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

use case::Case;
use cost::Numbers;
use memory::fit::{Fit, RankClass};
use replay::Unmodelled;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Ranks that hold and do the same; the first one is probed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// In the world that is probed.
    pub rank: u64,
    /// The same place in the world that was asked for.
    pub asked_rank: u64,
    pub stage: usize,
    /// Stages whose ranks hold and do the same, this one among them.
    pub stands_for: Vec<usize>,
    pub first_rank: u64,
    pub last_rank: u64,
    pub predicted: Predicted,
    /// Of the job as asked for; none where it is the one probed, or nobody prices it.
    pub asked: Option<Held>,
    /// Lines and sums that the smaller world changes.
    pub correction: Vec<Correction>,
}

/// What the rank is predicted to hold and take by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    #[serde(flatten)]
    pub held: Held,
    pub phases: Vec<Phase>,
    pub kernel_seconds: Option<f64>,
    pub host_seconds: Option<f64>,
    pub step_seconds: Option<f64>,
    /// Why there are no bytes.
    pub unmodelled: Option<String>,
    /// Why there are no seconds.
    pub unpriced: Option<String>,
}

/// Bytes of a rank at its highest point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub params: Option<u64>,
    pub allocated_peak: Option<u64>,
    pub reserved_peak: Option<u64>,
    /// Outside torch's allocator.
    pub outside: Option<u64>,
    pub host: Option<u64>,
    pub lines: BTreeMap<String, u64>,
}

/// Bytes at the end of a phase and at most within it, by the name that ledgers call it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub phase: String,
    pub allocated: u64,
    pub allocated_peak: u64,
    pub reserved: u64,
    pub reserved_peak: u64,
}

/// What the job asked for holds, beside what the probed one does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    pub what: String,
    pub asked: u64,
    pub probed: u64,
    /// To be added to what is measured.
    pub add: i64,
}

/// The rank of a smaller world that stands where a rank of the larger one does: its stage, and its place in the tensor
/// and context groups, which are the ones that vary fastest.
pub fn rank_in(asked: &Case, probed: &Case, rank: u64) -> (usize, u64) {
    let of_a_stage = |case: &Case| case.layout.world / case.layout.pp.get();
    let (many, few) = (of_a_stage(asked), of_a_stage(probed));
    let stage = rank / many;
    (stage as usize, stage * few + rank % many % few)
}

/// The classes of a job, or the one a rank belongs to.
pub fn classes(
    asked: (&Case, &Result<Fit, Unmodelled>),
    probed: (&Case, &Result<Fit, Unmodelled>),
    rank: Option<u64>,
) -> Vec<Class> {
    let (case, fit) = probed;
    let stages = case.layout.pp.get() as usize;
    let Some(rank) = rank else {
        let mut all: Vec<Class> = Vec::new();
        for stage in 0..stages {
            let first = stage as u64 * (asked.0.layout.world / stages as u64);
            let class = class(asked, (case, fit), first);
            match all.iter_mut().find(|known| known.predicted == class.predicted && fit.is_ok()) {
                Some(known) => known.stands_for.push(stage),
                None => all.push(class),
            }
        }
        return all;
    };
    vec![class(asked, probed, rank)]
}

fn class(
    asked: (&Case, &Result<Fit, Unmodelled>),
    probed: (&Case, &Result<Fit, Unmodelled>),
    asked_rank: u64,
) -> Class {
    let (stage, rank) = rank_in(asked.0, probed.0, asked_rank);
    let ranks = asked.0.layout.world / asked.0.layout.pp.get();
    let predicted = predicted(probed, stage);
    let is_changed = asked.0.layout.world != probed.0.layout.world;
    let held = asked.1.as_ref().ok().filter(|_| is_changed).map(|fit| held(&fit.classes[stage]));
    let correction = held.as_ref().map_or_else(Vec::new, |asked| corrections(asked, &predicted.held));
    let first_rank = stage as u64 * ranks;
    let last_rank = first_rank + ranks - 1;
    Class {
        rank,
        asked_rank,
        stage,
        stands_for: vec![stage],
        first_rank,
        last_rank,
        predicted,
        asked: held,
        correction,
    }
}

fn predicted((case, fit): (&Case, &Result<Fit, Unmodelled>), stage: usize) -> Predicted {
    let class = fit.as_ref().map(|fit| &fit.classes[stage]);
    let alone = cost::alone(case, stage, Numbers::stood_in(case, true));
    let seconds = alone.as_ref().ok();
    let phase = |phase: &memory::fit::PhasePeak| Phase {
        phase: phase.kind.to_string(),
        allocated: phase.allocated,
        allocated_peak: phase.allocated_peak,
        reserved: phase.reserved,
        reserved_peak: phase.reserved_peak,
    };
    Predicted {
        held: class.map_or_else(|_| Held::default(), held),
        phases: class.map_or_else(|_| Vec::new(), |class| class.phases.iter().map(phase).collect()),
        kernel_seconds: seconds.map(|alone| alone.kernels),
        host_seconds: seconds.map(|alone| alone.host),
        step_seconds: seconds.map(|alone| alone.step),
        unmodelled: class.err().map(ToString::to_string),
        unpriced: alone.as_ref().err().map(ToString::to_string),
    }
}

fn held(class: &RankClass) -> Held {
    let mut lines = BTreeMap::new();
    for amount in class.lines.iter().filter(|amount| amount.bytes > 0) {
        *lines.entry(amount.entry.name().to_string()).or_default() += amount.bytes;
    }
    Held {
        params: Some(class.params),
        allocated_peak: Some(class.allocated_peak),
        reserved_peak: Some(class.reserved_peak),
        outside: Some(class.outside),
        host: Some(class.offload.host_bytes),
        lines,
    }
}

fn corrections(asked: &Held, probed: &Held) -> Vec<Correction> {
    let line = |held: &Held, name: &str| held.lines.get(name).copied().unwrap_or_default();
    let names: BTreeSet<&String> = asked.lines.keys().chain(probed.lines.keys()).collect();
    let mut pairs: Vec<(&str, u64, u64)> =
        names.into_iter().map(|name| (name.as_str(), line(asked, name), line(probed, name))).collect();
    let sums = [
        ("allocated peak", asked.allocated_peak, probed.allocated_peak),
        ("reserved peak", asked.reserved_peak, probed.reserved_peak),
    ];
    pairs.extend(sums.into_iter().filter_map(|(what, asked, probed)| Some((what, asked?, probed?))));
    let differing = pairs.into_iter().filter(|(_, asked, probed)| asked != probed);
    differing
        .map(|(what, asked, probed)| Correction {
            what: what.to_string(),
            asked,
            probed,
            add: asked.cast_signed() - probed.cast_signed(),
        })
        .collect()
}
