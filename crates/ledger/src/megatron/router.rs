//! The router (`megatron/core/transformer/moe/router.py`, `moe_utils.py`) under forced balance:
//! random logits, auxiliary loss.

use super::blocks::MoeParams;
use super::ops::{grad, grad_of, makes, passes, weight_grad};
use super::rank::Rank;
use recipe::kinds::moe::ScoreFunction;
use replay::tape::{BYTE, FP32, INT64, Tensor};

/// Scores and map of one rank's tokens, each [tokens, experts].
pub(super) struct Routed {
    pub probs: Tensor,
    pub map: Tensor,
}

/// Sizes of routing on one rank.
#[derive(Clone, Copy)]
struct Sizes {
    /// Tokens × experts.
    all: u64,
    /// Tokens × top-k.
    chosen: u64,
    /// Bytes of a score.
    width: u64,
}

pub(super) fn forward(c: &Rank, params: &MoeParams, x: &Tensor) -> Routed {
    let (tokens, moe) = (c.config.local_tokens, c.config.moe());
    let sizes = Sizes { all: tokens * moe.experts, chosen: tokens * moe.top_k, width: moe.score_width };
    let logits = gate(c, params, x, sizes);
    let (mut probs, mut map) = choose(c, &logits, sizes);
    if let Some(capacity) = capacity(c) {
        (probs, map) = drop_beyond(c, probs, map, capacity, sizes);
    }
    if c.tape.records() && moe.has_balance_loss {
        probs = auxiliary_loss(c, &logits, probs, sizes);
    }
    Routed { probs, map }
}

/// Tokens an expert accepts from this rank, when there is a limit.
pub(super) fn capacity(c: &Rank) -> Option<u64> {
    let moe = c.config.moe();
    let even = (c.config.local_tokens * moe.top_k) as f64 / moe.experts as f64;
    moe.capacity_factor.map(|factor| (even * factor).ceil() as u64)
}

/// Logits, replaced by random ones of the same shape.
fn gate(c: &Rank, params: &MoeParams, x: &Tensor, sizes: Sizes) -> Tensor {
    c.te_product();
    let logits = c.scratch(sizes.all, sizes.width, "router logits");
    let (input, weight, is_wide) = (x.elements(), params.router.elements, sizes.width == FP32);
    let edges = [x.edge(), params.router.edge()].into_iter().chain(params.router_bias.iter().map(|bias| bias.edge()));
    let bias = params.router_bias.as_ref().map(|bias| bias.elements);
    c.tape.record(edges.collect(), &[&logits], vec![x.clone()], move |t, _, _saved| {
        let of_bias = |t| bias.map(|elements| Some(weight_grad(t, elements)));
        if !is_wide {
            let grads = [Some(grad(t, input, "router input gradient")), Some(weight_grad(t, weight))];
            return grads.into_iter().chain(of_bias(t)).collect();
        }
        let _wide_weight = grad_of(t, weight, FP32, "fp32 router weight");
        let _wide_grad = grad_of(t, input, FP32, "fp32 router input gradient");
        let wide_input = grad_of(t, input, FP32, "fp32 router input");
        let _wide_weight_grad = grad_of(t, weight, FP32, "fp32 router weight gradient");
        drop(wide_input);
        let grads = [Some(grad(t, input, "router input gradient")), Some(weight_grad(t, weight))];
        grads.into_iter().chain(of_bias(t)).collect()
    });
    let random = c.scratch(sizes.all, sizes.width, "router logits");
    passes(c, &[&logits], &random);
    random
}

/// Probabilities of the chosen, and both they and the choice scattered over all experts.
fn choose(c: &Rank, logits: &Tensor, s: Sizes) -> (Tensor, Tensor) {
    let Chosen { probs: chosen, indices, _locals } = match c.config.moe().score {
        ScoreFunction::Softmax => softmax_of_chosen(c, logits, s),
        ScoreFunction::Sigmoid => sigmoid_of_all(c, logits, s),
    };
    let zeros = c.scratch(s.all, s.width, "zeros");
    let probs = c.scratch(s.all, s.width, "routing probabilities");
    drop(zeros);
    makes(c, &chosen, &probs, vec![indices], s.chosen, s.width);
    let zeros = c.scratch(s.all, s.width, "zeros");
    (probs, routing_map(c, zeros, s))
}

/// Probabilities and indices of chosen experts, and what else is a local until both are scattered.
struct Chosen {
    probs: Tensor,
    indices: Tensor,
    _locals: Option<Tensor>,
}

/// Top-k of the logits, then an fp32 softmax over the chosen.
fn softmax_of_chosen(c: &Rank, logits: &Tensor, s: Sizes) -> Chosen {
    let scores = c.scratch(s.chosen, s.width, "chosen scores");
    let indices = c.scratch(s.chosen, INT64, "chosen experts");
    makes(c, logits, &scores, vec![indices.clone()], s.all, s.width);
    let softmax = c.scratch(s.chosen, FP32, "chosen softmax");
    makes(c, &scores, &softmax, vec![softmax.alias()], s.chosen, s.width);
    drop(scores);
    let probs = cast(c, softmax, s.width, "chosen probabilities");
    Chosen { probs, indices, _locals: None }
}

