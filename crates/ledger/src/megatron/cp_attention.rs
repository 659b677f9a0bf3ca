//! Attention over a ring of context-parallel ranks (`transformer_engine/pytorch/attention/
//! dot_product_attention/context_parallel.py` AttnFuncWithCPAndKVP2P). Forward is confirmed by a
//! measured row; backward is modelled from source.

use super::attention::{Heads, backward_workspace, by_query_head};
use super::ops::{grad, grad_of};
use super::rank::Rank;
use replay::allocator::Stream;
use replay::tape::{BYTE, FP32, INT64, Tensor};

/// Sizes of one rank's part.
#[derive(Clone, Copy)]
struct Sizes {
    query: u64,
    key: u64,
    value: u64,
    tokens: u64,
    ranks: u64,
    rank: u64,
    heads: Heads,
    /// Bytes of cuDNN's workspace for gradients of keys and values by query head.
    by_query_head: u64,
}

impl Sizes {
    fn of(c: &Rank, heads: Heads) -> Sizes {
        let tokens = c.config.tokens;
        Sizes {
            query: tokens * heads.query * heads.qk_dim,
            key: tokens * heads.kv * heads.qk_dim,
            value: tokens * heads.kv * heads.v_dim,
            tokens,
            ranks: c.config.cp,
            rank: c.config.cp_rank,
            heads,
            by_query_head: by_query_head(c, tokens, heads),
        }
    }
}

/// Keys and values travel in one buffer; odd steps run on a second stream. Saves queries, the
/// last buffer, output, statistics and the random state of every step.
pub(super) fn forward(c: &Rank, inputs: [&Tensor; 3], heads: Heads) -> Tensor {
    let sizes = Sizes::of(c, heads);
    let mut ring = ring(c, sizes);
    let out = c.act(sizes.tokens * heads.query * heads.v_dim, "attention output");
    let mut saved = vec![inputs[0].clone(), out.alias()];
    saved.append(&mut ring.saved);
    // Buffers and partial outputs of every step live until the output is put together.
    drop(ring);
    c.tape.record(inputs.map(Tensor::edge).to_vec(), &[&out], saved, move |t, _, _saved| {
        let dq = grad(t, sizes.query, "query gradient");
        let pair = 2 * (sizes.key + sizes.value);
        let buffers = [grad(t, pair, "kv and gradient in flight"), grad(t, pair, "kv and gradient in flight")];
        for step in 0..sizes.ranks {
            backward_step(t, sizes, step);
        }
        // Gradients of keys and values are views of the buffer that arrived last.
        let arrived = &buffers[(sizes.ranks % 2) as usize];
        vec![Some(dq), Some(arrived.part(sizes.key)), Some(arrived.part(sizes.value))]
    });
    out
}

/// What the steps of the ring leave.
struct Ring {
    /// The last buffer, the statistics and the random states.
    saved: Vec<Tensor>,
    _spent: Vec<Tensor>,
}

fn ring(c: &Rank, sizes: Sizes) -> Ring {
    let Sizes { heads, tokens, .. } = sizes;
    let whole = tokens * heads.query * heads.v_dim;
    let buffer = || c.comm(sizes.key + sizes.value, "kv in flight");
    let (mut last, mut saved, mut spent) = (buffer(), Vec::new(), Vec::new());
    for step in 0..sizes.ranks {
        c.tape.on_stream(if step % 2 == 1 { Stream::Side } else { Stream::Main });
        if step + 1 < sizes.ranks {
            spent.push(std::mem::replace(&mut last, buffer()));
        }
        // Causal: the diagonal and earlier parts see all queries, later parts the second half.
        let elements = if step <= sizes.rank { whole } else { whole / 2 };
        spent.push(c.act(elements, "partial attention output"));
        spent.push(c.act_of(elements / heads.v_dim, FP32, "partial statistics"));
        saved.push(c.act_of(2, INT64, "random state"));
        if step == 1 {
            c.tape.on_stream(Stream::Main);
            saved.push(c.act_of(tokens * heads.query, FP32, "softmax statistics"));
        }
    }
    c.tape.on_stream(Stream::Main);
    saved.push(last);
    Ring { saved, _spent: spent }
}

/// One step back: gradients of what it saw, and cuDNN's workspace.
fn backward_step(t: &replay::tape::Tape, sizes: Sizes, step: u64) {
    let (query_parts, kv_parts) = match step {
        _ if step + 1 == sizes.ranks => (1, 1),
        _ if step + sizes.rank + 1 >= sizes.ranks => (1, 2),
        _ => (2, 1),
    };
    let _dq = grad(t, sizes.query / query_parts, "partial query gradient");
    let _dk = grad(t, sizes.key / kv_parts, "partial key gradient");
    let _dv = grad(t, sizes.value / kv_parts, "partial value gradient");
    let bytes = backward_workspace(sizes.tokens / query_parts, sizes.heads) + sizes.by_query_head / kv_parts;
    let _workspace = grad_of(t, bytes, BYTE, "attention workspace");
}
