//! Gated delta nets (`megatron/core/ssm/gated_delta_net/gdn.py`, `common.py`) over the kernels of
//! [`crate::delta_scan`]. No measured row shows it.

use super::blocks::GatedDeltaParams;
use super::linear::{Keeps, Mode, linear, norm_linear};
use super::ops::{copy, grad, makes, rmsnorm, weight_grad};
use super::rank::Rank;
use crate::delta_scan::{self, Sizes};
use replay::tape::{BF16, Tensor};

pub(super) use crate::delta_scan::Widths;

pub(super) fn forward(c: &Rank, params: &GatedDeltaParams, x: &Tensor) -> Tensor {
    let (config, w) = (&c.config, params.widths);
    let s = Sizes::of(w, config.micro_batch, config.sequence);
    let packed = norm_linear(c, x, config.hidden, w.packed(), &params.in_proj);
    let qkv = convolve(c, params, &packed, s);
    let out = delta_rule(c, params, &packed, &qkv, s);
    drop(qkv);
    let gated = gate(c, params, &packed, out, s);
    drop(packed);
    let gated = if config.micro_batch > 1 { copy(c, &gated, s.values, "gated output") } else { gated };
    linear(c, &gated, Mode::Row, (w.values, config.hidden), &params.out_proj, Keeps::Quantized)
}

/// Keeps its input, a slice of the projection, which so stays whole.
fn convolve(c: &Rank, params: &GatedDeltaParams, packed: &Tensor, s: Sizes) -> Tensor {
    let out = c.act(s.conv, "queries, keys and values");
    let (total, elements) = (packed.elements(), params.conv.elements);
    c.tape.record(vec![packed.edge(), params.conv.edge()], &[&out], vec![packed.clone()], move |t, _, _saved| {
        let _slice = grad(t, s.conv, "conv input gradient");
        vec![Some(grad(t, total, "packed projection gradient")), Some(weight_grad(t, elements))]
    });
    out
}

/// Unit queries and keys, repeated for every value head, and the scan over chunks.
fn delta_rule(c: &Rank, params: &GatedDeltaParams, packed: &Tensor, qkv: &Tensor, s: Sizes) -> Tensor {
    let (out, saved) = delta_scan::forward(&c.tape, s);
    let scalars = [&params.dt_bias, &params.a_log];
    let edges = [packed.edge(), qkv.edge()].into_iter().chain(scalars.map(|p| p.edge())).collect();
    let (elements, total) = (scalars.map(|p| p.elements), packed.elements());
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
        let of_qkv = delta_scan::backward(t, s);
        let packed = grad(t, total, "packed projection gradient");
        [Some(packed), Some(of_qkv)].into_iter().chain(elements.map(|e| Some(weight_grad(t, e)))).collect()
    });
    out
}

/// `norm(out) · silu(z)`, compiled: it keeps both factors, the gate as a contiguous copy.
fn gate(c: &Rank, params: &GatedDeltaParams, packed: &Tensor, out: Tensor, s: Sizes) -> Tensor {
    let gate = c.act(s.values, "output gate");
    makes(c, packed, &gate, Vec::new(), packed.elements(), BF16);
    let normed = rmsnorm(c, &out, params.widths.value_dim, &params.out_norm);
    let gated = c.act(s.values, "gated output");
    let saved = vec![normed.clone(), gate.clone()];
    c.tape.record(vec![normed.edge(), gate.edge()], &[&gated], saved, move |t, _, _saved| {
        let dx = grad(t, s.values, "gated output gradient");
        vec![Some(dx), Some(grad(t, s.values, "output gate gradient"))]
    });
    gated
}
