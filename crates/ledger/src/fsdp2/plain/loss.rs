//! Final norm, output head and `cross_entropy(logits.float())`: with tensor parallelism over
//! shards of the vocabulary (`torch/distributed/tensor/parallel/loss.py`).

use super::ops::{enter, grad_of, linear, norm};
use super::params::{Linear, NormParams};
use super::rank::Rank;
use replay::line::Line;
use replay::tape::{BF16, FP32, Tensor};
use std::rc::Rc;

/// Final norm and output head.
pub(super) struct Head {
    pub norm: NormParams,
    pub weight: Linear,
}

/// Logits of this rank's shard of the vocabulary.
pub(super) fn logits(c: &Rc<Rank>, head: &Head, x: &Tensor) -> Tensor {
    let x = norm(c, x, c.config.hidden, &head.norm);
    let x = enter(c, &x);
    linear(c, &x, &head.weight)
}

/// The loss as one compiled function (torchtitan's `compile.components` has it besides the blocks): no copy of logits is
/// made. Kept are logits, the largest of a row and the logarithm of its sum; backward reads them and writes the
/// gradient in the logits' format. Read off what torch 2.15's inductor allocates for `components/loss.py`.
pub(crate) fn compiled_cross_entropy(c: &Rank, logits: &Tensor) -> Tensor {
    let (elements, tokens) = (logits.elements(), c.config.tokens);
    let statistics = |name| c.tape.tensor(Line::Loss, tokens, FP32, name);
    let saved = vec![logits.clone(), statistics("largest logits"), statistics("logarithms of sums")];
    let loss = c.tape.tensor(Line::Loss, 1, FP32, "loss");
    c.tape.record(vec![logits.edge()], &[&loss], saved, move |t, _, _saved| {
        let _rows = t.tensor(Line::Loss, tokens, FP32, "loss gradient of rows");
        vec![Some(t.tensor(Line::Loss, elements, BF16, "logits gradient"))]
    });
    loss
}

/// The loss of one microbatch. Logits are the caller's until the loss is taken; their fp32 copy
/// is the function's argument until it returns; the logarithms are saved.
pub(crate) fn cross_entropy(c: &Rank, logits: Tensor) -> Tensor {
    let (elements, is_split) = (logits.elements(), c.config.tp > 1);
    let fp32 = |name| c.tape.tensor(Line::Loss, elements, FP32, name);
    let wide = fp32("fp32 logits");
    let back = move |t: &replay::tape::Tape| t.tensor(Line::Loss, elements, BF16, "logits gradient");
    c.tape.record(vec![logits.edge()], &[&wide], Vec::new(), move |t, _, _| vec![Some(back(t))]);
    // Over shards: logits less their maximum, exponentials for the sum, then the result.
    let shifted = is_split.then(|| fp32("shifted logits"));
    drop(is_split.then(|| fp32("exponentials")));
    let log = fp32("log softmax");
    drop(shifted);
    c.tape.record(vec![wide.edge()], &[&log], vec![log.alias()], move |t, _, _saved| {
        vec![Some(grad_of(t, elements, FP32, "log softmax gradient"))]
    });
    let loss = c.tape.tensor(Line::Loss, 1, FP32, "loss");
    let total = c.tape.tensor(Line::Loss, 1, FP32, "total weight");
    c.tape.record(vec![log.edge()], &[&loss], vec![log.clone(), total], move |t, _, _saved| {
        vec![Some(t.tensor(Line::Loss, elements, FP32, "loss gradient of logits"))]
    });
    loss
}
