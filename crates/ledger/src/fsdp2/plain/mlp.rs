//! Dense feed-forward blocks: `w2(act(w1(x)) * w3(x))`, or without a gate `w2(act(w1(x)))`.

use super::ops::{activate, enter, grad, leave, linear, makes, weight_grad};
use super::params::{MlpParams, Param};
use super::rank::Rank;
use replay::tape::{BF16, Tensor};
use std::rc::Rc;

/// `x` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &MlpParams, x: &Tensor) -> Tensor {
    let x = enter(c, x);
    let x = match &params.shares {
        Some(shares) => shifted(c, &x, shares),
        None => x,
    };
    let out = inner(c, params, &x);
    leave(c, out)
}

/// `token_shift` and `addcmul` (fla-org/flash-linear-attention, `fla/models/rwkv7/modeling_rwkv7.py`): keeps the difference to the
/// token before.
fn shifted(c: &Rank, x: &Tensor, shares: &Rc<Param>) -> Tensor {
    let (elements, size) = (x.elements(), shares.elements());
    let delta = c.act(elements, "difference to the token before");
    makes(c, x, &delta, Vec::new(), elements, BF16);
    let out = c.act(elements, "mixed input");
    c.tape.record(
        vec![x.edge(), delta.edge(), shares.edge()],
        &[&out],
        vec![delta.clone()],
        move |t, grads, _saved| {
            let of_delta = grad(t, elements, "difference gradient");
            drop(grad(t, elements, "product before its sum"));
            vec![grads[0].clone(), Some(of_delta), Some(weight_grad(t, size))]
        },
    );
    out
}

/// From gathered tokens to partial sums.
pub(super) fn inner(c: &Rc<Rank>, params: &MlpParams, x: &Tensor) -> Tensor {
    let first = linear(c, x, params.gate.as_ref().unwrap_or(&params.up));
    let up = || params.gate.as_ref().map(|_| linear(c, x, &params.up));
    let narrow = activate(c, first, up, params.feed.function);
    linear(c, &narrow, &params.down)
}
