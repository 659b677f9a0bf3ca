//! The sparse indexer on latent attention (`megatron/core/transformer/experimental_attention_variant/dsa.py`): small queries
//! and keys score every pair, attention reads the best, and a loss of its own, taken against the attention's true scores,
//! trains it. The loss is Megatron's naive one: scores of every head are temporaries in forward and in backward, and nothing
//! of a pair's size is kept. TileLang's kernels (`ops/indexer.py`, `ops/tilelang_dsa.py`) write the summed scores of at most
//! 8192 queries at once and take the loss over what was chosen (`--dsa-indexer-use-sparse-loss`), whose score gradient is
//! kept until backward. Layers that read another's choice (`dsa_indexer_topk_freq`) have no indexer and keep nothing more: the
//! tensor is the same, and the config holds the last one until the next forward pass puts another in its place.

use super::absorbed::gathered;
use super::blocks::MlaParams;
use super::config::{Config, Indexer};
use super::linear::{Keeps, Mode, linear};
use super::ops::{grad, grad_of, makes, norm};
use super::params::{Norm, Param, Params};
use super::rank::Rank;
use super::rope::{Storing, rotate};
use super::sparse::{self, Maker, over_cp};
use case::SparseKernels;
use recipe::Role;
use replay::line::{Line, Origin};
use replay::tape::{BF16, BYTE, FP32, INT32, INT64, Tape, Tensor};
use std::cell::RefCell;
use std::rc::Rc;

/// One indexer's parameters.
pub(super) struct IndexerParams {
    query: Rc<Param>,
    key: Rc<Param>,
    key_norm: Norm,
    weights: Rc<Param>,
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
        let weight = params.whole_vector(indexer.head_dim);
        let key_norm = Norm { weight, bias: Some(params.whole_vector(indexer.head_dim)) };
        let weights = params.whole_matrix(Role::Matrix, indexer.heads, c.hidden);
        Some(IndexerParams { query, key, key_norm, weights, layer, held: RefCell::new(None) })
    }
}

/// What attention reads.
pub(super) struct Chosen {
    /// Places of keys, a row a query, where this layer chose them: a local until attention has run.
    pub tokens: Option<Tensor>,
    /// The indexer's own loss, where it has one and it is taken with the choice.
    pub loss: Option<Tensor>,
    /// Scores of the chosen keys, where a loss is taken of them once attention has run.
    pub best: Option<Tensor>,
}

/// Sizes of one indexer over a microbatch, in elements.
#[derive(Clone, Copy)]
struct Sizes {
    attention: sparse::Sizes,
    /// Scores of every pair by index head.
    by_index_head: u64,
    queries: u64,
    keys: u64,
    weights: u64,
    /// Keys a query keeps.
    chosen: u64,
}

impl Sizes {
    fn of(indexer: &Indexer, s: sparse::Sizes) -> Sizes {
        Sizes {
            attention: s,
            by_index_head: s.pairs() * indexer.heads,
            queries: s.tokens * indexer.heads * indexer.head_dim,
            keys: s.batch * s.keys * indexer.head_dim,
            weights: s.tokens * indexer.heads,
            // `topk_k = min(index_topk, seqlen)`.
            chosen: indexer.top_k.min(s.keys),
        }
    }
}

/// The choice, and the loss where gradients are recorded: `use_indexer_loss` asks for them. `heads` are attention's queries
/// and keys, `inputs` the normed input of the layer and the queries' latent, which are detached.
pub(super) fn choose(
    c: &Rank,
    params: &MlaParams,
    s: sparse::Sizes,
    heads: [&Tensor; 2],
    inputs: [&Tensor; 2],
) -> Chosen {
    let indexer = c.config.indexer.as_ref().expect("a sparse layer has an indexer's sizes");
    let sizes = Sizes::of(indexer, s);
    let Some(params) = &params.indexer else { return Chosen { tokens: None, loss: None, best: None } };
    let before = c.tape.origin();
    c.tape.enter(Origin::Indexer { layer: params.layer });
    let scored = projected(c, params, indexer, inputs.map(Tensor::alias));
    let chosen = match (c.config.told.sparse, c.tape.records()) {
        (SparseKernels::Tilelang, _) => in_kernels(c, sizes, scored),
        (SparseKernels::Ours, _) => in_ours(c, sizes, scored),
        (SparseKernels::Eager, true) => naive(c, sizes, scored, heads),
        (SparseKernels::Eager, false) => {
            let m = Maker { tape: &c.tape, line: Line::Activations };
            drop(index_scores(m, sizes));
            Chosen { tokens: Some(best(m, sizes)), loss: None, best: None }
        }
    };
    if indexer.is_shared {
        params.held.replace(chosen.tokens.clone());
    }
    c.tape.enter(before);
    chosen
}

