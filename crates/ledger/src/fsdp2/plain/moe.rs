//! Routed experts as torchtitan 0.3.0 writes them (`torchtitan/models/common/moe.py`,
//! `token_dispatcher.py`): tokens are sorted by expert, experts run as `torch._grouped_mm`, and
//! scores weigh their outputs in fp32 before they are added up.
//!
//! Saved: router input and fp32 scores; sort order; sorted (and received) tokens; gate, its
//! activation, up and their product; fp32 outputs and the scores that weigh them. Routing is
//! balanced: every rank receives its even share.

use super::mlp;
use super::ops::{activate, add, cast, enter, grad, grad_of, leave, linear, makes, weight_grad};
use super::params::{MoeParams, Param};
use super::rank::Rank;
use recipe::kinds::moe::ScoreFunction;
use replay::line::Line;
use replay::tape::{BF16, FP32, INT64, Tensor};
use std::rc::Rc;

/// `x` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &MoeParams, x: &Tensor) -> Tensor {
    // With expert parallelism each rank routes its own part of the sequence.
    let is_gathered = c.config.ep == 1;
    let tokens = if is_gathered { enter(c, x) } else { x.clone() };
    let routed = route(c, params, &tokens);
    let mut out = super::model::wrapped(c, params.unit, &tokens, |x| experts(c, params, x, &routed));
    if is_gathered {
        out = leave(c, out);
    }
    let Some(shared) = &params.shared else { return out };
    let mut beside = mlp::forward(c, shared, x);
    if let Some(gate) = &params.shared_gate {
        let score = linear(c, x, gate);
        let weight = c.act(score.elements(), "shared expert weight");
        makes(c, &score, &weight, vec![weight.alias()], score.elements(), BF16);
        beside = weighed(c, &beside, &weight);
    }
    add(c, &out, &beside)
}

/// Rows times one number each: saves both.
fn weighed(c: &Rank, x: &Tensor, weight: &Tensor) -> Tensor {
    let (elements, rows) = (x.elements(), weight.elements());
    let out = c.act(elements, "weighed shared expert");
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], vec![x.clone(), weight.clone()], move |t, _, _saved| {
        let dx = grad(t, elements, "shared expert gradient");
        let _product = grad(t, elements, "shared weight product");
        vec![Some(dx), Some(grad(t, rows, "shared weight gradient"))]
    });
    out
}

/// Scores of chosen experts in the order of experts, and the order.
struct Routed {
    scores: Tensor,
    order: Tensor,
    count: u64,
}

fn route(c: &Rc<Rank>, params: &MoeParams, x: &Tensor) -> Routed {
    let moe = c.config.moe();
    let tokens = x.elements() / c.config.hidden;
    let (all, count) = (tokens * moe.experts, tokens * moe.top_k);
    let logits = linear(c, x, &params.router);
    let wide = cast(c, &logits, FP32, "fp32 router logits");
    drop(logits);
    let scores = c.scratch(all, FP32, "router scores");
    makes(c, &wide, &scores, vec![scores.alias()], all, FP32);
    drop(wide);
    let biased = moe.has_expert_bias.then(|| c.scratch(all, FP32, "biased scores"));
    let chosen = c.scratch(count, FP32, "chosen scores");
    let experts = c.scratch(count, INT64, "chosen experts");
    makes(c, &scores, &chosen, vec![experts.clone()], all, FP32);
    drop((biased, scores));
    let chosen = if moe.score == ScoreFunction::Sigmoid { normalised(c, chosen, count) } else { chosen };
    let order = c.scratch(count, INT64, "sort order");
    let sorted = c.scratch(count, FP32, "sorted scores");
    makes(c, &chosen, &sorted, vec![order], count, FP32);
    let order = c.scratch(count, INT64, "token order");
    Routed { scores: sorted, order, count }
}

/// Scores over their sum: saves both.
fn normalised(c: &Rank, scores: Tensor, count: u64) -> Tensor {
    let sums = c.scratch(count / c.config.moe().top_k, FP32, "sums of scores");
    let out = c.scratch(count, FP32, "normalised scores");
    makes(c, &scores, &out, vec![scores.clone(), sums], count, FP32);
    out
}