/// To another format; nothing happens when it is the same.
fn cast(c: &Rank, x: Tensor, width: u64, name: &'static str) -> Tensor {
    if x.width() == width {
        return x;
    }
    let out = c.scratch(x.elements(), width, name);
    makes(c, &x, &out, Vec::new(), x.elements(), x.width());
    out
}

/// An fp32 sigmoid of every logit, chosen under the balancing bias and divided by the sum of the
/// chosen. Modelled from source; the bias itself, one fp32 an expert, is left out.
fn sigmoid_of_all(c: &Rank, logits: &Tensor, s: Sizes) -> Chosen {
    let scores = sigmoid(c, logits, s);
    let biased = c.config.moe().has_expert_bias.then(|| {
        let biased = c.scratch(s.all, FP32, "biased scores");
        let _values = c.scratch(s.chosen, FP32, "chosen biased scores");
        biased
    });
    let indices = c.scratch(s.chosen, INT64, "chosen experts");
    let chosen = c.scratch(s.chosen, s.width, "chosen scores");
    makes(c, &scores, &chosen, vec![indices.clone()], s.all, s.width);
    drop(scores);
    let sums = c.scratch(c.config.local_tokens, s.width, "sums of scores");
    let probs = c.scratch(s.chosen, s.width, "chosen probabilities");
    c.tape.record(vec![chosen.edge()], &[&probs], vec![chosen.clone(), sums], move |t, _, _saved| {
        let dx = grad_of(t, s.chosen, s.width, "chosen gradient");
        let _of_sum = grad_of(t, s.chosen, s.width, "chosen gradient");
        vec![Some(dx)]
    });
    Chosen { probs, indices, _locals: biased }
}

fn sigmoid(c: &Rank, logits: &Tensor, s: Sizes) -> Tensor {
    let wide = cast(c, logits.clone(), FP32, "fp32 logits");
    let out = c.scratch(s.all, FP32, "sigmoid");
    makes(c, &wide, &out, vec![out.alias()], s.all, FP32);
    drop(wide);
    cast(c, out, s.width, "scores")
}

/// Zeros, the same as integers, scattered ones, then booleans.
fn routing_map(c: &Rank, zeros: Tensor, s: Sizes) -> Tensor {
    let integers = c.scratch(s.all, FP32, "routing map");
    drop(zeros);
    let ones = c.scratch(s.all, FP32, "routing map");
    drop(integers);
    let map = c.scratch(s.all, BYTE, "routing map");
    drop(ones);
    map
}

/// Drops tokens beyond an expert's capacity and pads to it (`apply_router_token_dropping`).
fn drop_beyond(c: &Rank, probs: Tensor, map: Tensor, capacity: u64, s: Sizes) -> (Tensor, Tensor) {
    let slots = capacity * c.config.moe().experts;
    let temporaries = (capacity <= c.config.local_tokens).then(|| {
        let indices = c.scratch(slots, INT64, "capacity indices");
        let values = c.scratch(slots, s.width, "capacity scores");
        (indices, values, c.scratch(s.all, s.width, "capacity mask"), c.scratch(s.all, s.width, "capacity mask"))
    });
    let kept = c.scratch(s.all, BYTE, "routing map");
    drop((map, temporaries));
    let masked = c.scratch(s.all, s.width, "routing probabilities");
    makes(c, &probs, &masked, vec![kept.clone()], s.all, s.width);
    (masked, kept)
}

/// The balancing loss keeps an fp32 score of every expert until backward.
fn auxiliary_loss(c: &Rank, logits: &Tensor, probs: Tensor, s: Sizes) -> Tensor {
    let softmax = c.scratch(s.all, FP32, "balance scores");
    let loss = c.scratch(1, FP32, "balance loss");
    makes(c, logits, &loss, vec![softmax.clone()], s.all, s.width);
    // Its own top-k map.
    let values = c.scratch(s.chosen, FP32, "balance scores");
    let indices = c.scratch(s.chosen, INT64, "balance experts");
    drop(values);
    let zeros = c.scratch(s.all, s.width, "zeros");
    let map = (c.scratch(s.all, FP32, "balance map"), c.scratch(s.all, FP32, "balance map"));
    drop((indices, zeros, map, softmax));
    // `MoEAuxLossAutoScaler`: the scores carry the loss's gradient with them.
    let scaled = probs.alias();
    let edges = vec![probs.edge(), loss.edge()];
    c.tape.record(edges, &[&scaled], vec![loss.alias()], |t, grads, _| {
        vec![grads[0].clone(), Some(grad_of(t, 1, FP32, "balance loss gradient"))]
    });
    scaled
}
