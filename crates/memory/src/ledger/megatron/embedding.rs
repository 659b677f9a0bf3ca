//! The token table (`megatron/core/tensor_parallel/layers.py` VocabParallelEmbedding,
//! `megatron/core/models/common/embeddings/language_model_embedding.py`).

use super::ops::{grad_of, makes, passes, weight_grad};
use super::params::Param;
use super::rank::Rank;
use crate::tape::{BF16, BYTE, FP32, INT64, Tensor};

/// Looks tokens up and leaves them as layers expect them.
pub(super) fn forward(c: &Rank, table: &Param) -> Tensor {
    let config = &c.config;
    let elements = config.tokens * config.hidden;
    let mut x = lookup(c, table);
    if config.tp > 1 {
        x = mask(c, x);
    }
    if config.sp {
        return scatter(c, x);
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
fn lookup(c: &Rank, table: &Param) -> Tensor {
    let (tokens, hidden, rows) = (c.config.tokens, c.config.hidden, c.config.vocab);
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