/// Sorts and sends tokens, runs the bank, brings outputs back and adds them up by token.
fn experts(c: &Rc<Rank>, params: &MoeParams, x: &Tensor, routed: &Routed) -> Tensor {
    let (hidden, rows, is_sent) = (c.config.hidden, routed.count, c.config.ep > 1);
    let sorted = c.scratch(rows * hidden, BF16, "sorted tokens");
    makes(c, x, &sorted, vec![routed.order.clone()], x.elements(), BF16);
    let exchanged = |x: Tensor, name| {
        let out = c.scratch(rows * hidden, BF16, name);
        makes(c, &x, &out, Vec::new(), rows * hidden, BF16);
        out
    };
    // Received tokens are in rank order and sorted once more by local expert.
    let arrived = if is_sent { exchanged(exchanged(sorted, "received tokens"), "grouped tokens") } else { sorted };
    let out = bank(c, params, arrived, rows);
    let out = if is_sent { exchanged(exchanged(out, "ungrouped outputs"), "returned outputs") } else { out };
    combine(c, out, routed, x.elements())
}

fn bank(c: &Rc<Rank>, params: &MoeParams, x: Tensor, rows: u64) -> Tensor {
    let (hidden, ffn) = (c.config.hidden, c.config.moe().feed.ffn / c.config.etp);
    if c.tape.records() {
        x.onto(Line::ExpertInputs);
    }
    let biases = params.biases.as_ref();
    let first_bias = biases.map(|b| b.gate.as_ref().unwrap_or(&b.up));
    let first = grouped(c, &x, (rows, ffn), params.gate.as_ref().unwrap_or(&params.up));
    let first = biased(c, first, first_bias);
    let up = || {
        let up = params.gate.as_ref().map(|_| grouped(c, &x, (rows, ffn), &params.up));
        up.map(|up| biased(c, up, biases.map(|b| &b.up)))
    };
    let narrow = activate(c, first, up, c.config.moe().feed.function);
    drop(x);
    biased(c, grouped(c, &narrow, (rows, hidden), &params.down), biases.map(|b| &b.down))
}

/// Each token's expert's bias, repeated by token and added (torchtitan 0.3.0, `models/gpt_oss/moe.py`).
fn biased(c: &Rank, x: Tensor, bias: Option<&Rc<Param>>) -> Tensor {
    let Some(bias) = bias else { return x };
    let (elements, size) = (x.elements(), bias.elements());
    let repeated = c.act(elements, "expert biases by token");
    let out = c.act(elements, "biased projection");
    drop(repeated);
    c.tape.record(vec![x.edge(), bias.edge()], &[&out], Vec::new(), move |t, grads, _| {
        vec![grads[0].clone(), Some(weight_grad(t, size))]
    });
    out
}

/// One product an expert; saves its input.
fn grouped(c: &Rc<Rank>, x: &Tensor, (rows, width): (u64, u64), weight: &Rc<Param>) -> Tensor {
    c.product();
    let out = c.act(rows * width, "expert projection");
    let (inputs, elements) = (x.elements(), weight.elements());
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], vec![x.clone()], move |t, _, _saved| {
        let dx = grad(t, inputs, "expert input gradient");
        vec![Some(dx), Some(weight_grad(t, elements))]
    });
    out
}

/// Outputs in fp32 times their scores, cast back and added up by token.
fn combine(c: &Rank, out: Tensor, routed: &Routed, elements: u64) -> Tensor {
    let whole = c.act(elements, "combined tokens");
    let (wide, count) = (out.elements(), routed.count);
    let fp32 = cast(c, &out, FP32, "fp32 expert outputs");
    let weighted = c.scratch(wide, FP32, "weighted outputs");
    let saved = vec![fp32.clone(), routed.scores.clone()];
    c.tape.record(vec![fp32.edge(), routed.scores.edge()], &[&weighted], saved, move |t, _, _saved| {
        let dx = grad_of(t, wide, FP32, "weighted gradient");
        let _product = grad_of(t, wide, FP32, "score product");
        vec![Some(dx), Some(grad_of(t, count, FP32, "score gradient"))]
    });
    drop(fp32);
    let narrow = cast(c, &weighted, BF16, "weighted outputs");
    drop(weighted);
    makes(c, &narrow, &whole, vec![routed.order.clone()], wide, BF16);
    whole
}
