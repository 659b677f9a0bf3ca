//! Causal self-attention (`models/llama.py` CausalSelfAttention.forward, the branch for training). The published
//! rows have a key head a query head; no measured row shows grouped queries.

use super::linear::{self, Input};
use super::model::LayerWeights;
use super::ops::{self, grad, grad_of, makes};
use super::rank::Rank;
use replay::line::Line;
use replay::tape::{FP32, Tensor};
use std::rc::Rc;

/// From a normed input to the projection out of heads.
pub(super) fn forward(c: &Rc<Rank>, weights: &LayerWeights, x: &Tensor) -> Tensor {
    let config = &c.config;
    let (n, m) = (config.tokens * config.heads_width, config.tokens * config.kv_width);
    let is_grouped = n != m;
    // A local of the forward until it returns.
    let qkv = linear::column(c, x, &weights.qkv.leaf(), config.heads_width + 2 * config.kv_width, Line::Activations);
    let (q, kv) = if is_grouped { split_grouped(c, &qkv, n, m) } else { split(c, &qkv, n) };
    // `flash_attn`'s `layers/rotary.py`: queries out of place, keys inside `kv` in place.
    let rotated = c.act(n, "rotated queries");
    makes(c, &q, &[&rotated], Vec::new(), n);
    drop(q);
    let (k, v) = (kv.part(m), kv.part(m));
    // The backward of a split is a concatenation.
    makes(c, &kv, &[&k, &v], Vec::new(), 2 * m);
    drop(kv);
    let out = flash(c, rotated, k, v);
    let input = if config.micro_batch > 1 { Input::Transposed } else { Input::Contiguous };
    linear::row(c, &out, &weights.out.leaf(), input)
}

/// `torch.split` into queries, keys and values, each transposed into a copy of its own; keys and values are then
/// concatenated, and permuted into a second copy.
fn split_grouped(c: &Rank, qkv: &Tensor, n: u64, m: u64) -> (Tensor, Tensor) {
    let parts = [qkv.part(n), qkv.part(m), qkv.part(m)];
    // The backward of a split is a concatenation.
    makes(c, qkv, &[&parts[0], &parts[1], &parts[2]], Vec::new(), n + 2 * m);
    let [q, k, v] = parts;
    let q = ops::copy(c, &q, n, "transposed queries");
    let (k, v) = (ops::copy(c, &k, m, "transposed keys"), ops::copy(c, &v, m, "transposed values"));
    let joined = c.act(2 * m, "joined keys and values");
    c.tape.record(vec![k.edge(), v.edge()], &[&joined], Vec::new(), move |_, grads, _| {
        let part = grads[0].as_ref().map(|grad| grad.part(m));
        vec![part.clone(), part]
    });
    drop((k, v));
    let kv = ops::copy(c, &joined, 2 * m, "permuted keys and values");
    (q, kv)
}

/// `view(s, b, 3, n, d).permute(2, 1, 0, 3, 4).contiguous()` unbound into three; keys and values
/// are then concatenated, and permuted into a second copy.
fn split(c: &Rank, qkv: &Tensor, n: u64) -> (Tensor, Tensor) {
    let permuted = c.act(3 * n, "permuted qkv");
    makes(c, qkv, &[&permuted], Vec::new(), 3 * n);
    let (q, k, v) = (permuted.part(n), permuted.part(n), permuted.part(n));
    // The backward of unbinding is a stack.
    makes(c, &permuted, &[&q, &k, &v], Vec::new(), 3 * n);
    drop(permuted);
    let joined = c.act(2 * n, "joined keys and values");
    c.tape.record(vec![k.edge(), v.edge()], &[&joined], Vec::new(), move |_, grads, _| {
        let part = grads[0].as_ref().map(|grad| grad.part(n));
        vec![part.clone(), part]
    });
    let kv = ops::copy(c, &joined, 2 * n, "permuted keys and values");
    (q, kv)
}

/// `flash_attn_interface.py` FlashAttnVarlenFunc; backward's sums are fp32 and padded by 128 rows a
/// sequence (`csrc/flash_attn/flash_api.cpp` mha_varlen_bwd).
fn flash(c: &Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensor {
    let config = &c.config;
    let (tokens, batch, heads, width) = (config.tokens, config.micro_batch, config.heads, config.heads_width);
    let (n, m, rows) = (tokens * width, tokens * config.kv_width, config.sequence.next_multiple_of(128));
    let out = c.act(n, "attention output");
    let sums = c.act_of(tokens * heads, FP32, "softmax sums");
    let edges = vec![q.edge(), k.edge(), v.edge()];
    c.tape.record(edges, &[&out], vec![q, k, v, out.alias(), sums], move |t, _grads, _saved| {
        // The gradient of a transposed view is copied.
        let _copied = (batch > 1).then(|| grad(t, n, "output gradient"));
        let made = [("query gradient", n), ("key gradient", m), ("value gradient", m)]
            .map(|(name, size)| Some(grad(t, size, name)));
        // With grouped heads the kernel writes a gradient a query head, summed over each group.
        let _expanded = (n != m).then(|| (grad(t, n, "expanded key gradient"), grad(t, n, "expanded value gradient")));
        let _sums = grad_of(t, (tokens + 128 * batch) * width, FP32, "sums of query gradients");
        let _dots = grad_of(t, batch * heads * rows, FP32, "softmax dots");
        made.to_vec()
    });
    out
}
