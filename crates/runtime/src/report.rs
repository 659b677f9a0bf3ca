//! What was predicted beside what a run came to, for those who show it.

use comm::{Call, Kind, Moved};
use diag::Finding;
use layout::activations::volume;
use layout::{Layout, OwnershipTable};
use memory::ledger::shardwright::{Held, held};
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

/// One line of one rank's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLine {
    /// The rank.
    pub rank: usize,
    /// What the bytes are for.
    pub line: Line,
    /// As `memory`'s ledger has it; routed rows as balanced routing would deal them.
    pub predicted_bytes: u64,
    /// As the rank held it.
    pub held_bytes: u64,
}

/// One axis of a run's traffic, summed over ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisLine {
    /// The axis, as calls name it.
    pub axis: &'static str,
    /// As `layout` has it.
    pub predicted_bytes: u64,
    /// As ranks put it into calls.
    pub moved_bytes: u64,
}

/// The lines of every rank; `by_rank` is [`crate::train::Trainer::held`] after a step's gradients.
pub fn memory(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    by_rank: &[Held],
    bytes_each: u64,
) -> Result<Vec<MemoryLine>, Finding> {
    let mut lines = Vec::new();
    for (rank, is) in by_rank.iter().enumerate() {
        let should = held(recipe, layout, table, rank as u64, bytes_each)?;
        let pairs = [
            (Line::Weights, should.weights, is.weights),
            (Line::Gradients, should.gradients, is.gradients),
            (Line::Optimizer, should.optimizer, is.optimizer),
            (Line::Saved, should.saved, is.saved),
        ];
        lines.extend(pairs.map(|(line, predicted_bytes, held_bytes)| MemoryLine {
            rank,
            line,
            predicted_bytes,
            held_bytes,
        }));
    }
    Ok(lines)
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

/// The axes of a run of `steps` steps; `by_rank` is [`moved`] of each rank.
pub fn traffic(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    by_rank: &[Vec<u64>],
    steps: u64,
    bytes_each: u64,
) -> Result<Vec<AxisLine>, Finding> {
    let line = |axis: &&'static str| AxisLine { axis, predicted_bytes: 0, moved_bytes: 0 };
    let mut lines: Vec<AxisLine> = AXES.iter().map(line).collect();
    for (rank, moved) in (0..).zip(by_rank) {
        for (axis, predicted) in volume::of_rank(recipe, layout, table, rank)? {
            lines[place(axis)].predicted_bytes += steps * predicted.bytes(bytes_each);
        }
        lines.iter_mut().zip(moved).for_each(|(line, bytes)| line.moved_bytes += bytes);
    }
    lines.retain(|line| line.predicted_bytes > 0 || line.moved_bytes > 0);
    Ok(lines)
}