/// `forward_before_topk`: queries, keys and weights of index heads, rotated and turned by a Hadamard matrix.
fn projected(c: &Rank, params: &IndexerParams, indexer: &Indexer, inputs: [Tensor; 2]) -> [Tensor; 3] {
    let config = &c.config;
    let (heads, width) = (indexer.heads, indexer.head_dim);
    let q_rank = params.query.elements / (heads * width);
    let [hidden, latent] = inputs;
    let (hidden, latent) = (gathered(c, hidden, config.hidden), gathered(c, latent, q_rank));
    let query = linear(c, &latent, Mode::Whole, (q_rank, heads * width), &params.query, Keeps::Quantized);
    let query = rotated(c, query, heads, width);
    let key = linear(c, &hidden, Mode::Whole, (config.hidden, width), &params.key, Keeps::Quantized);
    let key = rotated(c, norm(c, &key, width, &params.key_norm), 1, width);
    let (query, key) = (turned(c, query), turned(c, key));
    let weights = linear(c, &hidden, Mode::Whole, (config.hidden, heads), &params.weights, Keeps::Quantized);
    let scaled = [0, 1].iter().fold(weights, |x, _| {
        let out = c.act(config.tokens * heads, "index weights");
        makes(c, &x, &out, Vec::new(), config.tokens * heads, BF16);
        out
    });
    [query, over_cp(c, &key, width), scaled]
}

/// The columns that turn, joined with those that do not.
fn rotated(c: &Rank, x: Tensor, heads: u64, width: u64) -> Tensor {
    let rope = c.config.attention().mla.as_ref().map_or(0, |mla| mla.rope_dim).min(width);
    let (turning, rest) = (c.config.tokens * heads * rope, c.config.tokens * heads * (width - rope));
    let (first, second) = super::mla::halves(c, &x, turning, rest);
    drop(x);
    let first = rotate(c, &first, heads, rope, Storing::Halves);
    let out = c.act(turning + rest, "index heads");
    c.tape.record(vec![first.edge(), second.edge()], &[&out], Vec::new(), move |_, grads, _| {
        let whole = grads[0].as_ref();
        vec![whole.map(|g| g.part(turning)), whole.map(|g| g.part(rest))]
    });
    out
}

/// `rotate_activation`: `fast_hadamard_transform`, which keeps nothing.
fn turned(c: &Rank, x: Tensor) -> Tensor {
    let out = c.act(x.elements(), "index heads");
    makes(c, &x, &out, Vec::new(), x.elements(), BF16);
    out
}

/// `FusedDSAIndexerLoss`, which is not fused: it computes its scores again in backward.
fn naive(c: &Rank, s: Sizes, scored: [Tensor; 3], heads: [&Tensor; 2]) -> Chosen {
    let m = Maker { tape: &c.tape, line: Line::Activations };
    c.torch_product();
    c.tape.work(s.attention.flops(s.attention.width));
    let scores = index_scores(m, s);
    let tokens = best(m, s);
    let weights = true_scores(m, s);
    let again = m.masked(s.attention, s.attention.pairs(), "index scores");
    let _mask = (m.seen(s.attention), m.choice_mask(s.attention, s.chosen));
    let weights = softmax(m, s, weights);
    let logs = log_softmax(m, s);
    let target = m.of(s.attention.pairs(), FP32, "attention target");
    drop(weights);
    let normed = m.of(s.attention.pairs(), FP32, "attention target");
    drop(target);
    let pair = || m.of(s.attention.pairs(), FP32, "divergence");
    let (first, second) = (pair(), pair());
    drop((first, pair(), second, normed, logs, again, scores));
    let loss = m.of(1, FP32, "indexer loss");
    let edges = scored.iter().map(Tensor::edge).collect();
    let mut saved = scored.to_vec();
    saved.extend([heads[0].alias(), heads[1].alias(), tokens.clone()]);
    c.tape.record(edges, &[&loss], saved, move |t, _, _saved| {
        t.work(s.attention.flops(s.attention.width));
        back(t, s)
    });
    Chosen { tokens: Some(tokens), loss: Some(loss), best: None }
}

/// `_compute_index_scores`, of which the masked sum is left.
fn index_scores(m: Maker, s: Sizes) -> Tensor {
    let summed = scores_by_head(m, s);
    let masked = m.masked(s.attention, s.attention.pairs(), "index scores");
    drop(summed);
    masked
}

