//! The token table (`megatron/core/tensor_parallel/layers.py` VocabParallelEmbedding,
//! `megatron/core/models/common/embeddings/language_model_embedding.py`).

use super::ops::{grad_of, makes, passes, weight_grad};
use super::params::Param;
use super::rank::Rank;
use super::side::{self, SideParams};
use replay::tape::{BF16, BYTE, FP32, INT64, Tensor};
use std::rc::Rc;

/// What stands where tokens enter.
pub(super) struct Tables {
    pub tokens: Rc<Param>,
    pub positions: Option<Rc<Param>>,
    pub sides: Vec<SideParams>,
}

/// Looks tokens up, leaves them as layers expect them, and adds what stands beside the table.
pub(super) fn forward(c: &Rank, tables: &Tables) -> Tensor {
    tables.sides.iter().fold(tokens(c, tables), |x, side| side::add(c, &x, side))
}

/// With learned positions, tokens are summed over tensor-parallel ranks first and cut along the sequence last.
fn tokens(c: &Rank, tables: &Tables) -> Tensor {
    let config = &c.config;
    let elements = config.tokens * config.hidden;
    let mut x = lookup(c, &tables.tokens, config.vocab);
    if config.tp > 1 {
        x = mask(c, x);
    }
    if let Some(positions) = &tables.positions {
        x = add_positions(c, &x, positions);
    }
    if config.sp {
        return if tables.positions.is_some() { split(c, x) } else { scatter(c, x) };
    }
    if config.micro_batch > 1 {
        // [b, s, h] to [s, b, h].
        let transposed = c.act(elements, "embedding output");
        makes(c, &x, &transposed, Vec::new(), elements, BF16);
        return transposed;
    }
    x
}

/// Backward is dense over the vocabulary, with fp32 partial sums by segment of equal tokens
/// (`aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu`).
fn lookup(c: &Rank, table: &Param, rows: u64) -> Tensor {
    let (tokens, hidden) = (c.config.tokens, c.config.hidden);
    let out = c.act(tokens * hidden, "embedding output");
    let ids = c.act_of(tokens, INT64, "token ids");
    let elements = table.elements;
    c.tape.record(vec![table.edge()], &[&out], vec![ids], move |t, _, _saved| {
        let dw = weight_grad(t, elements);
        let _sorted = grad_of(t, tokens, INT64, "sorted ids");
        let _origin = grad_of(t, tokens, INT64, "origin of ids");
        let segments = tokens / 10 + tokens.min(rows);
        let _partials = grad_of(t, segments * hidden.next_multiple_of(32), FP32, "embedding partials");
        vec![Some(dw)]
    });
    out
}

/// Zeroes rows of other ranks in place; the backward of that assignment copies the gradient.
fn mask(c: &Rank, x: Tensor) -> Tensor {
    let tokens = c.config.tokens;
    let _mask = c.act_of(tokens, BYTE, "vocabulary mask");
    let indices = c.act_of(2 * tokens, INT64, "masked indices");
    let masked = x.alias();
    makes(c, &x, &masked, vec![indices], x.elements(), BF16);
    masked
}

/// Learned positions: a lookup of its own, then the sum.
fn add_positions(c: &Rank, x: &Tensor, table: &Param) -> Tensor {
    let looked_up = lookup(c, table, table.elements / c.config.hidden);
    let out = c.act(x.elements(), "embedding output");
    passes(c, &[x, &looked_up], &out);
    out
}

/// Cuts the whole along the sequence (`scatter_to_sequence_parallel_region`), then a copy so that
/// it can be freed. Backward gathers.
fn split(c: &Rank, x: Tensor) -> Tensor {
    let elements = x.elements();
    let mut whole = x;
    if c.config.micro_batch > 1 {
        let transposed = c.act(elements, "embedding output");
        makes(c, &whole, &transposed, Vec::new(), elements, BF16);
        whole = transposed;
    }
    let out = c.act(elements / c.config.tp, "embedding part");
    makes(c, &whole, &out, Vec::new(), elements, BF16);
    out
}

/// Reduce-scatter along the sequence, then a copy so that the whole can be freed.
fn scatter(c: &Rank, x: Tensor) -> Tensor {
    let elements = x.elements();
    let mut whole = x.clone();
    if c.config.micro_batch > 1 {
        whole = c.act(elements, "embedding output");
        passes(c, &[&x], &whole);
    }
    let part = c.act(elements / c.config.tp, "embedding part");
    makes(c, &whole, &part, Vec::new(), elements, BF16);
    drop((whole, x));
    let out = c.act(elements / c.config.tp, "embedding part");
    passes(c, &[&part], &out);
    out
}
