//! What was predicted beside what a run came to, for those who show it.

use comm::{Call, Kind, Moved};
use diag::Finding;
use layout::activations::volume;
use layout::{Layout, OwnershipTable};
use memory::ledger::shardwright::{Held, held};
use recipe::Recipe;
use std::collections::BTreeMap;

/// One line of one rank's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLine {
    /// The rank.
    pub rank: u64,
    /// What the bytes are for.
    pub line: &'static str,
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
    for (rank, is) in (0..).zip(by_rank) {
        let should = held(recipe, layout, table, rank, bytes_each)?;
        let pairs = [
            ("weights", should.weights, is.weights),
            ("gradients", should.gradients, is.gradients),
            ("optimizer state", should.optimizer, is.optimizer),
            ("saved activations", should.saved, is.saved),
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

/// The axes of a run of `steps` steps; `by_rank` is what each rank's `comm.traffic().all()` gave.
pub fn traffic(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    by_rank: &[Vec<(Call, Kind, Moved)>],
    steps: u64,
    bytes_each: u64,
) -> Result<Vec<AxisLine>, Finding> {
    let mut axes: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
    for (rank, calls) in (0..).zip(by_rank) {
        for (axis, moved) in volume::of_rank(recipe, layout, table, rank)? {
            axes.entry(axis).or_default().0 += steps * moved.bytes(bytes_each);
        }
        for (call, _, moved) in calls {
            axes.entry(call.axis).or_default().1 += moved.bytes;
        }
    }
    let line = |(axis, (predicted_bytes, moved_bytes))| AxisLine { axis, predicted_bytes, moved_bytes };
    Ok(axes.into_iter().filter(|(_, sums)| *sums != (0, 0)).map(line).collect())
}
