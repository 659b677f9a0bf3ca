//! **zb-h1** (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241; torch's
//! `ScheduleInterleavedZeroBubble` holds weight passes back by the same count): 1F1B whose backward
//! is split. Stage *s* runs a weight pass after each backward once *s* of them are waiting, so late
//! stages fill the bubble at the end, and no stage holds more than the first does.

use super::program::{
    Program,
    Verb::{Forward, Input, Weight},
};

pub(super) fn program(pp: u32, stage: u32, microbatches: u32) -> Program {
    let warmup = (pp - stage - 1).min(microbatches);
    let (paired, held_back) = (microbatches - warmup, stage.min(microbatches));
    let waiting = held_back.min(paired);
    let waiting_late = held_back - waiting;
    Program::new()
        // 1: forwards ahead.
        .then(warmup, &[Forward(0)])
        // 2: one forward, one backward, while weight passes are held back.
        .then(waiting, &[Forward(0), Input(0)])
        // 3: one of each.
        .steadily(paired - waiting, &[Forward(0), Input(0), Weight])
        // 4: the backwards left, the first of which may still hold back.
        .then(waiting_late, &[Input(0)])
        .then(warmup - waiting_late, &[Input(0), Weight])
        // 5: the weight passes held back.
        .then(held_back, &[Weight])
}
