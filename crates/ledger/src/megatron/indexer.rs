//! The sparse indexer on latent attention (`megatron/core/transformer/experimental_attention_variant/
//! dsa.py`): small queries and keys score every pair, attention reads the best, and a loss of its
//! own, taken against the attention's true scores, trains it. The loss is Megatron's naive one,
//! whose score tensors of every head are temporaries in forward and in backward; nothing of a
//! pair's size is kept. TileLang's kernels (`ops/indexer.py`, `ops/tilelang_dsa.py`) write the summed scores of at most
//! 8192 queries at once and take the loss over what was chosen, whose score gradient is kept until backward. Attention itself is taken as a fused kernel that keeps what the dense one
//! keeps, and the choice. Layers that read another's choice (`dsa_indexer_topk_freq`) have no indexer and keep nothing
//! more: the tensor is the same, and the config holds the last one until the next forward pass puts another in its
//! place. No measured row shows it.

use super::attention::Heads;
use super::config::Config;
use super::ops::{grad_of, weight_grad};
use super::params::{Param, Params};
use super::rank::Rank;
use recipe::Role;
use replay::line::Origin;
use replay::tape::{FP32, INT32, INT64, Tape, Tensor};
use std::cell::RefCell;
use std::rc::Rc;

/// One indexer's parameters.
pub(super) struct IndexerParams {
    all: Vec<Rc<Param>>,
    layer: u32,
    /// `_dsa_index_share_topk_holder`: the choice that later layers read.
    held: RefCell<Option<Tensor>>,
}

impl IndexerParams {
    /// Builds it when it stands on this layer.
    pub fn build(c: &Config, layer: u32, q_rank: u64, params: &mut Params) -> Option<IndexerParams> {
        let indexer = c.indexer.as_ref().filter(|indexer| indexer.layers.contains(&layer))?;
        let query = params.whole_matrix(Role::Matrix, indexer.heads * indexer.head_dim, q_rank);
        let key = params.whole_matrix(Role::Matrix, indexer.head_dim, c.hidden);
        // The keys' norm is a LayerNorm, whatever the model's is.
        let (scale, shift) = (params.whole_vector(indexer.head_dim), params.whole_vector(indexer.head_dim));
        let weights = params.whole_matrix(Role::Matrix, indexer.heads, c.hidden);
        Some(IndexerParams { all: vec![query, key, scale, shift, weights], layer, held: RefCell::new(None) })
    }
}

/// Sizes of one indexer over a microbatch, in elements.
#[derive(Clone, Copy)]
struct Sizes {
    /// Scores of every pair.
    pairs: u64,
    /// The same by index head, and by attention head.
    by_index_head: u64,
    by_head: u64,
    queries: u64,
    keys: u64,
}

/// Scores, the choice, and the loss, which the attention's output carries with it.
pub(super) fn forward(c: &Rank, params: &IndexerParams, inputs: [&Tensor; 2], out: Tensor, heads: Heads) -> Tensor {
    let Some(indexer) = &c.config.indexer else { return out };
    let before = c.tape.origin();
    c.tape.enter(Origin::Indexer { layer: params.layer });
    let tokens = c.config.tokens;
    let pairs = tokens * c.config.sequence;
    let s = Sizes {
        pairs,
        by_index_head: pairs * indexer.heads,
        by_head: pairs * heads.query,
        queries: tokens * indexer.heads * indexer.head_dim,
        keys: tokens * indexer.head_dim,
    };
    // Inputs are detached: only the loss reaches the indexer, and it stops there.
    let mut saved = vec![c.act(s.queries, "index queries"), c.act(s.keys, "index keys")];
    saved.push(c.act(tokens * indexer.heads, "index weights"));
    c.te_product();
    c.torch_product();
    // `topk_k = min(index_topk, seqlen)`.
    let chosen = indexer.top_k.min(c.config.sequence);
    let is_fused = c.config.told.indexer_fusion;
    let choice = if is_fused {
        saved.push(c.act_of(tokens * indexer.heads, FP32, "index weights in fp32"));
        saved.extend(blocks(c, chosen));
        c.act_of(tokens * chosen, INT32, "chosen tokens")
    } else {
        scores(&c.tape, s, |t, elements, name| t.tensor(replay::line::Line::Activations, elements, FP32, name));
        c.act_of(tokens * chosen, INT64, "chosen tokens")
    };
    if indexer.is_shared {
        params.held.replace(Some(choice.clone()));
    }
    saved.push(choice);
    saved.extend(inputs.map(Tensor::clone));
    let edges = [out.edge()].into_iter().chain(params.all.iter().map(|p| p.edge())).collect();
    let elements: Vec<u64> = params.all.iter().map(|p| p.elements).collect();
    c.tape.enter(before);
    let carrying = out.alias();
    c.tape.record(edges, &[&carrying], saved, move |t, grads, _saved| {
        let inputs =
            || (grad_of(t, s.queries, FP32, "index query gradient"), grad_of(t, s.keys, FP32, "index key gradient"));
        if is_fused {
            let scaled = grad_of(t, tokens * chosen, FP32, "index score gradients");
            drop((inputs(), scaled));
        } else {
            scores(t, s, |t, elements, name| grad_of(t, elements, FP32, name));
            let relu = grad_of(t, s.by_index_head, FP32, "index score gradients");
            let _scores = grad_of(t, s.by_index_head, FP32, "index score gradients");
            let _inputs = inputs();
            drop(relu);
        }
        [grads[0].clone()].into_iter().chain(elements.iter().map(|&e| Some(weight_grad(t, e)))).collect()
    });
    carrying
}

/// Queries that TileLang's kernels score at once (`fused_indexer_block_size`).
const BLOCK: u64 = 8192;

/// What TileLang's kernels make, block by block of queries: scores of every pair, the best of them, and for backward the
/// choice and the gradient of its scores.
fn blocks(c: &Rank, chosen: u64) -> Vec<Tensor> {
    let sequence = c.config.sequence;
    let mut kept = Vec::new();
    for _ in 0..c.config.tokens / sequence {
        for at in (0..sequence).step_by(BLOCK as usize) {
            let rows = BLOCK.min(sequence - at);
            let scores = c.act_of(rows * sequence, FP32, "index scores");
            let best = c.act_of(rows * chosen, FP32, "best scores");
            let wide = c.act_of(rows * chosen, INT64, "chosen tokens");
            kept.push(c.act_of(rows * chosen, INT32, "chosen tokens"));
            drop((scores, wide));
            kept.push(c.act_of(rows * chosen, FP32, "index score gradients"));
            drop(best);
        }
    }
    kept
}

/// Index scores of every head, their weighted sum, then attention's own scores and their softmax.
fn scores(t: &Tape, s: Sizes, make: impl Fn(&Tape, u64, &'static str) -> Tensor) {
    let raw = make(t, s.by_index_head, "index scores by head");
    let relu = make(t, s.by_index_head, "index scores by head");
    drop(raw);
    let weighted = make(t, s.by_index_head, "index scores by head");
    drop(relu);
    let _summed = make(t, s.pairs, "index scores");
    drop(weighted);
    let raw = make(t, s.by_head, "attention scores");
    let scaled = make(t, s.by_head, "attention scores");
    drop(raw);
    let _mask = make(t, s.pairs, "index mask");
    let softmax = make(t, s.by_head, "attention scores");
    drop(scaled);
    let _target = make(t, s.pairs, "attention target");
    drop(softmax);
}
