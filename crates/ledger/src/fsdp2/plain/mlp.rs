//! Dense feed-forward blocks: `w2(act(w1(x)) * w3(x))`, or without a gate `w2(act(w1(x)))`.

use super::ops::{activate, enter, leave, linear};
use super::params::MlpParams;
use super::rank::Rank;
use replay::tape::Tensor;
use std::rc::Rc;

/// `x` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &MlpParams, x: &Tensor) -> Tensor {
    let x = enter(c, x);
    let out = inner(c, params, &x);
    leave(c, out)
}

/// From gathered tokens to partial sums.
pub(super) fn inner(c: &Rc<Rank>, params: &MlpParams, x: &Tensor) -> Tensor {
    let first = linear(c, x, params.gate.as_ref().unwrap_or(&params.up));
    let up = || params.gate.as_ref().map(|_| linear(c, x, &params.up));
    let narrow = activate(c, first, up, params.feed.function);
    linear(c, &narrow, &params.down)
}
