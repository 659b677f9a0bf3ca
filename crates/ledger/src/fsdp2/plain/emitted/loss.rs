//! The edges: token table and losses (`model.py` Tokens and Head, `collectives.py` _CrossEntropy, `teacher.py` _Distance).

use super::super::ops::passes;
use super::super::params::{Linear, Param};
use super::super::rank::Rank;
use super::borders::leave;
use replay::line::Line;
use replay::tape::{BF16, FP32, INT32, INT64, Tensor};
use std::rc::Rc;

/// Rows of the token table. Under tensor parallelism rows of other ranks are zeros, and a mask of
/// one number a token is kept.
pub(in super::super) fn embed(c: &Rc<Rank>, table: &Rc<Param>, tokens: Option<&Tensor>) -> Tensor {
    let (count, is_cut) = (c.config.tokens, c.config.tp > 1);
    let ids = if is_cut { Some(c.act_of(count, INT64, "local ids")) } else { tokens.cloned() };
    let found = c.act(count * c.config.hidden, "embedding output");
    let saved = ids.into_iter().collect();
    let held = table.clone();
    c.tape.record(vec![table.edge()], &[&found], saved, move |t, _, _saved| vec![held.gradient(t)]);
    if !is_cut {
        return found;
    }
    let mask = c.act(count, "mask of local ids");
    let masked = c.act(found.elements(), "masked embedding");
    let elements = found.elements();
    c.tape.record(vec![found.edge()], &[&masked], vec![mask], move |t, _, _saved| {
        vec![Some(super::super::ops::grad(t, elements, "masked gradient"))]
    });
    drop(found);
    leave(c, masked)
}

/// One fp32 buffer, which is probabilities when it is saved and their gradient in backward.
pub(in super::super) fn cross_entropy(c: &Rank, logits: Tensor) -> Tensor {
    let elements = logits.elements();
    let loss = |elements, width, name| c.tape.tensor(Line::Loss, elements, width, name);
    let index = loss(c.config.tokens, INT64, "target index");
    let local = loss(c.config.tokens, 1, "mask of local targets");
    let _top = loss(c.config.tokens, BF16, "highest logits");
    let probabilities = loss(elements, FP32, "probabilities");
    let total = loss(1, FP32, "loss");
    let saved = vec![probabilities, index, local];
    c.tape.record(vec![logits.edge()], &[&total], saved, move |t, _, _saved| {
        vec![Some(t.tensor(Line::Loss, elements, BF16, "logits gradient"))]
    });
    share_of(c, &total)
}

/// A sum of losses divided by the tokens of the step.
pub(in super::super) fn share_of(c: &Rank, total: &Tensor) -> Tensor {
    let share = c.tape.tensor(Line::Loss, 1, FP32, "share of the loss");
    passes(c, &[total], &share);
    share
}

/// Liger's `fused_linear_cross_entropy_forward` (liger-kernel 0.8, `ops/fused_linear_cross_entropy.py`): logits of a
/// chunk of tokens at a time, in one buffer that becomes their gradient; both gradients are made on the way and saved.
pub(in super::super) fn fused_cross_entropy(c: &Rc<Rank>, x: &Tensor, head: &Linear) -> Tensor {
    let (tokens, weight) = (c.config.tokens, head.weight.clone());
    let loss = |elements, width, name| c.tape.tensor(Line::Loss, elements, width, name);
    let _targets = loss(tokens, INT64, "targets");
    let hidden = loss(x.elements(), BF16, "hidden gradient");
    let kept = weight.gradient(&c.tape);
    let _each = (loss(tokens, FP32, "loss of every token"), loss(tokens, 1, "mask of targets"));
    c.product();
    let logits = loss(chunk(tokens, weight.rows, weight.columns) * weight.rows, BF16, "logits of a chunk");
    drop(logits);
    let total = loss(1, FP32, "loss");
    let has_weight = kept.is_some();
    let saved = std::iter::once(hidden).chain(kept).collect();
    c.tape.record(vec![x.edge(), weight.edge()], &[&total], saved, move |_, _, saved| {
        vec![Some(saved[0].clone()), has_weight.then(|| saved[1].clone())]
    });
    total
}

/// Tokens whose logits are there at once: about as many elements as all hidden states.
fn chunk(tokens: u64, vocab: u64, hidden: u64) -> u64 {
    tokens.div_ceil(vocab.div_ceil(hidden)).next_power_of_two().min(tokens)
}

/// cut-cross-entropy 25.1 (`cce.py`, `cce_lse_forward.py`, `cce_backward.py`): forward keeps a sum of exponentials a
/// token and a mean logit a word; backward makes blocks of logits once more, words in the order of those means, and both
/// gradients whole. Which targets count is asked first, as indices of all that do.
pub(in super::super) fn cut_cross_entropy(c: &Rc<Rank>, x: &Tensor, head: &Linear) -> Tensor {
    let (tokens, weight) = (c.config.tokens, head.weight.clone());
    let loss = |elements, width, name| c.tape.tensor(Line::Loss, elements, width, name);
    let targets = loss(tokens, INT64, "targets");
    let mask = loss(tokens, 1, "mask of targets");
    let indices = loss(tokens, INT64, "indices of targets");
    drop(mask);
    drop((loss(tokens, INT32, "narrow indices of targets"), indices));
    let sums = loss(tokens, FP32, "logarithms of sums");
    let locks = loss(tokens.div_ceil(128), INT32, "locks");
    let means = loss(weight.rows, FP32, "mean logit of every word");
    drop(locks);
    let _each = loss(tokens, FP32, "loss of every token");
    let total = loss(1, FP32, "loss");
    let (elements, width) = (x.elements(), weight.columns.div_ceil(64));
    let saved = vec![x.clone(), sums, targets, means];
    c.tape.record(vec![x.edge(), weight.edge()], &[&total], saved, move |t, _, _saved| {
        let made = |elements, width, name| t.tensor(Line::Loss, elements, width, name);
        let sorted = (made(weight.rows, FP32, "sorted means"), made(weight.rows, INT64, "order of words"));
        let _order = made(weight.rows, INT32, "narrow order of words");
        drop(sorted);
        let dx = made(elements, BF16, "hidden gradient");
        let dw = weight.gradient(t);
        let locks = |count: u64| count.div_ceil(width) * width;
        let _locks = (made(locks(tokens), INT32, "locks"), made(locks(weight.rows), INT32, "locks"));
        vec![Some(dx), dw]
    });
    total
}

/// The distance of two distributions over the vocabulary: both as logarithms in fp32, the wanted one's probabilities,
/// and in the model's own buffer the gradient, which is all that is saved.
pub(in super::super) fn distance(c: &Rank, logits: Tensor, wanted: Tensor) -> Tensor {
    let elements = logits.elements();
    let loss = |elements, width, name| c.tape.tensor(Line::Loss, elements, width, name);
    let logarithms = |name| {
        let _wide = loss(elements, FP32, "logits in fp32");
        loss(elements, FP32, name)
    };
    let made = logarithms("logarithms of probabilities");
    let aim = logarithms("wanted logarithms");
    let probabilities = loss(elements, FP32, "wanted probabilities");
    let total = loss(1, FP32, "loss");
    drop((aim, probabilities, wanted));
    c.tape.record(vec![logits.edge()], &[&total], vec![made], move |t, _, _saved| {
        vec![Some(t.tensor(Line::Loss, elements, BF16, "logits gradient"))]
    });
    share_of(c, &total)
}
