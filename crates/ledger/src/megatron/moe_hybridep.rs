//! Expert layers whose tokens travel by HybridEP inside one NVLink domain (`megatron/core/transformer/moe/
//! token_dispatcher.py` _HybridEPManager, `fused_a2a.py` HybridEPDispatch and HybridEPCombine; deepseek-ai/DeepEP, branch
//! `hybrid-ep`, `csrc/hybrid_ep/executor/executor.cu`, `hybrid_ep.cu`): kernels write tokens where their experts lie and
//! put them in order there, rows padded for the product, so that nothing is permuted before or behind. The buffers they
//! write through lie outside torch's allocator (`memory::fit`).
//!
//! Modelled from source; no measured row shows it.

use super::blocks::MoeParams;
use super::moe::{expert_mlp, padding, received_tokens, with_shared};
use super::ops::{grad_of, makes};
use super::rank::Rank;
use super::router::Routed;
use replay::tape::{BF16, BYTE, FP32, INT32, Tensor};
use std::rc::Rc;

/// Tokens of a chunk that kernels work through (`csrc/hybrid_ep/config.cuh`, the default of
/// `NUM_OF_TOKENS_PER_CHUNK_PREPROCESSING_API`).
const CHUNK: u64 = 64;
/// What a map of tokens over domains is padded to (`executor.cu` rdma_to_attn_map_size_per_node).
const MAP_STEP: u64 = 16;

pub(super) fn forward(c: &Rc<Rank>, params: &MoeParams, x: &Tensor, routed: Routed, shared: Option<Tensor>) -> Tensor {
    let hidden = c.config.expert_hidden();
    let Routed { probs, map } = routed;
    let scores = in_fp32(c, probs);
    *params.dispatched.borrow_mut() = vec![scores.clone(), map];
    let Received { tokens, probs, handle, rows } = dispatch(c, params, x, &scores);
    // The manager keeps the scores that arrived until its next forward, and with their graph the handle, which is an
    // attribute of its context.
    params.dispatched.borrow_mut().extend([probs.clone()].into_iter().chain(handle.iter().cloned()));
    let out = expert_mlp(c, params, &tokens, &probs, rows);
    let combined = c.scratch(x.elements(), BF16, "combined tokens");
    makes(c, &out, &combined, handle, rows * hidden, BF16);
    drop(out);
    // What arrived is a local of the layer's forward until that returns.
    with_shared(c, params, combined, shared)
}

/// Scores of all experts as HybridEP takes them.
fn in_fp32(c: &Rank, probs: Tensor) -> Tensor {
    let (all, width) = (probs.elements(), probs.width());
    if width == FP32 {
        return probs;
    }
    let wide = c.scratch(all, FP32, "fp32 scores");
    makes(c, &probs, &wide, Vec::new(), all, width);
    wide
}

struct Received {
    /// In the order of experts, each expert's rows padded.
    tokens: Tensor,
    probs: Tensor,
    /// What the way back and both ways of backward need.
    handle: Vec<Tensor>,
    rows: u64,
}

fn dispatch(c: &Rank, params: &MoeParams, x: &Tensor, scores: &Tensor) -> Received {
    let (config, moe) = (&c.config, c.config.moe());
    let tokens = config.local_tokens;
    let everyones = tokens * config.ep;
    let gathered = c.scratch(everyones * moe.experts, BYTE, "gathered map");
    let handle = vec![
        c.scratch(everyones, INT32, "places by rank"),
        c.scratch(tokens.next_multiple_of(MAP_STEP), BYTE, "tokens by domain"),
        c.scratch(everyones * moe.local_experts, BYTE, "local map"),
        c.scratch(1, INT32, "overflow"),
        c.scratch(tokens.div_ceil(CHUNK) * config.ep, INT32, "rows by chunk"),
        c.scratch(everyones * moe.local_experts, INT32, "places by expert"),
        c.scratch(moe.local_experts, INT32, "tokens by expert"),
    ];
    drop(gathered);
    let rows = received_tokens(c, params, tokens * moe.top_k) + padding(config);
    let received = c.scratch(rows * config.expert_hidden(), BF16, "received tokens");
    let probs = c.scratch(rows, FP32, "received probabilities");
    let (edges, elements, all) = (vec![x.edge(), scores.edge()], x.elements(), scores.elements());
    c.tape.record(edges, &[&received, &probs], handle.clone(), move |t, _, _saved| {
        let dx = grad_of(t, elements, BF16, "gradient");
        vec![Some(dx), Some(grad_of(t, all, FP32, "probability gradient"))]
    });
    Received { tokens: received, probs, handle, rows }
}

#[cfg(test)]
mod tests {
    use super::super::options::Dispatcher;
    use super::super::options::tests::{allocated, experts, run};
    use replay::{Line, PhaseKind, Replay};

    /// 48 layers of 128 experts, 16 of them on each of 8 ranks, which 2048 tokens of a rank choose 8 of.
    fn sent(by: Dispatcher) -> Replay {
        run(&experts(), |told| told.dispatcher = by).unwrap()
    }

    /// Between steps a dispatcher holds what its last forward left. Both hold map and scores in fp32. Besides, one holds
    /// where 16,384 rows went in int64. The other holds as many scores that arrived, an int32 for each of
    /// everyone's 16,384 tokens, a byte for each of its own in sixteens, a byte and an int32 for each of everyone's tokens
    /// and local experts, an int32 for each of 32 chunks of 8 ranks, and two small tensors of a block each.
    #[test]
    fn between_steps_a_handle_stays() {
        let after = |by| allocated(&sent(by), PhaseKind::Update(0));
        let more = after(Dispatcher::HybridEp) - after(Dispatcher::AllToAll);
        let rows = 2048 * 8;
        let handle = 4 * rows + 2048 + rows * 16 + 4 * rows * 16 + 4 * 32 * 8 + 2 * 512;
        assert_eq!(more, 48 * (4 * rows + handle - 8 * rows));
    }

    /// Nothing is sorted before or behind: rows arrive where experts read them, so that a layer saves them once, where the
    /// all-to-all keeps them as they arrived and as they were sorted until the layer is done.
    #[test]
    fn rows_arrive_in_order() {
        let routing = |by| {
            let replay = sent(by);
            replay.line(Line::RoutingScratch) + replay.line(Line::ExpertInputs)
        };
        assert!(routing(Dispatcher::HybridEp) < routing(Dispatcher::AllToAll));
    }
}
