//! The lines of a rank that follow from shapes alone.

use super::chunk::of_chunk;
use super::saves;
use diag::Finding;
use layout::activations::Routing;
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
    /// The sums among them: there from the first reduction of a step to its end.
    pub sums: u64,
    /// Moments: one where Muon steps, two where AdamW does.
    pub optimizer: u64,
    /// The most that microbatches under way keep at once.
    pub saved: u64,
}

impl Held {
    /// Everything that is there at once.
    pub fn bytes(&self) -> u64 {
        self.weights + self.gradients + self.optimizer + self.saved
    }
}

/// What a rank holds when a number has `bytes_each`.
pub fn held(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    rank: u64,
    bytes_each: u64,
    routing: Routing,
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
        sums: bytes_each * runs,
        optimizer: bytes_each * (runs + second),
        saved: most_saved(recipe, layout, table, stage, bytes_each, routing)?,
    })
}

/// The most bytes kept at once: passes of a stage in the order it runs them.
fn most_saved(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    stage: u32,
    bytes_each: u64,
    routing: Routing,
) -> Result<u64, Finding> {
    // Balanced, every microbatch keeps the same.
    let mut kept: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let (mut now, mut most) = (0, 0);
    for action in Pipeline::of(layout)?.stage(stage).flat_map(Block::actions) {
        let at = match routing {
            Routing::Balanced => (0, action.chunk),
            Routing::Real(_) => (action.microbatch, action.chunk),
        };
        let declared = || saves::bytes(&of_chunk(recipe, layout, table, at, routing), bytes_each);
        let kept = *kept.entry(at).or_insert_with(declared);
        match action.pass {
            Pass::Forward => now += kept,
            Pass::Backward | Pass::BackwardInput => now -= kept,
            Pass::BackwardWeight => {}
        }
        most = most.max(now);
    }
    Ok(most)
}
