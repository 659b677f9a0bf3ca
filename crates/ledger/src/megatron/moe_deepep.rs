//! Expert layers whose tokens travel by DeepEP (`megatron/core/transformer/moe/token_dispatcher.py`
//! MoEFlexTokenDispatcher, `fused_a2a.py`; deepseek-ai/DeepEP, `csrc/legacy/buffer.hpp`): a token arrives once at each
//! rank that has some of its experts, and is copied to them there.

use super::blocks::MoeParams;
use super::moe::{Spots, expert_mlp, permute, received_tokens, with_shared};
use super::ops::{grad_of, makes};
use super::rank::Rank;
use super::router::Routed;
use case::options::Dispatch;
use replay::tape::{BF16, BYTE, FP32, INT32, INT64, Tensor};
use std::rc::Rc;

const PEERS: u64 = Dispatch::DEEPEP_PEERS;

pub(super) fn forward(c: &Rc<Rank>, params: &MoeParams, x: &Tensor, routed: Routed, shared: Option<Tensor>) -> Tensor {
    let hidden = c.config.expert_hidden();
    let Routed { probs, map: _until_the_layer_ends } = routed;
    let (chosen, indices) = choose(c, probs);
    *params.dispatched.borrow_mut() = vec![chosen.clone(), indices];
    let Received { tokens, probs, handle, rows } = dispatch(c, params, x, &chosen);
    let (map, local_probs) = multihot(c, &probs, rows);
    let count = received_tokens(c, params, c.config.local_tokens * c.config.moe().top_k);
    let spots = Spots { tokens: rows, experts: c.config.moe().local_experts, count };
    let (permuted, order) = permute(c, &tokens, &local_probs, spots);
    params.dispatched.borrow_mut().extend([map, order.clone()]);
    drop(local_probs);
    let out = expert_mlp(c, params, &permuted.tokens, &permuted.probs, count);
    let restored = c.scratch(rows * hidden, BF16, "unpermuted tokens");
    makes(c, &out, &restored, vec![order], count * hidden, BF16);
    drop((out, permuted));
    let combined = c.scratch(x.elements(), BF16, "combined tokens");
    makes(c, &restored, &combined, handle, rows * hidden, BF16);
    drop(restored);
    with_shared(c, params, combined, shared)
}

/// The chosen of each token by index, in fp32, which is all that DeepEP takes. Over expert tensor parallel ranks a choice
/// is repeated for each.
fn choose(c: &Rank, probs: Tensor) -> (Tensor, Tensor) {
    let (tokens, moe, width) = (c.config.local_tokens, c.config.moe(), probs.width());
    let (all, chosen) = (tokens * moe.experts, tokens * moe.top_k);
    let values = c.scratch(chosen, width, "chosen probabilities");
    let indices = c.scratch(chosen, INT64, "chosen experts");
    makes(c, &probs, &values, vec![indices.clone()], all, width);
    if width == FP32 {
        return (values, indices);
    }
    let wide = c.scratch(chosen, FP32, "chosen probabilities");
    makes(c, &values, &wide, Vec::new(), chosen, width);
    (wide, indices)
}

struct Received {
    tokens: Tensor,
    /// Of the chosen, and none where an expert is elsewhere.
    probs: Tensor,
    /// What the way back needs, until the layer's backward is done.
    handle: Vec<Tensor>,
    rows: u64,
}

fn dispatch(c: &Rank, params: &MoeParams, x: &Tensor, chosen: &Tensor) -> Received {
    let (config, hidden) = (&c.config, c.config.expert_hidden());
    let (tokens, top_k) = (config.local_tokens, config.moe().top_k);
    let group = config.ep;
    let in_rank = c.scratch(tokens * group, BYTE, "tokens by rank");
    let rows = received_rows(c, params, config.ep, group);
    let mut handle = vec![in_rank];
    if group <= PEERS {
        handle.push(c.scratch(rows, INT32, "rows by source"));
        handle.push(c.scratch(tokens * group, INT32, "places by rank"));
    } else {
        let nodes = group / PEERS;
        let by_node = received_rows(c, params, (config.ep / PEERS).max(1), nodes);
        handle.push(c.scratch(rows * 2, INT32, "rows by source"));
        handle.push(c.scratch(tokens * nodes, INT32, "places by node"));
        handle.push(c.scratch(by_node * PEERS, INT32, "places by rank"));
    }
    let received = c.scratch(rows * hidden, BF16, "received tokens");
    let _indices = c.scratch(rows * top_k, INT64, "received experts");
    let probs = c.scratch(rows * top_k, FP32, "received probabilities");
    let (edges, elements, width) = (vec![x.edge(), chosen.edge()], x.elements(), chosen.elements());
    c.tape.record(edges, &[&received, &probs], handle.clone(), move |t, _, _saved| {
        let dx = grad_of(t, elements, BF16, "gradient");
        vec![Some(dx), Some(grad_of(t, width, FP32, "probability gradient"))]
    });
    Received { tokens: received, probs, handle, rows }
}

/// Tokens that arrive at one of `parts` of the experts from `senders` that route as this rank does, each token once: of
/// `top_k` experts drawn without replacement, at least one is there.
fn received_rows(c: &Rank, params: &MoeParams, parts: u64, senders: u64) -> u64 {
    let (tokens, moe) = (c.config.local_tokens, c.config.moe());
    let (experts, here) = (moe.experts as f64, moe.experts as f64 / parts as f64);
    let elsewhere: f64 =
        (0..moe.top_k).map(|i| ((experts - here - i as f64) / (experts - i as f64)).max(0.0)).product();
    let even = tokens * moe.top_k;
    let load = received_tokens(c, params, even) as f64 / even as f64;
    ((tokens as f64 * (1.0 - elsewhere) * load) as u64).clamp(1, tokens) * senders
}

/// A map and probabilities over this rank's experts (`_indices_to_multihot`): integers that become booleans, and the
/// chosen's rows and experts, which the assignment of probabilities keeps.
fn multihot(c: &Rank, probs: &Tensor, rows: u64) -> (Tensor, Tensor) {
    let (all, top_k) = (rows * c.config.moe().local_experts, c.config.moe().top_k);
    let count = c.config.local_tokens * c.config.moe().top_k;
    let integers = c.scratch(all, INT64, "local map");
    let out = c.scratch(all, FP32, "local probabilities");
    let mask = c.scratch(rows * top_k, BYTE, "local choices");
    let experts = c.scratch(count, INT64, "local experts");
    let row = c.scratch(count, INT64, "rows of choices");
    let picked = c.scratch(count, FP32, "local probabilities");
    makes(c, probs, &picked, vec![mask], rows * top_k, FP32);
    makes(c, &picked, &out, vec![row, experts], count, FP32);
    drop(picked);
    let map = c.scratch(all, BYTE, "local map");
    drop(integers);
    (map, out)
}