fn scores_by_head(m: Maker, s: Sizes) -> Tensor {
    let by_head = || m.of(s.by_index_head, FP32, "index scores by head");
    let raw = raw_scores(m, s);
    let relu = by_head();
    drop(raw);
    let weighted = by_head();
    drop(relu);
    let summed = m.of(s.attention.pairs(), FP32, "index scores");
    drop(weighted);
    summed
}

/// A product of fp32 copies; sequences beside each other are put behind one another first.
fn raw_scores(m: Maker, s: Sizes) -> Tensor {
    let _wide = (m.of(s.queries, FP32, "index queries in fp32"), m.of(s.keys, FP32, "index keys in fp32"));
    let _apart = (s.attention.batch > 1).then(|| m.of(s.queries, FP32, "index queries in fp32"));
    m.of(s.by_index_head, FP32, "index scores by head")
}

/// The best keys of each query; those that are masked become none.
fn best(m: Maker, s: Sizes) -> Tensor {
    let rows = s.attention.tokens * s.chosen;
    let _found = (m.of(rows, FP32, "best scores"), m.of(rows, INT64, "chosen tokens"), m.of(rows, BYTE, "no tokens"));
    m.of(rows, INT64, "chosen tokens")
}

/// Attention's scores of every head, masked. The key of all heads is copied for each: in bf16 where sequences lie beside
/// each other, and in fp32.
fn true_scores(m: Maker, s: Sizes) -> (Tensor, Option<Tensor>) {
    let at = s.attention;
    let by_heads = at.key() * at.heads;
    let narrow = (at.batch > 1).then(|| m.of(by_heads, BF16, "keys by head"));
    let wide = (m.of(at.queries(), FP32, "query in fp32"), m.of(by_heads, FP32, "keys by head"));
    let raw = m.of(at.scores(), FP32, "attention scores");
    drop(wide);
    let scaled = m.of(at.scores(), FP32, "attention scores");
    drop(raw);
    let masked = m.masked(at, at.scores(), "attention scores");
    drop(scaled);
    (masked, narrow)
}

/// Their softmax, of which nothing is kept.
fn softmax(m: Maker, s: Sizes, scores: (Tensor, Option<Tensor>)) -> (Tensor, Option<Tensor>) {
    let weights = m.softmax(s.attention, &mut |_| ());
    (weights, scores.1)
}

/// `masked_log_softmax` of the index scores.
fn log_softmax(m: Maker, s: Sizes) -> Tensor {
    let pair = || m.of(s.attention.pairs(), FP32, "index log scores");
    let masked = pair();
    let safe = (pair(), pair());
    let logs = pair();
    let out = pair();
    drop((masked, safe, logs));
    out
}

/// `bwd_fused_indexer_loss_naive`: all of it again, then the gradients of index queries, keys and weights.
fn back(t: &Tape, s: Sizes) -> Vec<Option<Tensor>> {
    let m = Maker { tape: t, line: Line::ActivationGradients };
    let at = s.attention;
    let scores = scores_by_head(m, s);
    let (weights, narrow) = true_scores(m, s);
    drop(narrow);
    let masked = m.masked(at, at.pairs(), "index scores");
    drop(scores);
    let _mask = (m.seen(at), m.choice_mask(at, s.chosen));
    let weights = softmax(m, s, (weights, None));
    let index = log_softmax(m, s);
    drop(masked);
    let target = m.of(at.pairs(), FP32, "attention target");
    drop(weights);
    let normed = m.of(at.pairs(), FP32, "attention target");
    drop(target);
    let difference = m.of(at.pairs(), FP32, "index score gradients");
    let scaled = m.of(at.pairs(), FP32, "index score gradients");
    drop((difference, normed, index));
    let masked = (m.of(at.pairs(), FP32, "seen keys"), m.of(at.pairs(), FP32, "index score gradients")).1;
    drop(scaled);
    let by_head = |name| m.of(s.by_index_head, FP32, name);
    let raw = raw_scores(m, s);
    let relu = by_head("index scores by head");
    let positive = m.of(s.by_index_head, BYTE, "positive index scores");
    drop(raw);
    let of_weights = (by_head("index score gradients"), grad_of(t, s.weights, FP32, "index weight gradient")).1;
    let of_scores = by_head("index score gradients");
    drop((relu, masked));
    let of_scores = (by_head("positive index scores"), by_head("index score gradients"), of_scores).1;
    drop(positive);
    let of_query = grad_of(t, s.queries, FP32, "index query gradient");
    let of_key = grad_of(t, s.keys, FP32, "index key gradient");
    drop(of_scores);
    let narrow = |wide: Tensor, elements, name| {
        let narrow = grad(t, elements, name);
        drop(wide);
        Some(narrow)
    };
    vec![
        narrow(of_query, s.queries, "index query gradient"),
        narrow(of_key, s.keys, "index key gradient"),
        narrow(of_weights, s.weights, "index weight gradient"),
    ]
}

