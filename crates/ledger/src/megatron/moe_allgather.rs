//! Expert layers with the all-gather dispatcher (`megatron/core/transformer/moe/
//! token_dispatcher.py` MoEAllGatherTokenDispatcher): every rank sees all tokens of its group and
//! keeps those of its experts. Modelled from source; no measured row shows it.

use super::blocks::MoeParams;
use super::moe::{expert_mlp, received_tokens, reduce_scattered, row_map, with_shared};
use super::ops::makes;
use super::rank::Rank;
use super::router::Routed;
use replay::tape::{BF16, BYTE, INT64, Tensor};
use std::rc::Rc;

pub(super) fn forward(c: &Rc<Rank>, params: &MoeParams, x: &Tensor, routed: Routed, shared: Option<Tensor>) -> Tensor {
    let (hidden, local, moe) = (c.config.expert_hidden(), c.config.local_tokens, c.config.moe());
    let group = c.config.etp * c.config.ep;
    let tokens = local * group;
    let width = routed.probs.width();
    let (gathered, probs, _map) = gather(c, x, routed, tokens);
    let of_local = tokens * moe.local_experts;
    let local_map = c.scratch(of_local, BYTE, "local map");
    let local_probs = c.scratch(of_local, width, "local probabilities");
    makes(c, &probs, &local_probs, Vec::new(), tokens * moe.experts, width);
    let count = received_tokens(c, params, local * moe.top_k) / c.config.ep * group;
    let order = match c.config.told.permute_fusion {
        true => row_map(c, tokens, moe.local_experts),
        false => sort(c, of_local, count),
    };
    let permuted = c.scratch(count * hidden, BF16, "permuted tokens");
    makes(c, &gathered, &permuted, vec![order.clone()], tokens * hidden, BF16);
    let permuted_probs = permute_probs(c, &local_probs, of_local, count);
    *params.dispatched.borrow_mut() = vec![local_map, permuted_probs.clone(), order.clone()];
    let experts = expert_mlp(c, params, &permuted, &permuted_probs, count);
    let mut out = c.scratch(tokens * hidden, BF16, "unpermuted tokens");
    makes(c, &experts, &out, vec![order], count * hidden, BF16);
    drop(experts);
    if group > 1 {
        out = reduce_scattered(c, out, (tokens, local), width);
    }
    with_shared(c, params, out, shared)
}

/// Tokens go into the global gather buffer, scores and map into tensors of their own.
fn gather(c: &Rank, x: &Tensor, routed: Routed, tokens: u64) -> (Tensor, Tensor, Tensor) {
    let Routed { probs, map } = routed;
    if tokens == c.config.local_tokens {
        return (x.clone(), probs, map);
    }
    let (all, width) = (tokens * c.config.moe().experts, probs.width());
    let whole_map = c.scratch(all, BYTE, "gathered map");
    let whole_probs = c.scratch(all, width, "gathered probabilities");
    makes(c, &probs, &whole_probs, Vec::new(), probs.elements(), width);
    let elements = tokens * c.config.expert_hidden();
    let whole = Tensor::of_storage(c.gather_buffer(elements), elements, BF16);
    makes(c, x, &whole, Vec::new(), x.elements(), BF16);
    (whole, whole_probs, whole_map)
}

fn sort(c: &Rank, of_local: u64, count: u64) -> Tensor {
    let values = c.scratch(of_local, BYTE, "sorted values");
    let sorted = c.scratch(of_local, INT64, "sorted map");
    drop(values);
    let order = c.scratch(count, INT64, "permutation");
    drop(sorted);
    order
}

fn permute_probs(c: &Rank, probs: &Tensor, of_local: u64, count: u64) -> Tensor {
    let transposed = c.scratch(of_local, probs.width(), "transposed probabilities");
    let map = c.scratch(of_local, BYTE, "transposed map");
    let out = c.scratch(count, probs.width(), "permuted probabilities");
    makes(c, probs, &out, vec![map], of_local, probs.width());
    drop(transposed);
    out
}
