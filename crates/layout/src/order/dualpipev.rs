//! **dualpipev** (deepseek-ai/DualPipe, `dualpipev.py`, `step`): DualPipe cut in half. The depth
//! goes down the stages (slot 0) and back up (slot 1), so one copy of the model suffices.

use super::dualpipe::eight_steps;
use super::program::Program;

pub(super) fn program(pp: u32, stage: u32, microbatches: u32) -> Program {
    eight_steps(pp, stage, microbatches)
}
