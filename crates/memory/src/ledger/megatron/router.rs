//! The router (`megatron/core/transformer/moe/router.py`, `moe_utils.py`) under forced balance:
//! random logits, auxiliary loss.

use super::ops::{grad, grad_of, makes, passes, weight_grad};
use super::params::MoeParams;
use super::rank::Rank;
use crate::tape::{BYTE, FP32, INT64, Tensor};

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
    if c.tape.records() {
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
    c.tape.record(vec![x.edge(), params.router.edge()], &[&logits], vec![x.clone()], move |t, _, _saved| {
        if !is_wide {
            return vec![Some(grad(t, input, "router input gradient")), Some(weight_grad(t, weight))];
        }
        let _wide_weight = grad_of(t, weight, FP32, "fp32 router weight");
        let _wide_grad = grad_of(t, input, FP32, "fp32 router input gradient");
        let wide_input = grad_of(t, input, FP32, "fp32 router input");
        let _wide_weight_grad = grad_of(t, weight, FP32, "fp32 router weight gradient");
        drop(wide_input);
        vec![Some(grad(t, input, "router input gradient")), Some(weight_grad(t, weight))]
    });
    let random = c.scratch(sizes.all, sizes.width, "router logits");
    passes(c, &[&logits], &random);
    random
}

/// Top-k, softmax over the chosen in fp32, and both scattered back over all experts.
fn choose(c: &Rank, logits: &Tensor, s: Sizes) -> (Tensor, Tensor) {
    let scores = c.scratch(s.chosen, s.width, "chosen scores");
    let indices = c.scratch(s.chosen, INT64, "chosen experts");
    makes(c, logits, &scores, vec![indices.clone()], s.all, s.width);
    let mut softmax = c.scratch(s.chosen, FP32, "chosen softmax");
    makes(c, &scores, &softmax, vec![softmax.alias()], s.chosen, s.width);
    drop(scores);
    if s.width != FP32 {
        let cast = c.scratch(s.chosen, s.width, "chosen probabilities");
        makes(c, &softmax, &cast, Vec::new(), s.chosen, FP32);
        softmax = cast;
    }
    let zeros = c.scratch(s.all, s.width, "zeros");
    let probs = c.scratch(s.all, s.width, "routing probabilities");
    drop(zeros);
    makes(c, &softmax, &probs, vec![indices.clone()], s.chosen, s.width);
    let zeros = c.scratch(s.all, s.width, "zeros");
    let map = routing_map(c, zeros, s);
    drop(softmax);
    (probs, map)
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

/// The balancing loss keeps an fp32 softmax over all experts until backward.
fn auxiliary_loss(c: &Rank, logits: &Tensor, probs: Tensor, s: Sizes) -> Tensor {
    let softmax = c.scratch(s.all, FP32, "balance softmax");
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
