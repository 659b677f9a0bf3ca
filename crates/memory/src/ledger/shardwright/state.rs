//! The lines of a rank that follow from shapes alone.

use super::chunk::of_chunk;
use super::saves;
use diag::Finding;
use layout::order::{Block, Pass, Pipeline};
use layout::ownership::Row;
use layout::shards::{Buffer, buffers};
use layout::{Axis, Layout, Mesh, Order, OwnershipTable, ZeroStage};
use recipe::{Optimizer, Recipe};
use std::collections::BTreeMap;

/// Bytes one rank holds, by line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Weights that stay: whole parts, or held runs of them under ZeRO 3.
    pub weights: u64,
    /// Gradients of whole parts, and sums of the held runs.
    pub gradients: u64,
    /// Moments: one where Muon steps, two where AdamW does.
    pub optimizer: u64,
    /// The most that microbatches under way keep at once, as balanced routing would have it.
    pub saved: u64,
}

/// What a rank holds when a number has `bytes_each`.
pub fn held(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    rank: u64,
    bytes_each: u64,
) -> Result<Held, Finding> {
    let mesh = Mesh::new(layout, Order::Megatron, layout.ep.splits() || layout.etp.splits())?;
    let buffers = buffers(table, layout, &mesh, rank);
    let whole: u64 = buffers.iter().map(|b| b.len).sum();
    let runs: u64 = buffers.iter().map(Buffer::held_len).sum();
    let is_adam = |row: &Row| row.tensor.optimizer != Optimizer::Muon;
    let second: u64 = buffers.iter().map(|b| b.held_of(table, is_adam)).sum();
    let stage = mesh.coordinates(rank).on(Axis::Pp) as u32;
    Ok(Held {
        weights: bytes_each * if layout.zero == ZeroStage::Three { runs } else { whole },
        gradients: bytes_each * (whole + runs),
        optimizer: bytes_each * (runs + second),
        saved: most_saved(recipe, layout, table, stage, bytes_each)?,
    })
}

/// The most bytes kept at once: passes of a stage in the order it runs them.
fn most_saved(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    stage: u32,
    bytes_each: u64,
) -> Result<u64, Finding> {
    let mut chunks: BTreeMap<u32, u64> = BTreeMap::new();
    let (mut now, mut most) = (0, 0);
    for action in Pipeline::of(layout)?.stage(stage).flat_map(Block::actions) {
        let declared = || saves::bytes(&of_chunk(recipe, layout, table, action.chunk as usize), bytes_each);
        let kept = *chunks.entry(action.chunk).or_insert_with(declared);
        match action.pass {
            Pass::Forward => now += kept,
            Pass::Backward | Pass::BackwardInput => now -= kept,
            Pass::BackwardWeight => {}
        }
        most = most.max(now);
    }
    Ok(most)
}
