//! M2RNN: a non-linear step cannot be scanned, so time is walked token by token while heads and
//! sequences run side by side. Latency bounds it, never the matrix units.

use super::{Direction, Op, Shape, Work, plain};
use crate::part::Part;

/// The mixer of an R block.
pub(super) fn m2rnn(shape: Shape, ops: &mut Vec<Op>) {
    let Some(mixer) = &shape.recipe.recurrent else { return };
    let heads = mixer.heads as f64 / shape.tp * shape.layout.micro_batch as f64;
    // A cut in time hands its state on: the parts run one after another.
    let steps = shape.layout.sequence as f64;
    // One kernel for the FSDP2 program and for Megatron's package. Its steps were timed where it keeps every state; where
    // it keeps a few, nothing was measured yet.
    let work = |pass| vec![Work::Walk { steps, heads, pass }];
    ops.push(Op {
        block: None,
        scope: None,
        part: Part::Recurrence,
        modules: &[],
        forward: work(Direction::Forward),
        input: work(Direction::Backward),
        weight: Vec::new(),
    });
    match plain::is_plain(shape) {
        true => plain::m2rnn(shape, mixer, ops),
        false => plain::packaged_m2rnn(shape, mixer, ops),
    }
}
