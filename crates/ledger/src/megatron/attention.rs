//! Grouped-query attention (`megatron/core/transformer/attention.py`) over Transformer Engine's
//! fused kernel (`attention/dot_product_attention/backends.py` FusedAttnFunc).

use super::blocks::AttentionParams;
use super::cp_attention;
use super::linear::{Keeps, Mode, linear, norm_linear};
use super::ops::{copy, grad, grad_of, makes, rmsnorm, weight_grad};
use super::params::Param;
use super::rank::Rank;
use super::rope::{Storing, rotate};
use layout::request::RecomputeModule;
use replay::tape::{BF16, BYTE, FP32, INT64, Tensor, checkpoint};
use std::rc::Rc;

/// Heads of one rank, and their widths.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub query: u64,
    pub kv: u64,
    pub qk_dim: u64,
    pub v_dim: u64,
}

pub(super) fn forward(c: &Rc<Rank>, params: &AttentionParams, x: &Tensor) -> Tensor {
    let config = &c.config;
    let sizes = config.attention();
    let width = sizes.head_dim;
    let kv = (sizes.kv_heads / config.tp).max(1);
    let heads = Heads { query: sizes.heads / config.tp, kv, qk_dim: width, v_dim: width };
    let Packed { query: query_part, key: key_part, value, gate } = split(c, params, x, heads);
    let (query, key) = heads_of(c, params, &query_part, &key_part, heads);
    drop((query_part, key_part));
    // `qkv_output` is a local of `Attention.forward`: queries and keys before rotation live until
    // it returns.
    let (_unrotated_query, _unrotated_key) = (query.clone(), key.clone());
    let (query, key) = if config.rotates {
        let query = rotate(c, &query, heads.query, width, Storing::Halves);
        (query, rotate(c, &key, heads.kv, width, Storing::Halves))
    } else {
        (query, key)
    };
    let rank = c.clone();
    let core = move |inputs: &[Tensor]| contiguous_core(&rank, inputs, heads);
    let mut out = run_core(c, [&query, &key, &value], core);
    if let Some(sinks) = &params.sinks {
        out = sunk(c, out, sinks);
    }
    if let Some(gate) = gate {
        out = gated(c, &out, &gate);
    }
    linear(c, &out, Mode::Row, (heads.query * width, config.hidden), &params.proj.weight, Keeps::Original)
}

/// Sinks are a handful of numbers that the kernel reads; what counts of them is that they have a gradient.
fn sunk(c: &Rank, out: Tensor, sinks: &Param) -> Tensor {
    let (same, elements) = (out.alias(), sinks.elements);
    c.tape.record(vec![out.edge(), sinks.edge()], &[&same], Vec::new(), move |t, grads, _| {
        vec![grads[0].clone(), Some(weight_grad(t, elements))]
    });
    same
}

/// Strided parts of the packed projection.
struct Packed {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gate: Option<Tensor>,
}

/// `out * sigmoid(gate)`, compiled (`_apply_output_gate`): the kernel keeps both factors, the gate
/// as a slice of the packed projection, which so stays whole.
fn gated(c: &Rank, out: &Tensor, gate: &Tensor) -> Tensor {
    let elements = out.elements();
    let gated = c.act(elements, "gated attention output");
    let saved = vec![out.clone(), gate.clone()];
    c.tape.record(vec![out.edge(), gate.edge()], &[&gated], saved, move |t, _, _saved| {
        let dx = grad(t, elements, "gated output gradient");
        vec![Some(dx), Some(grad(t, elements, "output gate gradient"))]
    });
    gated
}

/// Runs attention's core, or runs it again in backward when `core_attn` is recomputed.
pub(super) fn run_core(c: &Rank, inputs: [&Tensor; 3], core: impl Fn(&[Tensor]) -> Tensor + 'static) -> Tensor {
    if c.config.recomputes(RecomputeModule::CoreAttn) {
        return checkpoint(&c.tape, &inputs, core);
    }
    core(&inputs.map(Tensor::clone))
}

/// The packed projection and its three strided parts; the split's backward concatenates.
fn split(c: &Rank, params: &AttentionParams, x: &Tensor, heads: Heads) -> Packed {
    let config = &c.config;
    let mut mixed = norm_linear(c, x, config.hidden, params.qkv.weight.elements / config.hidden, &params.qkv);
    if config.attention().kv_heads < config.tp {
        // Fewer KV heads than ranks: the packed projection is gathered, then sliced.
        let whole = c.comm(mixed.elements() * config.tp, "gathered qkv");
        makes(c, &mixed, &whole, Vec::new(), mixed.elements(), BF16);
        mixed = whole;
    }
    let query_elements = config.tokens * heads.query * heads.qk_dim;
    let kv_elements = config.tokens * heads.kv * heads.qk_dim;
    let gate = config.attention().has_gate.then(|| mixed.part(query_elements));
    let (query, key, value) = (mixed.part(query_elements), mixed.part(kv_elements), mixed.part(kv_elements));
    let total = (1 + u64::from(gate.is_some())) * query_elements + 2 * kv_elements;
    let outputs: Vec<&Tensor> = [&query, &key, &value].into_iter().chain(&gate).collect();
    c.tape.record(vec![mixed.edge()], &outputs, Vec::new(), move |t, _, _| vec![Some(grad(t, total, "qkv gradient"))]);
    Packed { query, key, value, gate }
}