/// Queries that TileLang's kernels score at once (`fused_indexer_block_size`).
const BLOCK: u64 = 8192;

/// `run_fused_qk_topk_with_loss`: block by block of queries, scores of every pair and the best of them; for backward the
/// choice and the gradient of its scores.
fn in_kernels(c: &Rank, s: Sizes, scored: [Tensor; 3]) -> Chosen {
    let at = s.attention;
    let queries = at.tokens / at.batch;
    let mut saved = scored.to_vec();
    saved.push(c.act_of(s.weights, FP32, "index weights in fp32"));
    for _ in 0..at.batch {
        for first in (0..queries).step_by(BLOCK as usize) {
            let rows = BLOCK.min(queries - first);
            let scores = c.act_of(rows * at.keys, FP32, "index scores");
            let best = c.act_of(rows * s.chosen, FP32, "best scores");
            let wide = c.act_of(rows * s.chosen, INT64, "chosen tokens");
            saved.push(c.act_of(rows * s.chosen, INT32, "chosen tokens"));
            drop((scores, wide));
            saved.push(c.act_of(rows * s.chosen, FP32, "index score gradients"));
            drop(best);
        }
    }
    let tokens = c.act_of(at.tokens * s.chosen, INT32, "chosen tokens");
    let loss = c.act_of(1, FP32, "indexer loss");
    c.tape.record(scored.iter().map(Tensor::edge).collect(), &[&loss], saved, move |t, _, _saved| {
        let scaled = grad_of(t, at.tokens * s.chosen, FP32, "index score gradients");
        let wide = [s.queries, s.keys, s.weights].map(|e| grad_of(t, e, FP32, "index gradient"));
        drop(scaled);
        wide.map(|wide| Some(grad(t, wide.elements(), "index gradient"))).to_vec()
    });
    Chosen { tokens: Some(tokens), loss: Some(loss).filter(|_| c.tape.records()), best: None }
}

/// `Chosen` of `shardwright_megatron/sparse.py`: one kernel scores every pair, and what is kept is the choice.
fn in_ours(c: &Rank, s: Sizes, scored: [Tensor; 3]) -> Chosen {
    let rows = s.attention.tokens * s.chosen;
    let scores = c.act_of(s.attention.pairs(), FP32, "index scores");
    let best = c.act_of(rows, FP32, "best scores");
    let wide = c.act_of(rows, INT64, "chosen tokens");
    drop(scores);
    let tokens = c.act_of(rows, INT32, "chosen tokens");
    drop((wide, c.act_of(rows, BYTE, "no tokens")));
    let edges = scored.iter().map(Tensor::edge).collect();
    let saved = scored.into_iter().chain([tokens.clone()]).collect();
    c.tape.record(edges, &[&best], saved, move |t, _, _saved| {
        let of_query = grad(t, s.queries, "index query gradient");
        let of_weights = grad(t, s.weights, "index weight gradient");
        let _wide = grad_of(t, s.keys, FP32, "index key gradient");
        vec![Some(of_query), Some(grad(t, s.keys, "index key gradient")), Some(of_weights)]
    });
    Chosen { tokens: Some(tokens), loss: None, best: Some(best).filter(|_| c.tape.records()) }
}

/// `with_loss` of the same: over chosen keys alone, against what all heads gave them.
pub(super) fn learns(c: &Rank, s: sparse::Sizes, best: &Tensor, shares: Tensor) -> Tensor {
    let chosen = best.elements();
    let of = |width, name| c.act_of(chosen, width, name);
    let unfilled = of(BYTE, "no tokens");
    let logs = of(FP32, "index log scores");
    let guess = of(FP32, "index log scores");
    let sums = [0, 1].map(|_| c.act_of(s.tokens, FP32, "sums of the target"));
    let target = of(FP32, "attention target");
    drop(sums);
    let clamped = of(FP32, "divergence");
    let log = of(FP32, "divergence");
    drop(clamped);
    let difference = of(FP32, "divergence");
    drop(log);
    let terms = of(FP32, "divergence");
    drop(difference);
    let loss = c.act_of(1, FP32, "indexer loss");
    drop((terms, guess, shares));
    c.tape.record(vec![best.edge()], &[&loss], vec![logs, unfilled, target], move |t, _, saved| {
        let of = || grad_of(t, chosen, FP32, "index score gradients");
        let product = of();
        let negated = of();
        drop(product);
        let filled = of();
        drop(negated);
        let out = of();
        drop((filled, saved));
        vec![Some(out)]
    });
    loss
}
