//! What was predicted beside what a run came to, for those who show it.

use comm::{Call, Kind, Moved};
use diag::Finding;
use layout::activations::{Dealing, Routing, volume};
use layout::{Layout, OwnershipTable};
use memory::ledger::shardwright::{self as ledger, Held, InPhase, Phase};
use recipe::Recipe;
use units::named;

/// Axes, as calls name them, in the order they are shown.
pub const AXES: &[&str] = &["tp", "sp", "cp", "ep", "etp", "pp", "dp", "edp", "world"];

named! {
    /// A line of a rank's memory.
    pub enum Line {
        /// Weights between uses.
        Weights = "weights",
        /// The buffers backward adds to, and the summed runs until the step.
        Gradients = "gradients",
        /// Moments.
        Optimizer = "optimizer state",
        /// What forward keeps for backward, at its peak.
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
    /// Which.
    pub phase: Phase,
    /// Its lines as it ended; of saved activations the most in it.
    pub held: Held,
    /// The most the rank had allocated at once, whatever for; where the program counts
    /// ([`crate::live::Counting`]).
    pub peak: Option<u64>,
}

/// What a rank held in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepHeld {
    /// Phases in order, as far as the step went.
    pub phases: Vec<HeldInPhase>,
    /// Where routers sent its tokens.
    pub routing: Dealing,
}

impl StepHeld {
    fn at(&self, phase: Phase) -> Option<&HeldInPhase> {
        self.phases.iter().find(|p| p.phase == phase)
    }

    /// The most that microbatches kept at once.
    pub fn saved(&self) -> u64 {
        self.at(Phase::Passes).map_or(0, |p| p.held.saved)
    }

    /// The lines behind the reduction, where all of them are there; of saved activations the most.
    pub fn held(&self) -> Held {
        self.at(Phase::Reduce).map_or(Held::default(), |p| Held { saved: self.saved(), ..p.held })
    }

    /// What is allocated and no line of the run: names, tables, the batch, the kernels' workspaces.
    /// It is what was there between steps beside the lines.
    fn other(&self) -> u64 {
        let state = self.at(Phase::State);
        state.and_then(|s| s.peak.map(|peak| peak.saturating_sub(s.held.bytes()))).unwrap_or(0)
    }
}

/// What runs, and how wide its numbers are.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// The layout.
    pub layout: &'a Layout,
    /// Who owns what.
    pub table: &'a OwnershipTable,
    /// Bytes of a number.
    pub bytes_each: u64,
}

/// One line of one rank's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLine {
    /// The rank.
    pub rank: usize,
    /// What the bytes are for.
    pub line: Line,
    /// As `memory`'s ledger has it for the routing that happened.
    pub predicted_bytes: u64,
    /// As it has it for balanced routing, which is what `fit` shows.
    pub balanced_bytes: u64,
    /// As the rank held it.
    pub held_bytes: u64,
}

/// One phase of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseLine {
    /// The rank.
    pub rank: usize,
    /// The phase.
    pub phase: Phase,
    /// The most bytes at once, as the ledger replays it.
    pub predicted_peak_bytes: u64,
    /// The most that was allocated at once beside what is no tensor of the run; none where nobody
    /// counts.
    pub peak_bytes: Option<u64>,
    /// What is allocated besides, in every phase.
    pub other_bytes: u64,
    /// By line, as the phase ends, predicted and held; of saved activations the most in it.
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
    /// As `layout` has it.
    pub predicted_bytes: u64,
    /// As ranks put it into calls.
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

/// Bytes that one rank's calls put in, by [`AXES`]; `calls` is what `comm.traffic().all()` gave.
pub fn moved(calls: &[(Call, Kind, Moved)]) -> Vec<u64> {
    let mut by_axis = vec![0; AXES.len()];
    calls.iter().for_each(|(call, _, moved)| by_axis[place(call.axis)] += moved.bytes);
    by_axis
}

fn place(axis: &str) -> usize {
    let found = AXES.iter().position(|a| *a == axis);
    found.unwrap_or_else(|| unreachable!("`{axis}` is on no list of axes"))
}

/// The axes of one step; by rank what [`moved`] gave, and where its routers sent tokens.
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
