//! Gated delta nets (`megatron/core/ssm/gated_delta_net/gdn.py`, `common.py`) over the chunked
//! kernels of fla-org/flash-linear-attention (`fla/ops/gated_delta_rule/chunk.py`): queries and
//! keys of every value head, values, gates and the inverted triangle of each chunk are kept; states
//! are computed again. No measured row shows it.

use super::blocks::GatedDeltaParams;
use super::linear::{Keeps, Mode, linear, norm_linear};
use super::ops::{copy, grad, grad_of, makes, rmsnorm, weight_grad};
use super::rank::Rank;
use recipe::kinds::gated_delta::GatedDelta;
use replay::tape::{BF16, FP32, Tape, Tensor};

/// Tokens a chunk covers (`chunk_local_cumsum(g, chunk_size=64)`).
const CHUNK: u64 = 64;

/// Widths of one rank.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    pub value_heads: u64,
    /// Queries or keys.
    pub keys: u64,
    pub values: u64,
    pub key_dim: u64,
    pub value_dim: u64,
}

impl Widths {
    pub fn of(mixer: &GatedDelta, tp: u64) -> Widths {
        let value_heads = mixer.value_heads / tp;
        Widths {
            value_heads,
            keys: mixer.key_heads / tp * mixer.key_dim,
            values: value_heads * mixer.value_dim,
            key_dim: mixer.key_dim,
            value_dim: mixer.value_dim,
        }
    }

    /// Channels of the convolution.
    pub fn channels(&self) -> u64 {
        2 * self.keys + self.values
    }

    /// Rows of the packed projection: q k v z beta alpha.
    pub fn packed(&self) -> u64 {
        self.channels() + self.values + 2 * self.value_heads
    }
}

/// Sizes over a microbatch, in elements.
#[derive(Clone, Copy)]
struct Sizes {
    conv: u64,
    /// Queries or keys of every value head.
    by_head: u64,
    values: u64,
    steps: u64,
    /// Triangles inside chunks.
    triangles: u64,
    /// States at chunk borders.
    states: u64,
}

pub(super) fn forward(c: &Rank, params: &GatedDeltaParams, x: &Tensor) -> Tensor {
    let (config, w) = (&c.config, params.widths);
    let chunks = config.micro_batch * config.sequence.div_ceil(CHUNK);
    let s = Sizes {
        conv: config.tokens * w.channels(),
        by_head: config.tokens * w.value_heads * w.key_dim,
        values: config.tokens * w.values,
        steps: config.tokens * w.value_heads,
        triangles: chunks * CHUNK * w.value_heads * CHUNK,
        states: chunks * w.value_heads * w.key_dim * w.value_dim,
    };
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
    let units = c.act(s.conv - s.values, "unit queries and keys");
    let inverse = c.act_of(2 * s.steps, FP32, "norms of queries and keys");
    let mut saved = vec![units, inverse];
    saved.extend([c.act(s.by_head, "queries"), c.act(s.by_head, "keys"), c.act(s.values, "values")]);
    saved.extend([c.act_of(s.steps, FP32, "summed decays"), c.act(2 * s.steps, "gates")]);
    let wide = c.act_of(s.triangles, FP32, "chunk triangles");
    saved.push(c.act(s.triangles, "inverted triangles"));
    drop(wide);
    let _products = (c.act(s.by_head, "w"), c.act(s.values, "u"));
    let _states = (c.act(s.states, "chunk states"), c.act(s.values, "new values"));
    let out = c.act(s.values, "scan output");
    let scalars = [&params.dt_bias, &params.a_log];
    let edges = [packed.edge(), qkv.edge()].into_iter().chain(scalars.map(|p| p.edge())).collect();
    let (elements, total) = (scalars.map(|p| p.elements), packed.elements());
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
        let of_qkv = backward(t, s);
        let packed = grad(t, total, "packed projection gradient");
        [Some(packed), Some(of_qkv)].into_iter().chain(elements.map(|e| Some(weight_grad(t, e)))).collect()
    });
    out
}

/// `chunk_gated_delta_rule_bwd`: forward's products and states once more, then gradients.
fn backward(t: &Tape, s: Sizes) -> Tensor {
    let _products = (grad(t, s.by_head, "w"), grad(t, s.values, "u"));
    let _states = (grad(t, s.states, "chunk states"), grad(t, s.values, "new values"));
    let _values = grad(t, s.values, "value gradient");
    let _state_grads = (grad(t, s.states, "state gradients"), grad(t, s.values, "value gradient"));
    let _keys = (grad(t, s.by_head, "query gradient"), grad(t, s.by_head, "key gradient"));
    let _w = (grad(t, s.by_head, "w gradient"), grad_of(t, s.steps, FP32, "decay gradient"));
    let _more = (grad(t, s.by_head, "key gradient"), grad(t, s.values, "value gradient"));
    let _steps = grad_of(t, 2 * s.steps, FP32, "gate gradients");
    grad(t, s.conv, "qkv gradient")
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