/// Queries and keys by head, normalised where the recipe says so.
fn heads_of(c: &Rank, params: &AttentionParams, query: &Tensor, key: &Tensor, heads: Heads) -> (Tensor, Tensor) {
    // [s, b, groups, r·d] to [s, b, heads, d] is a copy unless there is one group.
    let query = if heads.kv > 1 { copy(c, query, query.elements(), "query") } else { query.view() };
    let Some((query_norm, key_norm)) = &params.head_norms else { return (query, key.clone()) };
    // Transformer Engine's norm makes its input contiguous. Modelled from source.
    let rows = |x: &Tensor| if x.is_dense() { x.clone() } else { copy(c, x, x.elements(), "head rows") };
    let query = rmsnorm(c, &rows(&query), heads.qk_dim, query_norm);
    (query, rmsnorm(c, &rows(key), heads.qk_dim, key_norm))
}

/// Transformer Engine makes what is still a slice of the packed projection contiguous.
fn contiguous_core(c: &Rank, inputs: &[Tensor], heads: Heads) -> Tensor {
    let dense = |x: &Tensor, name| if x.is_dense() { x.clone() } else { copy(c, x, x.elements(), name) };
    let (query, key) = (dense(&inputs[0], "query"), dense(&inputs[1], "key"));
    let elements = c.config.tokens * heads.kv * heads.v_dim;
    let value = copy(c, &inputs[2], elements, "value");
    fused(c, [&query, &key, &value], heads)
}

/// Saves queries, keys, values, output, fp32 statistics and the random state.
pub(super) fn fused(c: &Rank, inputs: [&Tensor; 3], heads: Heads) -> Tensor {
    if c.config.cp > 1 {
        return cp_attention::forward(c, inputs, heads);
    }
    let tokens = c.config.tokens;
    // Half of the products fall away under a causal mask; backward has five for forward's two.
    let documents = c.config.told.documents;
    let seen = documents.map_or(c.config.sequence as f64, |d| d.mean(c.config.sequence, |length| length));
    let pairs = tokens as f64 * seen;
    let flops = pairs * (heads.query * (heads.qk_dim + heads.v_dim)) as f64;
    c.tape.work(flops);
    let out = c.act(tokens * heads.query * heads.v_dim, "attention output");
    let statistics = c.act_of(tokens * heads.query, FP32, "softmax statistics");
    let random = c.act_of(2, INT64, "random state");
    // Over documents the graph is made for a number of tokens that others share.
    let planned = if documents.is_some() { most_tokens(tokens) } else { tokens };
    let workspace = backward_workspace(planned, heads) + by_query_head(c, planned, heads);
    let mut saved: Vec<Tensor> = inputs.map(Tensor::clone).to_vec();
    saved.extend([out.alias(), statistics, random]);
    saved.extend(c.borders());
    c.tape.record(inputs.map(Tensor::edge).to_vec(), &[&out], saved, move |t, _, _saved| {
        t.work(flops * 2.5);
        let dq = grad(t, tokens * heads.query * heads.qk_dim, "query gradient");
        let dk = grad(t, tokens * heads.kv * heads.qk_dim, "key gradient");
        let dv = grad(t, tokens * heads.kv * heads.v_dim, "value gradient");
        let _workspace = grad_of(t, workspace, BYTE, "attention workspace");
        vec![Some(dq), Some(dk), Some(dv)]
    });
    out
}

/// Tokens that Transformer Engine builds cuDNN's graph over packed sequences for (`common/fused_attn/utils.cu`
/// get_max_tokens): a power of two from 1024 to 32768, and whole 32768s beyond.
fn most_tokens(tokens: u64) -> u64 {
    match tokens {
        0..=32_768 => tokens.next_power_of_two().max(1024),
        _ => tokens.next_multiple_of(32_768),
    }
}

/// cuDNN's workspace in bytes: fp32 accumulator of the query gradient and softmax sums
/// (`cudnn_frontend/node/scaled_dot_product_flash_attention.h`).
pub(super) fn backward_workspace(tokens: u64, heads: Heads) -> u64 {
    tokens * heads.query * (heads.qk_dim + 1) * FP32
}

/// Where queries share keys, cuDNN makes the gradients of keys and values for every query head first,
/// in the same workspace (`dK_fullhead` and `dV_fullhead` there). Traces of launches show it; rows of
/// Megatron-Core by itself were settled without, and peak elsewhere.
pub(super) fn by_query_head(c: &Rank, tokens: u64, heads: Heads) -> u64 {
    if !c.config.is_trained() || heads.kv == heads.query {
        return 0;
    }
    tokens * heads.query * (heads.qk_dim + heads.v_dim) * BF16 + 256
}
