//! What Megatron-FSDP keeps whole at the highest point, ZeRO 2 and 3: counted as its replay does
//! (`ledger/megatron/fsdp.rs`), a layer a unit.

use super::probed::{Flow, Terms};
use layout::ZeroStage;
use ledger::megatron::UNITS_AHEAD;
use replay::tape::BF16;

/// What is gathered and reduced unit by unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units {
    /// Layers of the stage.
    pub count: u64,
    /// Elements of them all, and of the largest.
    pub layers: u64,
    pub largest: u64,
    /// Elements outside layers.
    pub edges: u64,
    /// The highest point inside a layer with that layer's own gradients whole.
    pub inside: u64,
}

impl Terms {
    /// The highest points of one microbatch, with what is whole beside them.
    pub(super) fn wrapped(&self, zero: ZeroStage, grad_width: u64, flow: &Flow) -> [u64; 3] {
        let units = &self.units;
        let chunk = units.layers / flow.chunks;
        let unit = (units.layers / units.count.max(1)).max(1);
        let limit = UNITS_AHEAD.max(2 * unit);
        let gathers = zero == ZeroStage::Three;
        let whole = |elements: u64| if gathers { elements * BF16 } else { 0 };
        let edge_gradients = units.edges * grad_width;
        // Units are gathered until the limit is passed, and wait for reduction below it.
        let largest = units.largest.max(1);
        let behind = chunk.min((limit / largest).max(1) * largest);
        let waiting = flow.chunks * behind * grad_width;
        let ahead = whole(chunk.min(limit.div_ceil(unit) * unit));
        let layer = units.inside + ahead + edge_gradients;
        let [_, loss, embedding] = self.points;
        let at = |point: u64, beside: u64| if point > 0 { point + beside + whole(units.edges) } else { 0 };
        if flow.microbatches * 256 > flow.in_flight {
            // A microbatch before this one left all that waits.
            let embedding = if embedding > 0 { embedding + edge_gradients } else { 0 };
            return [at(layer, waiting), at(loss, waiting), at(embedding, waiting)];
        }
        // In the first backward pass gradients begin to wait as saved activations go: the highest
        // point is the last layer's, or where no more may wait.
        let gone = self.saved as u128 * u128::from(behind) / u128::from(chunk.max(1));
        let later = layer.saturating_sub(gone as u64) + waiting;
        [at(layer.max(later), 0), at(loss, 0), at(embedding, waiting + edge_gradients)]
    }
}
