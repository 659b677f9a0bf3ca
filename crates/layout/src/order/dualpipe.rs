//! **dualpipe** (deepseek-ai/DualPipe, `dualpipe.py`, `step`): two directions over the same stages,
//! which meet in the middle; eight numbered loops. Slot 0 is the direction that enters nearer.

use super::program::{
    Program, Verb,
    Verb::{Backward, Both, Forward, Input, Weight},
};

pub(super) fn program(pp: u32, stage: u32, microbatches: u32) -> Program {
    eight_steps(pp / 2, stage.min(pp - 1 - stage), microbatches / 2)
}

const MAIN: [Verb; 2] = [Both { forward: 0, backward: 1 }, Both { forward: 1, backward: 0 }];

/// Over `ranks` that meet in the middle (or at the fold), of which this is the `rank`th, with
/// `microbatches` for each slot.
pub(super) fn eight_steps(ranks: u32, rank: u32, microbatches: u32) -> Program {
    let (behind, held) = (ranks - rank - 1, rank + 1);
    let main = microbatches + held - 2 * ranks;
    // Where the directions meet, the first two are not overlapped, which shortens the bubble.
    let apart = u32::from(behind == 0);
    let program = Program::new()
        // 1: forwards of slot 0.
        .then(2 * behind, &[Forward(0)])
        // 2: forwards of both.
        .then(held, &[Forward(0), Forward(1)])
        // 3: slot 1 turns, backward split.
        .then(behind, &[Input(1), Weight, Forward(1)])
        // 4: the main loop.
        .then(apart, &[Forward(0), Backward(1), MAIN[1]])
        .steadily(main - apart, &MAIN)
        // 5: forwards of slot 1 run out.
        .then(behind, &[Backward(1), Both { forward: 1, backward: 0 }]);
    drain(program, behind, held)
}

fn drain(program: Program, behind: u32, held: u32) -> Program {
    // An odd number of pairs turns to split backward in the middle of a pair.
    let (half, odd) = (held / 2, held % 2);
    program
        // 6: backwards of both, the second half split.
        .then(half, &[Backward(1), Backward(0)])
        .then(odd, &[Backward(1), Input(0)])
        .then(held - half - odd, &[Input(1), Input(0)])
        // 7: weight passes between the last backwards.
        .then(behind, &[Weight, Input(0)])
        // 8: weight passes.
        .then(held, &[Weight])
}
