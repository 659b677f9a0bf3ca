//! What a checkpoint holds and who writes how much of it, by the ownership table: weights as they train, the
//! optimizer's own copy and its moments, each element once, dealt out over the ranks of its stage.

use case::Case;
use case::ways::{ElementStep, MomentumFormat};
use layout::Axis;
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

/// Bits of one element with all that is kept of it: the weight, the optimizer's own copy where it has one, and what it
/// remembers. Scales of a base in 4 bits are rounded up to a bit.
fn kept(tensor: &Tensor, case: &Case) -> u64 {
    let (weight, state, ways) = (case.recipe.precision.of(tensor.role), &case.options.state, &case.options.ways);
    if tensor.is_frozen {
        return if ways.base.is_quantised() { 5 } else { weight.bits() };
    }
    let remembers = match (tensor.optimizer, ways.elements, ways.momentum) {
        (Optimizer::Muon, _, MomentumFormat::Int8) => 9,
        (Optimizer::Muon | Optimizer::Sgd, _, _) => state.exp_avg.bits(),
        (Optimizer::AdamW, ElementStep::AdamW, _) => state.exp_avg.bits() + state.exp_avg_sq.bits(),
        (Optimizer::AdamW, other, _) => 8 * other.saved_bytes(state.main.bits() / 8),
    };
    let copy = if state.main == weight { 0 } else { state.main.bits() };
    weight.bits() + copy + remembers + if ways.average { 32 } else { 0 }
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
            let bits = row.tensor.elements().saturating_mul(kept(&row.tensor, case));
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

#[cfg(test)]
mod tests {
    use super::*;
    use case::{Asked, Terms};
    use hardware::Cluster;

    fn saves(job: &str, on: &str) -> (Saves, u64) {
        let asked = Asked::parse(&job.split(' ').collect::<Vec<_>>()).unwrap();
        let recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
        let total = recipe.counts().all.total;
        let case = Case::build(asked, recipe, Some(Cluster::parse(on).unwrap()), Terms::RUN).unwrap();
        (Saves::of(&case), total)
    }

    /// bf16 weights, an fp32 copy and two moments are 14 bytes, written once whatever the layout.
    #[test]
    fn every_element_is_saved_once() {
        for job in
            ["llama3-8b --tp 1", "llama3-8b --tp 2 --pp 4", "llama3-8b --tp 4 --zero 1", "mixtral-8x7b --ep 8 --pp 2"]
        {
            let (found, total) = saves(job, "64xH100");
            let each = found.bytes as f64 / total as f64;
            assert!((13.9..14.2).contains(&each), "{job}: {each}");
            assert!(found.rank_bytes * 64 >= found.bytes, "{job}: somebody writes it");
            assert!(found.rank_bytes * 64 < 2 * found.bytes, "{job}: shared out");
            assert_eq!(found.node_bytes, 8 * found.rank_bytes);
        }
        let (muon, total) = saves("llama3-8b --tp 2 --optimizer muon+adamw", "64xH100");
        assert!(muon.bytes >= 10 * total);
    }

    /// A stage that holds more makes its ranks write more.
    #[test]
    fn the_fullest_stage_decides() {
        let even = saves("llama3-8b --pp 2 --boundaries 16", "64xH100").0;
        let skewed = saves("llama3-8b --pp 2 --boundaries 24", "64xH100").0;
        assert_eq!(even.bytes, skewed.bytes);
        assert!(skewed.rank_bytes > even.rank_bytes);
    }
}
