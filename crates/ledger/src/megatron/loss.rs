//! Final norm, output head and the loss over the vocabulary
//! (`megatron/core/tensor_parallel/layers.py`, `tensor_parallel/cross_entropy.py`,
//! `fusions/fused_cross_entropy.py`; `transformer_engine/pytorch/cross_entropy.py`).

use super::model::Head;
use super::mtp;
use super::ops::{self, WeightProduct, grad};
use super::options::CrossEntropy;
use super::params::Param;
use super::rank::Rank;
use replay::line::{Line, Origin};
use replay::tape::{BF16, BYTE, FP32, INT64, Tape, Tensor};
use std::rc::Rc;

/// From hidden states to the loss; the prediction suffix, where there is one, comes first.
pub(super) fn forward(c: &Rc<Rank>, head: &Head, x: Tensor) -> Tensor {
    let config = &c.config;
    let mut normed = ops::norm(c, &x, config.hidden, &head.norm);
    drop(x);
    if let Some(suffix) = &head.suffix {
        normed = mtp::forward(c, suffix, &head.weight, normed);
        c.tape.enter(Origin::Head);
    }
    let _labels = (config.micro_batch > 1).then(|| c.act_of(config.tokens, INT64, "labels"));
    let logits = output_layer(c, &normed, &head.weight);
    let losses = cross_entropy(c, &logits);
    drop(logits);
    let tokens = config.tokens;
    let loss = loss(&c.tape, 1, FP32, "loss");
    c.tape.record(vec![losses.edge()], &[&loss], Vec::new(), move |t, _, _| {
        vec![Some(self::loss(t, tokens, FP32, "loss gradient"))]
    });
    loss
}

pub(super) fn loss(t: &Tape, elements: u64, width: u64, name: &'static str) -> Tensor {
    t.tensor(Line::Loss, elements, width, name)
}

/// A product of torch's, so cuBLAS keeps a workspace on each thread. Saves its input; under
/// sequence parallelism the input is gathered into the global buffer, in backward too.
pub(super) fn output_layer(c: &Rc<Rank>, x: &Tensor, weight: &Param) -> Tensor {
    let config = &c.config;
    let (local, full) = (config.local_tokens * config.hidden, config.tokens * config.hidden);
    if config.sp {
        c.gather_buffer(full);
    }
    c.torch_product();
    let flops = 2.0 * full as f64 * config.vocab as f64;
    c.tape.work(flops);
    let logits = loss(&c.tape, config.tokens * config.vocab, BF16, "logits");
    let (rank, is_gathered, product) = (c.clone(), config.sp, WeightProduct::of(c, weight));
    c.tape.record(vec![x.edge(), weight.edge()], &[&logits], vec![x.clone()], move |t, grads, saved| {
        rank.torch_product();
        t.work(2.0 * flops);
        let whole = grad(t, full, "head input gradient");
        let reduced = is_gathered.then(|| grad(t, local, "scattered head input gradient"));
        let operands = saved.iter().cloned().chain(grads[0].clone()).collect();
        let dw = product.grad(t, operands);
        vec![Some(reduced.unwrap_or(whole)), dw]
    });
    logits
}

pub(super) fn cross_entropy(c: &Rank, logits: &Tensor) -> Tensor {
    match c.config.cross_entropy {
        CrossEntropy::Unfused => unfused(c, logits),
        CrossEntropy::FusedNative => fused(c, logits),
        CrossEntropy::FusedTransformerEngine => in_place(c, logits),
    }
}

/// The softmax overwrites the fp32 logits; backward overwrites the softmax, and the engine casts
/// it to the logits' format.
fn unfused(c: &Rank, logits: &Tensor) -> Tensor {
    let (tokens, t) = (c.config.tokens, &c.tape);
    let wide = tokens * c.config.vocab;
    let softmax = loss(t, wide, FP32, "fp32 logits");
    let _max = loss(t, tokens, FP32, "logits max");
    drop(loss(t, tokens, INT64, "logits argmax"));
    let mask = loss(t, tokens, BYTE, "target mask");
    let target = loss(t, tokens, INT64, "masked target");
    drop((loss(t, tokens, INT64, "row indices"), loss(t, tokens, FP32, "predicted logits")));
    let _predicted = loss(t, tokens, FP32, "predicted logits");
    let _sums = loss(t, tokens, FP32, "sums of exponentials");
    let losses = loss(t, tokens, FP32, "losses");
    t.record(vec![logits.edge()], &[&losses], vec![softmax, mask, target], move |t, _, _saved| {
        drop((loss(t, tokens, INT64, "row indices"), loss(t, tokens, FP32, "softmax update")));
        vec![Some(loss(t, wide, BF16, "logits gradient"))]
    });
    losses
}

/// Compiled: what is written in place in the source is a second fp32 tensor here, in forward and
/// in backward. Seen in measurement, not read from the generated code.
fn fused(c: &Rank, logits: &Tensor) -> Tensor {
    let (tokens, t) = (c.config.tokens, &c.tape);
    let wide = tokens * c.config.vocab;
    let first = loss(t, wide, FP32, "fp32 logits");
    let _max = loss(t, tokens, FP32, "logits max");
    let mask = loss(t, tokens, BYTE, "target mask");
    let target = loss(t, tokens, INT64, "masked target");
    let softmax = loss(t, wide, FP32, "fp32 logits");
    drop(first);
    let _predicted = loss(t, tokens, FP32, "predicted logits");
    let _sums = loss(t, tokens, FP32, "sums of exponentials");
    let losses = loss(t, tokens, FP32, "losses");
    t.record(vec![logits.edge()], &[&losses], vec![softmax, mask, target], move |t, _, _saved| {
        let _copy = loss(t, wide, FP32, "fp32 logits gradient");
        vec![Some(loss(t, wide, BF16, "logits gradient"))]
    });
    losses
}

/// Transformer Engine before 2.18 (`pytorch/triton/cross_entropy.py`): the kernel writes the gradient
/// over the logits in forward, saves them, and backward scales them where they lie. Maximum, sum
/// and target logit of each token are fp32, those of all tensor ranks gathered. Later versions
/// keep an fp32 gradient apart, and are not replayed.
fn in_place(c: &Rank, logits: &Tensor) -> Tensor {
    let (tokens, tp, t) = (c.config.tokens, c.config.tp, &c.tape);
    let losses = loss(t, tokens, FP32, "losses");
    let _parts = loss(t, tokens * 3, FP32, "softmax parts");
    let _counted = loss(t, 1, INT64, "counted tokens");
    let _gathered = (tp > 1).then(|| loss(t, tokens * 3 * tp, FP32, "gathered softmax parts"));
    t.record(vec![logits.edge()], &[&losses], vec![logits.alias()], |_, _, saved| {
        saved.into_iter().map(Some).collect()
    });
    losses
}
