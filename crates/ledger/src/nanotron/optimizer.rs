//! Gradient buffers, main weights and moments (`optim/gradient_accumulator.py`, `optim/zero.py`,
//! `trainer.py`).

use super::model::Model;
use super::rank::Rank;
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage};
use std::rc::Rc;

/// Buckets of `DistributedDataParallel`: the first is small, then `ddp_bucket_cap_mb`, 25 by
/// default (`torch/csrc/distributed/c10d/reducer.hpp`, `torch/nn/parallel/distributed.py`).
const FIRST_BUCKET: u64 = 1 << 20;
const BUCKET: u64 = 25 << 20;

/// What stands beside the weights between steps.
pub(super) struct State {
    /// Elements of each slice this rank steps.
    slices: Vec<u64>,
    _kept: Vec<Rc<Storage>>,
    moments: Vec<Rc<Storage>>,
}

impl State {
    /// One fp32 buffer for all gradients (`build_grad_buffers`), one for the main weights (of this
    /// rank's slices, rounded up: `zero.py` _partition_parameters), and without ZeRO the buckets.
    pub fn new(c: &Rank, model: &Model) -> State {
        let weights: Vec<u64> = model.weights().iter().map(|weight| weight.elements).collect();
        let shards = if c.config.shards_optimizer { c.config.dp } else { 1 };
        let slices: Vec<u64> = weights.iter().map(|elements| elements.div_ceil(shards)).collect();
        let mut kept = vec![
            c.tape.storage(Line::Gradients, weights.iter().sum::<u64>() * FP32, "gradient buffer"),
            c.tape.storage(Line::OtherOptimizer, slices.iter().sum::<u64>() * FP32, "main weights"),
        ];
        // `trainer.py` make_ddp.
        if c.config.dp > 1 && !c.config.shards_optimizer {
            let bucket = |bytes| c.tape.storage(Line::Gradients, bytes, "gradient bucket");
            kept.extend(buckets(&weights).into_iter().map(bucket));
        }
        State { slices, _kept: kept, moments: Vec::new() }
    }

    /// AdamW makes its moments at the first step; ZeRO then gathers the stepped weights: this
    /// rank's slices flattened, one flat tensor a rank, and the collective's own output
    /// (`zero.py` _all_gather_params, `distributed.py` all_gather_coalesced).
    pub fn step(&mut self, c: &Rank) {
        let state = |bytes| c.tape.storage(Line::OtherOptimizer, bytes, "moment");
        if self.moments.is_empty() {
            let sizes = self.slices.iter().flat_map(|n| [FP32, n * FP32, n * FP32]);
            self.moments = sizes.map(state).collect();
        }
        if c.config.shards_optimizer && c.config.dp > 1 {
            let bytes = self.slices.iter().sum::<u64>() * BF16;
            let gathered = |bytes| c.tape.storage(Line::Communication, bytes, "gathered weights");
            let _own = gathered(bytes);
            let _of_ranks: Vec<_> = (0..c.config.dp).map(|_| gathered(bytes)).collect();
            let _output = gathered(bytes * c.config.dp);
        }
    }
}

/// Bytes of each bucket; weights enter in reverse order.
fn buckets(weights: &[u64]) -> Vec<u64> {
    let (mut full, mut open, mut most) = (Vec::new(), 0, FIRST_BUCKET);
    for elements in weights.iter().rev() {
        open += elements * BF16;
        if open >= most {
            full.push(std::mem::take(&mut open));
            most = BUCKET;
        }
    }
    if open > 0 {
        full.push(open);
    }
    full
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bucket_is_small() {
        assert_eq!(buckets(&[5 << 20, 20 << 20, 1 << 20]), [2 << 20, 40 << 20, 10 << 20]);
    }
}
