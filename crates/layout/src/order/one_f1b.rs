//! **1f1b**: Megatron-Core `pipeline_parallel/schedules.py`,
//! `forward_backward_pipelining_without_interleaving`. Stage *s* of *p* runs *p − s − 1* forwards
//! ahead, so that it never has more than *p − s* microbatches in flight.

use super::program::{
    Program,
    Verb::{Backward, Forward},
};

pub(super) fn program(pp: u32, stage: u32, microbatches: u32) -> Program {
    let warmup = (pp - stage - 1).min(microbatches);
    one_and_one(warmup, microbatches)
}

/// `warmup` forwards ahead, then one forward and one backward in turn.
pub(super) fn one_and_one(warmup: u32, passes: u32) -> Program {
    Program::new()
        // 1: forwards ahead.
        .then(warmup, &[Forward(0)])
        // 2: one forward, one backward.
        .steadily(passes - warmup, &[Forward(0), Backward(0)])
        // 3: the backwards left.
        .then(warmup, &[Backward(0)])
}
