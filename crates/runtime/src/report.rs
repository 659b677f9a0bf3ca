//! What was predicted, next to what a run measured.

use ::ledger::shardwright::{self as ledger, Held, InPhase, Phase};
use comm::{Call, Kind, Moved};
use diag::Finding;
use layout::activations::{Dealing, Routing, volume};
use layout::{Layout, OwnershipTable};
use recipe::Recipe;
use units::named;

/// Axes by the names that calls carry, in the order reports list them.
pub const AXES: &[&str] = &["tp", "sp", "cp", "ep", "etp", "pp", "dp", "edp", "world"];

named! {
    /// A line of a rank's memory.
    pub enum Line {
        /// Weights as held between uses.
        Weights = "weights",
        /// The buffers that backward adds to, and the reduced runs until the update.
        Gradients = "gradients",
        /// Moments of AdamW, momentum of Muon.
        Optimizer = "optimizer state",
        /// What forward keeps for backward, at the most.
        Saved = "saved activations",
    }
}

impl Line {
    fn of(self, held: &Held) -> u64 {
        match self {
            Line::Weights => held.weights,
            Line::Gradients => held.gradients,
            Line::Optimizer => held.optimizer,
            Line::Saved => held.saved,
        }
    }
}

/// What a rank held in one phase of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldInPhase {
    /// Which part of the step, as the ledger divides it.
    pub phase: Phase,
    /// Bytes by line at the end of the phase; of saved activations the most during it.
    pub held: Held,
    /// The most the rank had allocated at once, for anything; `None` unless the program counts
    /// ([`crate::live::Counting`]).
    pub peak: Option<u64>,
}

/// What a rank held in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepHeld {
    /// Phases in order, up to where the step got.
    pub phases: Vec<HeldInPhase>,
    /// Where routers sent this rank's tokens.
    pub routing: Dealing,
}

impl StepHeld {
    fn at(&self, phase: Phase) -> Option<&HeldInPhase> {
        self.phases.iter().find(|p| p.phase == phase)
    }

    /// Most bytes that microbatches kept at once.
    pub fn saved(&self) -> u64 {
        self.at(Phase::Passes).map_or(0, |p| p.held.saved)
    }

    /// Bytes by line after the reduction, when all lines exist; of saved activations the most.
    pub fn held(&self) -> Held {
        self.at(Phase::Reduce).map_or(Held::default(), |p| Held { saved: self.saved(), ..p.held })
    }

    /// Bytes allocated for none of the lines: names, tables, the batch, workspaces of kernels. Measured
    /// between steps, as what is allocated beside the lines.
    fn other(&self) -> u64 {
        let state = self.at(Phase::State);
        state.and_then(|s| s.peak.map(|peak| peak.saturating_sub(s.held.bytes()))).unwrap_or(0)
    }
}

/// The run that a report is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// At the size that ran, not the user's.
    pub recipe: &'a Recipe,
    /// The layout it ran under.
    pub layout: &'a Layout,
    /// Ownership of this recipe under this layout.
    pub table: &'a OwnershipTable,
    /// Bytes of one number.
    pub bytes_each: u64,
}

/// One line of one rank's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLine {
    /// The rank that held it.
    pub rank: usize,
    /// What the bytes are for.
    pub line: Line,
    /// By `memory`'s ledger, for the routing that happened.
    pub predicted_bytes: u64,
    /// By the same ledger for balanced routing, which is what `fit` shows.
    pub balanced_bytes: u64,
    /// As measured on the rank.
    pub held_bytes: u64,
}

/// One phase of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseLine {
    /// The rank that held it.
    pub rank: usize,
    /// Which part of the step, as the ledger divides it.
    pub phase: Phase,
    /// The most bytes at once, by the ledger's replay.
    pub predicted_peak_bytes: u64,
    /// The most bytes allocated at once, less `other_bytes`; `None` where nothing counts.
    pub peak_bytes: Option<u64>,
    /// Bytes allocated for none of the lines, in every phase.
    pub other_bytes: u64,
    /// Predicted and measured bytes by line at the end of the phase; of saved activations the most
    /// during it.
    pub lines: Vec<(Line, u64, u64)>,
}

