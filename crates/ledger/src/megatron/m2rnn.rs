//! M2RNN as a custom mixer behind Megatron's `M` symbol, on one rank a replica (DatasunriseOU/
//! cppmega, `cppmega/megatron/m2rnn_spec.py` and `m2rnn_triton.py`): queries and keys are repeated
//! for every head before the scan, states are kept every 64 steps in fp32, and backward computes
//! those between again. No measured row shows it.

use super::blocks::M2rnnParams;
use super::ops::{grad, grad_of, makes, norm, rmsnorm, weight_grad};
use super::plain::{linear, transposed};
use super::rank::Rank;
use recipe::kinds::m2rnn::M2rnn;
use replay::tape::{BF16, FP32, Tape, Tensor};

/// Steps between kept states.
const CHECKPOINT: u64 = 64;

/// Sizes of one mixer over a microbatch, in elements.
#[derive(Clone, Copy)]
struct Sizes {
    sequences: u64,
    heads: u64,
    /// Width of the packed projection: q k v f g.
    width: u64,
    /// Queries, keys and values before they are repeated.
    conv: u64,
    /// Queries or keys of every head.
    repeated: u64,
    /// Values, gates or the output.
    inner: u64,
    /// One value a head and token.
    steps: u64,
    /// The state of every head.
    state: u64,
    kept_states: u64,
    square: u64,
}

/// Channels of the convolution.
pub(super) fn channels(mixer: &M2rnn) -> u64 {
    2 * mixer.qk_heads * mixer.key_dim + mixer.heads * mixer.value_dim
}

/// Rows of the packed projection.
pub(super) fn width(mixer: &M2rnn) -> u64 {
    channels(mixer) + mixer.heads * (1 + mixer.value_dim)
}

impl Sizes {
    fn of(c: &Rank, mixer: &M2rnn) -> Sizes {
        let (tokens, sequences) = (c.config.tokens, c.config.micro_batch);
        let state = sequences * mixer.heads * mixer.key_dim * mixer.value_dim;
        Sizes {
            sequences,
            heads: mixer.heads,
            width: width(mixer),
            conv: tokens * channels(mixer),
            repeated: tokens * mixer.heads * mixer.key_dim,
            inner: tokens * mixer.heads * mixer.value_dim,
            steps: tokens * mixer.heads,
            state,
            kept_states: state * (c.config.sequence.div_ceil(CHECKPOINT) + 1),
            square: mixer.value_dim * mixer.value_dim,
        }
    }
}

pub(super) fn forward(c: &Rank, params: &M2rnnParams, x: &Tensor) -> Tensor {
    let (config, mixer) = (&c.config, &params.mixer);
    let s = Sizes::of(c, mixer);
    let normed = transposed(c, norm(c, x, config.hidden, &params.norm), "norm output");
    let packed = linear(c, &normed, (config.hidden, s.width), &params.in_proj);
    drop(normed);
    let qkv = convolve(c, params, &packed, s);
    let out = scan(c, params, &packed, &qkv, s);
    let gated = gate(c, params, &packed, &qkv, out, s);
    drop((packed, qkv));
    let inner = mixer.heads * mixer.value_dim;
    let normed = rmsnorm(c, &gated, inner, &params.gate_norm);
    drop(gated);
    let out = linear(c, &normed, (inner, config.hidden), &params.out_proj);
    drop(normed);
    transposed(c, out, "mixer output")
}

/// The convolution keeps its input, a slice of the projection, which so stays whole; SiLU keeps
/// the convolution's output.
fn convolve(c: &Rank, params: &M2rnnParams, packed: &Tensor, s: Sizes) -> Tensor {
    let convolved = c.act(s.conv, "conv output");
    let vectors: Vec<_> = [Some(&params.conv), params.conv_bias.as_ref()].into_iter().flatten().collect();
    let edges = [packed.edge()].into_iter().chain(vectors.iter().map(|p| p.edge())).collect();
    let elements: Vec<u64> = vectors.iter().map(|p| p.elements).collect();
    let total = packed.elements();
    c.tape.record(edges, &[&convolved], vec![packed.clone()], move |t, _, _saved| {
        let _slice = grad(t, s.conv, "conv input gradient");
        let packed = grad(t, total, "packed projection gradient");
        [Some(packed)].into_iter().chain(elements.iter().map(|&e| Some(weight_grad(t, e)))).collect()
    });
    let out = c.act(s.conv, "queries, keys and values");
    makes(c, &convolved, &out, vec![convolved.clone()], s.conv, BF16);
    out
}

