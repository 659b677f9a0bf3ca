//! **interleaved**: Megatron-Core `pipeline_parallel/schedules.py`,
//! `forward_backward_pipelining_with_interleaving`. One forward, one backward over passes that go
//! through the stage's chunks in rounds: *pp* microbatches of the first chunk, the same *pp* of the
//! next (`microbatch_group_size_per_vp_stage` at its default), backward from the last chunk to the
//! first. Forwards ahead: `get_pp_rank_microbatches`.

use super::one_f1b::one_and_one;
use super::program::Program;

pub(super) fn program(pp: u32, vpp: u32, stage: u32, microbatches: u32) -> Program {
    let passes = microbatches * vpp;
    let ahead = (pp - stage - 1) * 2 + (vpp - 1) * pp;
    one_and_one(ahead.min(passes), passes)
}