impl PhaseLine {
    /// How far the prediction is off, relative to what was allocated.
    pub fn error(&self) -> Option<f64> {
        self.peak_bytes.map(|peak| self.predicted_peak_bytes as f64 / peak.max(1) as f64 - 1.0)
    }
}

/// One axis of a step's traffic, summed over ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisLine {
    /// The axis, as calls name it.
    pub axis: &'static str,
    /// By `layout`'s volumes.
    pub predicted_bytes: u64,
    /// As ranks put them into calls.
    pub moved_bytes: u64,
}

impl Subject<'_> {
    fn predicted(&self, rank: usize, routing: Routing) -> Result<[InPhase; 4], Finding> {
        ledger::phases(self.recipe, self.layout, self.table, rank as u64, self.bytes_each, routing)
    }

    fn held(&self, rank: usize, routing: Routing) -> Result<Held, Finding> {
        ledger::held(self.recipe, self.layout, self.table, rank as u64, self.bytes_each, routing)
    }
}

/// The lines of every rank.
pub fn memory(of: &Subject, by_rank: &[StepHeld]) -> Result<Vec<MemoryLine>, Finding> {
    let mut lines = Vec::new();
    for (rank, step) in by_rank.iter().enumerate() {
        let is = step.held();
        let [should, balanced] = [of.held(rank, Routing::Real(&step.routing))?, of.held(rank, Routing::Balanced)?];
        lines.extend(Line::ALL.iter().map(|(_, line)| MemoryLine {
            rank,
            line: *line,
            predicted_bytes: line.of(&should),
            balanced_bytes: line.of(&balanced),
            held_bytes: line.of(&is),
        }));
    }
    Ok(lines)
}

/// The phases of every rank.
pub fn phases(of: &Subject, by_rank: &[StepHeld]) -> Result<Vec<PhaseLine>, Finding> {
    let mut out = Vec::new();
    for (rank, step) in by_rank.iter().enumerate() {
        let predicted = of.predicted(rank, Routing::Real(&step.routing))?;
        for should in &predicted {
            let Some(is) = step.at(should.phase) else { continue };
            let line = |(_, line): &(&str, Line)| (*line, line.of(&should.held), line.of(&is.held));
            out.push(PhaseLine {
                rank,
                phase: should.phase,
                predicted_peak_bytes: should.peak_bytes(),
                peak_bytes: is.peak.map(|peak| peak.saturating_sub(step.other())),
                other_bytes: step.other(),
                lines: Line::ALL.iter().map(line).collect(),
            });
        }
    }
    Ok(out)
}

/// Bytes that one rank put into calls, in the order of [`AXES`]; `calls` is what `comm.traffic().all()`
/// gave.
pub fn moved(calls: &[(Call, Kind, Moved)]) -> Vec<u64> {
    let mut by_axis = vec![0; AXES.len()];
    calls.iter().for_each(|(call, _, moved)| by_axis[place(call.axis)] += moved.bytes);
    by_axis
}

fn place(axis: &str) -> usize {
    let found = AXES.iter().position(|a| *a == axis);
    found.unwrap_or_else(|| unreachable!("`{axis}` is on no list of axes"))
}

/// Traffic of one step by axis, from what [`moved`] gave for each rank and where its routers sent
/// tokens.
pub fn traffic(of: &Subject, by_rank: &[(&[u64], &Dealing)]) -> Result<Vec<AxisLine>, Finding> {
    let line = |axis: &&'static str| AxisLine { axis, predicted_bytes: 0, moved_bytes: 0 };
    let mut lines: Vec<AxisLine> = AXES.iter().map(line).collect();
    for (rank, (moved, dealing)) in (0..).zip(by_rank) {
        for (axis, predicted) in volume::of_rank(of.recipe, of.layout, of.table, rank, Routing::Real(dealing))? {
            lines[place(axis.name())].predicted_bytes += predicted.bytes(of.bytes_each);
        }
        lines.iter_mut().zip(*moved).for_each(|(line, bytes)| line.moved_bytes += bytes);
    }
    lines.retain(|line| line.predicted_bytes > 0 || line.moved_bytes > 0);
    Ok(lines)
}
