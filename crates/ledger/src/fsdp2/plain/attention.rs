//! Grouped-query attention: rotation through complex numbers, then
//! `scaled_dot_product_attention` on its flash kernel
//! (`aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`); a window is the same kernel's
//! (`window_size_left`), and saves the same.

use super::config::NormOver;
use super::ops::{cast, enter, grad, grad_of, leave, linear, makes, norm, passes, product, weight_grad};
use super::params::{AttentionParams, Param};
use super::rank::Rank;
use replay::tape::{BF16, FP32, INT64, Tensor};
use std::rc::Rc;

/// Widest head of torch's flash kernel (`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` check_head_dim_size_flash). Wider
/// ones run the memory-efficient kernel, which saves the same (`mem_eff_attention/kernel_backward.h` for what it sums in).
const WIDEST_HEAD: u64 = 256;

/// Heads of one rank, and their widths.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub query: u64,
    pub kv: u64,
    pub qk_dim: u64,
    pub v_dim: u64,
}

/// `x` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &AttentionParams, x: &Tensor) -> Tensor {
    let (config, sizes) = (&c.config, c.config.attention());
    let kv = (sizes.kv_heads / config.tp).max(1);
    let heads = Heads { query: sizes.heads / config.tp, kv, qk_dim: sizes.head_dim, v_dim: sizes.head_dim };
    let x = enter(c, x);
    let (mut q, mut k, v) = (linear(c, &x, &params.q), linear(c, &x, &params.k), linear(c, &x, &params.v));
    let gate = params.gate.as_ref().map(|gate| linear(c, &x, gate));
    if let (Some((q_norm, k_norm)), Some(over)) = (&params.qk_norm, sizes.qk_norm) {
        let widths = match over {
            NormOver::Head => (heads.qk_dim, heads.qk_dim),
            NormOver::All => (heads.query * heads.qk_dim, heads.kv * heads.qk_dim),
        };
        q = norm(c, &q, widths.0, q_norm);
        k = norm(c, &k, widths.1, k_norm);
    }
    if config.rotates {
        // Both are assigned at once, so that unrotated queries and keys live until both are turned.
        (q, k) = (rotate(c, &q), rotate(c, &k));
    }
    let out = flash(c, [&q, &k, &v], heads);
    drop((q, k, v));
    let out = match &params.sinks {
        Some(sinks) => sunk(c, out, sinks, heads),
        None => out,
    };
    let out = match gate {
        Some(gate) => gated(c, out, gate),
        None => out,
    };
    leave(c, linear(c, &out, &params.out))
}

/// The output times the sigmoid of its gate: keeps the gate's sigmoid and what it weighs.
fn gated(c: &Rank, out: Tensor, gate: Tensor) -> Tensor {
    let elements = out.elements();
    let weight = c.act(elements, "output gate");
    makes(c, &gate, &weight, vec![weight.alias()], elements, BF16);
    drop(gate);
    product(c, &out, &weight)
}

/// A learned sink a head: the output times the sigmoid of the softmax's logarithm less the sink, as torchtitan
/// 0.3.0 has it behind its kernel (`models/gpt_oss/model.py`).
fn sunk(c: &Rank, out: Tensor, sinks: &Rc<Param>, heads: Heads) -> Tensor {
    let (elements, scores) = (out.elements(), c.config.tokens * heads.query);
    let weight = c.act_of(scores, FP32, "sink weights");
    let size = sinks.elements();
    c.tape.record(vec![sinks.edge()], &[&weight], vec![weight.alias()], move |t, _, _saved| {
        let _weights = grad_of(t, scores, FP32, "sink weight gradient");
        vec![Some(weight_grad(t, size))]
    });
    let weighed = c.act(elements, "attention output");
    let saved = vec![out.clone(), weight.clone()];
    c.tape.record(vec![out.edge(), weight.edge()], &[&weighed], saved, move |t, _, _saved| {
        let dx = grad(t, elements, "attention output gradient");
        let _product = grad_of(t, elements, FP32, "sink product");
        vec![Some(dx), Some(grad_of(t, scores, FP32, "sink weight gradient"))]
    });
    weighed
}

/// Turns queries or keys: an fp32 copy, its product with the complex table, and a copy back.
/// The table asks for no gradient, so that the product saves the table alone; a compiled layer
/// does it in one kernel.
pub(super) fn rotate(c: &Rank, x: &Tensor) -> Tensor {
    if c.config.is_compiled {
        return cast(c, x, x.width(), "rotated");
    }
    let wide = cast(c, x, FP32, "fp32 query or key");
    let elements = x.elements();
    let turned = c.act_of(elements, FP32, "rotated fp32");
    c.tape.record(vec![wide.edge()], &[&turned], Vec::new(), move |t, _, _| {
        vec![Some(grad_of(t, elements, FP32, "rotated gradient"))]
    });
    cast(c, &turned, x.width(), "rotated")
}

/// Saves queries, keys, values, output, fp32 statistics and the random state.
pub(super) fn flash(c: &Rank, inputs: [&Tensor; 3], heads: Heads) -> Tensor {
    let tokens = c.config.tokens;
    let out = c.act(tokens * heads.query * heads.v_dim, "attention output");
    let statistics = c.act_of(tokens * heads.query, FP32, "softmax statistics");
    let random = [c.act_of(1, INT64, "random seed"), c.act_of(1, INT64, "random offset")];
    let mut saved: Vec<Tensor> = inputs.map(Tensor::clone).to_vec();
    saved.extend([out.alias(), statistics]);
    saved.extend(random);
    saved.extend(c.borders());
    // Over documents, rows that a block of the kernel may write beyond each (`flash_api.cpp` mha_varlen_bwd).
    let padded = tokens + c.config.documents().map_or(0, |documents| 128 * documents);
    c.tape.record(inputs.map(Tensor::edge).to_vec(), &[&out], saved, move |t, _, _saved| {
        let size = |heads, width| tokens * heads * width;
        let dq = grad(t, size(heads.query, heads.qk_dim), "query gradient");
        let dk = grad(t, size(heads.kv, heads.qk_dim), "key gradient");
        let dv = grad(t, size(heads.kv, heads.v_dim), "value gradient");
        let _sums = grad_of(t, padded * heads.query, FP32, "softmax sums");
        let _accumulator = grad_of(t, padded * heads.query * heads.qk_dim, FP32, "query accumulator");
        // A kernel of wider heads sums gradients of keys and values in fp32 as well.
        let is_wide = heads.qk_dim > WIDEST_HEAD;
        let _summed =
            is_wide.then(|| grad_of(t, size(heads.kv, heads.qk_dim + heads.v_dim), FP32, "key and value accumulators"));
        // With grouped heads the kernel writes a gradient a query head, summed over each group.
        let is_grouped = heads.query != heads.kv;
        let _expanded = is_grouped.then(|| {
            let dk = grad(t, size(heads.query, heads.qk_dim), "expanded key gradient");
            (dk, grad(t, size(heads.query, heads.v_dim), "expanded value gradient"))
        });
        vec![Some(dq), Some(dk), Some(dv)]
    });
    out
}

/// Joins two parts into a new tensor; backward hands on views of one gradient.
pub(super) fn concatenate(c: &Rank, parts: &[&Tensor], elements: u64, name: &'static str) -> Tensor {
    let out = c.act(elements, name);
    passes(c, parts, &out);
    out
}
