//! What a checkpoint holds and who writes how much of it, by the ownership table: weights as they train, the
//! optimizer's own copy and its moments, each element once, dealt out over the ranks of its stage.

use case::Case;
use layout::Axis;
use recipe::precision::Precision;
use recipe::{Optimizer, Tensor};
use serde::Serialize;

/// A checkpoint's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Saves {
    /// All of it.
    pub bytes: u64,
    /// What the rank that writes most does.
    pub rank_bytes: u64,
    /// What a node at most does.
    pub node_bytes: u64,
}

/// Bytes of one element with all that is kept of it.
fn kept(tensor: &Tensor, precision: &Precision) -> u64 {
    let weight = precision.of(tensor.role);
    if tensor.is_frozen {
        return weight.bits();
    }
    let moments = match tensor.optimizer {
        Optimizer::AdamW => 2,
        Optimizer::Muon | Optimizer::Sgd => 1,
    };
    let main = if precision.main == weight { 0 } else { precision.main.bits() };
    weight.bits() + main + moments * precision.moments.bits()
}

impl Saves {
    /// Of a job.
    pub fn of(case: &Case) -> Saves {
        let (table, layout) = (&case.table, &case.layout);
        let ranks = (layout.world / layout.degree(Axis::Pp).get()).max(1);
        let stages = table.stages.by_stage.len().max(1);
        let mut by_stage = vec![0u64; stages];
        let mut all = 0u64;
        for row in &table.rows {
            let bits = row.tensor.elements().saturating_mul(kept(&row.tensor, &case.recipe.precision));
            let bytes = bits.div_ceil(8);
            all = all.saturating_add(bytes);
            // A tied table stands on two stages and is written by the first of them.
            if let Some(stage) = (0..stages).find(|stage| table.copies_on_stage(row, *stage) > 0) {
                by_stage[stage] = by_stage[stage].saturating_add(bytes);
            }
        }
        let rank_bytes = by_stage.iter().map(|bytes| bytes.div_ceil(ranks)).max().unwrap_or(0);
        let per_node = case.cluster.as_ref().map_or(1, |cluster| cluster.devices_per_node.min(layout.world));
        Saves { bytes: all, rank_bytes, node_bytes: rank_bytes.saturating_mul(per_node) }
    }
}