fn scan(c: &Rank, params: &M2rnnParams, packed: &Tensor, qkv: &Tensor, s: Sizes) -> Tensor {
    // The decay's own graph: softplus, its product and the exponential, each in fp32.
    let mut saved: Vec<_> = (0..3).map(|_| c.act_of(s.steps, FP32, "decay factors")).collect();
    saved.extend([c.act(s.repeated, "repeated queries"), c.act(s.repeated, "repeated keys")]);
    saved.extend([c.act(s.inner, "values"), c.act(s.steps, "decays")]);
    saved.push(c.act_of(s.kept_states, FP32, "kept states"));
    let out = c.act(s.inner, "scan output");
    let _final = c.act(s.state, "final states");
    let scalars = [&params.a_log, &params.dt_bias, &params.state_weight];
    let edges = [packed.edge(), qkv.edge()].into_iter().chain(scalars.map(|p| p.edge())).collect();
    let (elements, total) = (scalars.map(|p| p.elements), packed.elements());
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
        let of_qkv = backward(t, s);
        let of_decays = grad_of(t, s.steps, FP32, "decay gradients");
        let packed = grad(t, total, "packed projection gradient");
        drop(of_decays);
        let weights = elements.map(|elements| Some(weight_grad(t, elements)));
        [Some(packed), Some(of_qkv)].into_iter().chain(weights).collect()
    });
    out
}

/// Gradients of every head, the states of one stretch computed again, then sums over the heads that
/// share a query and key.
fn backward(t: &Tape, s: Sizes) -> Tensor {
    let _carry = grad_of(t, s.state, FP32, "state gradient");
    let repeated = (grad(t, s.repeated, "repeated query gradient"), grad(t, s.repeated, "repeated key gradient"));
    let _values = (grad(t, s.inner, "value gradient"), grad(t, s.steps, "decay gradient"));
    let _weights = grad_of(t, s.sequences * s.heads * s.square, FP32, "state weight gradients");
    let _stretch = grad_of(t, s.state * (CHECKPOINT + 1), FP32, "states of a stretch");
    let of_qkv = grad(t, s.conv, "qkv gradient");
    drop(repeated);
    of_qkv
}

/// `(out + v · D) · silu(g)`: the skip keeps values, the gate both of its factors.
fn gate(c: &Rank, params: &M2rnnParams, packed: &Tensor, qkv: &Tensor, out: Tensor, s: Sizes) -> Tensor {
    let skipped = c.act(s.inner, "skip");
    let summed = c.act(s.inner, "scan output with skip");
    let elements = params.d.elements;
    let edges = vec![out.edge(), qkv.edge(), params.d.edge()];
    c.tape.record(edges, &[&summed], vec![qkv.clone()], move |t, grads, _saved| {
        let of_skip = grad(t, s.inner, "skip gradient");
        let of_qkv = grad(t, s.conv, "qkv gradient");
        drop(of_skip);
        vec![grads[0].clone(), Some(of_qkv), Some(weight_grad(t, elements))]
    });
    drop((skipped, out));
    let activated = c.act(s.inner, "activated gate");
    let gated = c.act(s.inner, "gated output");
    let total = packed.elements();
    let saved = vec![summed.clone(), activated, packed.clone()];
    c.tape.record(vec![summed.edge(), packed.edge()], &[&gated], saved, move |t, _, _saved| {
        let dx = grad(t, s.inner, "gated output gradient");
        let _of_gate = (grad(t, s.inner, "gate gradient"), grad(t, s.inner, "gate gradient"));
        vec![Some(dx), Some(grad(t, total, "packed projection gradient"))]
    });
    gated
}
