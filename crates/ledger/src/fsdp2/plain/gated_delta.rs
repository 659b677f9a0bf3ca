//! Gated delta nets as Hugging Face's Qwen3-Next runs them (`transformers/models/qwen3_next/modeling_qwen3_next.py`)
//! over the kernels of [`crate::delta_scan`]. No measured row shows it.

use super::ops::{enter, grad, leave, linear, makes, norm, product, weight_grad, weight_grads};
use super::params::GatedDeltaParams;
use super::rank::Rank;
use crate::delta_scan::{self, Sizes};
use replay::tape::{BF16, Tensor};
use std::rc::Rc;

/// `x` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &GatedDeltaParams, x: &Tensor) -> Tensor {
    let s = Sizes::of(params.widths, c.config.micro_batch, c.config.sequence);
    let x = enter(c, x);
    let packed = linear(c, &x, &params.in_proj);
    let qkv = convolve(c, params, &packed, s);
    let (out, saved) = delta_scan::forward(&c.tape, s);
    let (total, sizes) = (packed.elements(), [params.dt_bias.elements(), params.a_log.elements()]);
    let edges = vec![packed.edge(), qkv.edge(), params.dt_bias.edge(), params.a_log.edge()];
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
        let of_qkv = delta_scan::backward(t, s);
        let of_packed = grad(t, total, "packed projection gradient");
        [Some(of_packed), Some(of_qkv)].into_iter().chain(weight_grads(t, &sizes)).collect()
    });
    drop(qkv);
    let gate = c.act(s.values, "output gate");
    makes(c, &packed, &gate, vec![packed.clone()], total, BF16);
    drop(packed);
    let normed = norm(c, &out, params.widths.value_dim, &params.out_norm);
    drop(out);
    let gated = product(c, &normed, &gate);
    drop((normed, gate));
    leave(c, linear(c, &gated, &params.out_proj))
}

/// Keeps its input, a slice of the projection, which so stays whole.
fn convolve(c: &Rank, params: &GatedDeltaParams, packed: &Tensor, s: Sizes) -> Tensor {
    let out = c.act(s.conv, "queries, keys and values");
    let (total, elements) = (packed.elements(), params.conv.elements());
    c.tape.record(vec![packed.edge(), params.conv.edge()], &[&out], vec![packed.clone()], move |t, _, _saved| {
        let _slice = grad(t, s.conv, "conv input gradient");
        vec![Some(grad(t, total, "packed projection gradient")), Some(weight_grad(t, elements))]
    });
    out
}
