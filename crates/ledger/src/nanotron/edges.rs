//! The token table, and the head with its loss.

use super::linear;
use super::model::Head;
use super::ops::{self, grad, grad_of, makes, weight_grad};
use super::rank::Rank;
use replay::line::Line;
use replay::tape::{BF16, BYTE, FP32, INT64, Tape, Tensor};
use std::rc::Rc;

/// `parallel/tensor_parallel/nn.py` TensorParallelEmbedding.forward: rows of other ranks are masked
/// into a copy, which is scattered along the sequence.
pub(super) fn embed(c: &Rank, table: &Tensor) -> Tensor {
    let config = &c.config;
    let elements = config.tokens * config.hidden;
    let found = lookup(c, table);
    if config.tp == 1 {
        return found;
    }
    let mask = c.act_of(config.tokens, BYTE, "vocabulary mask");
    let masked = c.act(elements, "masked embedding");
    makes(c, &found, &[&masked], vec![mask], elements);
    drop(found);
    let part = c.act(config.local_tokens * config.hidden, "embedding part");
    makes(c, &masked, &[&part], Vec::new(), elements);
    part
}

/// Backward is dense over the vocabulary, with fp32 partial sums by segment of equal tokens
/// (`aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu`).
fn lookup(c: &Rank, table: &Tensor) -> Tensor {
    let (tokens, hidden, rows) = (c.config.tokens, c.config.hidden, c.config.vocab);
    let out = c.act(tokens * hidden, "embedding output");
    let ids = c.act_of(tokens, INT64, "token ids");
    let elements = table.elements();
    c.tape.record(vec![table.edge()], &[&out], vec![ids], move |t, _, _saved| {
        let dw = weight_grad(t, elements);
        let _ids = ["sorted ids", "origin of ids", "counts of ids"].map(|name| grad_of(t, tokens, INT64, name));
        let segments = tokens / 10 + tokens.min(rows);
        let _partials = grad_of(t, segments * hidden, FP32, "embedding partials");
        vec![Some(dw)]
    });
    out
}

/// Final norm, head, and the loss over this rank's rows of the vocabulary.
pub(super) fn head(c: &Rc<Rank>, weights: &Head, table: &Tensor, x: &Tensor) -> Tensor {
    let tokens = c.config.tokens;
    let logits = logits(c, weights, table, x);
    let losses = cross_entropy(c, &logits);
    drop(logits);
    let mean = loss(&c.tape, 1, FP32, "loss");
    c.tape.record(vec![losses.edge()], &[&mean], Vec::new(), move |t, _, _| {
        vec![Some(loss(t, tokens, FP32, "loss gradient"))]
    });
    mean
}

fn loss(t: &Tape, elements: u64, width: u64, name: &'static str) -> Tensor {
    t.tensor(Line::Loss, elements, width, name)
}

/// `models/llama.py` forward_with_hidden_states: the bf16 logits are a local until it returns them
/// in fp32 (`cast_to_fp32`).
fn logits(c: &Rc<Rank>, weights: &Head, table: &Tensor, x: &Tensor) -> Tensor {
    let wide = c.config.tokens * c.config.vocab;
    let normed = ops::rmsnorm(c, x, &weights.norm.leaf());
    let own = weights.weight.as_ref().map(|weight| weight.leaf());
    let narrow = linear::column(c, &normed, own.as_ref().unwrap_or(table), c.config.vocab, Line::Loss);
    let logits = loss(&c.tape, wide, FP32, "fp32 logits");
    c.tape.record(vec![narrow.edge()], &[&logits], Vec::new(), move |t, _, _| {
        vec![Some(loss(t, wide, BF16, "logits gradient"))]
    });
    logits
}

/// `parallel/tensor_parallel/functional.py` _ShardedCrossEntropy: the logits less their maximum are
/// a second fp32 tensor, which becomes the softmax and then the gradient in place.
fn cross_entropy(c: &Rank, logits: &Tensor) -> Tensor {
    let (tokens, t) = (c.config.tokens, &c.tape);
    let max = loss(t, tokens, FP32, "logits max");
    drop(loss(t, tokens, INT64, "logits argmax"));
    let softmax = loss(t, tokens * c.config.vocab, FP32, "softmax");
    drop(max);
    let losses = loss(t, tokens, FP32, "losses");
    let mask = loss(t, tokens, BYTE, "target mask");
    let target = loss(t, tokens, INT64, "masked target");
    t.record(vec![logits.edge()], &[&losses], vec![softmax, mask, target], |_, _, mut saved| {
        vec![Some(saved.swap_remove(0))]
    });
    losses
}

/// The gradient a stage begins backward with: of the loss, or received from the next stage
/// (`parallel/pipeline_parallel/functional.py` SendTensorToPipelineBuffer.backward).
pub(super) fn first_gradient(c: &Rank) -> Tensor {
    if c.config.is_whole() {
        return loss(&c.tape, 1, FP32, "loss gradient");
    }
    grad(&c.tape, c.config.local_tokens * c.config.hidden, "received gradient")
}
