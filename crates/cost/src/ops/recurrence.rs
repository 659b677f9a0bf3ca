//! M2RNN: a non-linear step cannot be scanned, so time is walked token by token while heads and
//! sequences run side by side. Latency bounds it, never the matrix units.

use super::scan::{convolution, gate};
use super::{Direction, Op, Shape, Work, plain};
use crate::part::Part;

/// The mixer of an R block.
pub(super) fn m2rnn(shape: Shape, ops: &mut Vec<Op>) {
    let Some(mixer) = &shape.recipe.recurrent else { return };
    let heads = mixer.heads as f64 / shape.tp * shape.layout.micro_batch as f64;
    // A cut in time hands its state on: the parts run one after another.
    let steps = shape.layout.sequence as f64;
    let is_plain = plain::is_plain(shape);
    let work = |pass| match is_plain {
        true => vec![Work::Walk { steps, heads, pass }],
        false => vec![Work::Serial { steps, heads, pass }],
    };
    ops.push(Op {
        block: None,
        scope: None,
        part: Part::Recurrence,
        modules: &[],
        forward: work(Direction::Forward),
        input: work(Direction::Backward),
        weight: Vec::new(),
    });
    if is_plain {
        return plain::m2rnn(shape, mixer, ops);
    }
    let values = mixer.heads as f64 * mixer.value_dim as f64 / shape.tp;
    convolution(shape, values + 2.0 * (mixer.qk_heads * mixer.key_dim) as f64, ops);
    gate(shape, values, &[], ops);
}
