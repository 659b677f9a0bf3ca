//! The attention core: scores and their use, masked work left out; rotation; the sparse indexer.
//! Under context parallelism every rank holds an early and a late part of the sequence, so masked
//! work is shared evenly.

use super::elementwise::norm;
use super::{Direction, Op, Shape, Stream, Work, sparse};
use crate::flops::Convention;
use crate::part::Part;
use case::SparseKernels;
use case::options::{AttentionKernel, Elementwise};
use layout::ownership::Row;
use layout::request::RecomputeModule;
use recipe::kinds::attention::{Attention, AttentionKind, QkNorm};
use recipe::{Mixer, Place, Positions};

/// Backward runs five products where forward runs two (Dao, FlashAttention-2, arXiv 2307.08691).
const BACKWARD: f64 = 2.5;

/// How much longer batched products take over heads whose rows are no multiple of 16 bytes: the
/// matrix units' kernels want 16-byte loads (NVIDIA/cutlass issue 75, cuBLAS' tensor-op restrictions),
/// and a library falls back to kernels without them. Calibrated on BigScience's runs of one model with
/// heads of 108 against 144 and 216.
const UNALIGNED: f64 = 18.0;

fn aligned(dim: f64) -> bool {
    dim % 8.0 == 0.0
}

/// Widths of the heads this rank runs.
pub(super) struct Heads {
    pub heads: f64,
    pub kv_heads: f64,
    pub qk_dim: f64,
    pub v_dim: f64,
}

impl Heads {
    fn of(shape: Shape, attention: &Attention) -> Heads {
        let heads = attention.heads as f64 / shape.tp;
        match &attention.kind {
            AttentionKind::Gqa { kv_heads, head_dim } => Heads {
                heads,
                kv_heads: (*kv_heads as f64 / shape.tp).max(1.0),
                qk_dim: *head_dim as f64,
                v_dim: *head_dim as f64,
            },
            AttentionKind::Mla(mla) => {
                Heads { heads, kv_heads: heads, qk_dim: (mla.qk_dim + mla.rope_dim) as f64, v_dim: mla.v_dim as f64 }
            }
        }
    }
}

/// Where a block of attention stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stack {
    /// In the depth, whose layers may be sparse.
    Layers,
    /// In a prediction depth, where none is.
    Predictions,
}

impl Stack {
    pub fn of(rows: &[&Row]) -> Stack {
        let predicts = rows.iter().any(|row| matches!(row.tensor.place, Place::Mtp(_)));
        if predicts { Stack::Predictions } else { Stack::Layers }
    }
}

/// The core and what stands around it.
pub(super) fn core(shape: Shape, stack: Stack, ops: &mut Vec<Op>) {
    let Some(attention) = shape.recipe.attention() else { return };
    let heads = Heads::of(shape, &attention);
    let sequence = shape.layout.sequence as f64;
    let seen = Seen::of(shape, &attention, stack);
    let (masked, all) = (scores(shape, &heads, seen.all()), flops(shape, Convention::AllScores));
    // TileLang's kernels are priced as attention over fewer keys.
    let singly = sparse::kernels(shape).filter(|kernels| *kernels != SparseKernels::Tilelang);
    match (windowed(shape, &attention, sequence), singly) {
        (_, Some(kernels)) => {
            let dense = 1.0 - seen.sparse_share;
            let masked = scores(shape, &heads, seen.dense);
            if dense > 0.0 {
                kernel(shape, &heads, Walk { masked, all: dense * all, share: dense, tokens: None }, ops);
            }
            sparse::layers(shape, kernels, (seen.sparse_share, seen.indexed), ops);
        }
        (Some(windows), None) if shape.options.kernels.attention != AttentionKernel::Unfused => {
            let of = |keys: f64| 2.0 * shape.tokens * keys * heads.heads * (heads.qk_dim + heads.v_dim);
            let Windows { share, seen, walked } = windows;
            let others = Walk { masked: masked - share * of(seen), all, share: 1.0 - share, tokens: None };
            let within = Walk { masked: share * of(walked), all, share, tokens: Some(2.0 * walked) };
            [others, within]
                .into_iter()
                .filter(|walk| walk.share > 0.0)
                .for_each(|walk| kernel(shape, &heads, walk, ops));
        }
        _ => kernel(shape, &heads, Walk::whole(masked + absorbed(shape, &attention, &seen), all), ops),
    }
    ring(shape, &heads, ops);
    packing(shape, &attention, &heads, ops);
    rotation(shape, &attention, &heads, ops);
    qk_norm(shape, &attention, &heads, ops);
    gated(shape, &attention, &heads, ops);
    if attention.sinks {
        sinks(shape, &heads, ops);
    }
    if singly.is_none() {
        indexer(shape, seen.indexed, ops);
    }
}

/// What fused kernels compute more over keys of the latent's width than over those by head.
fn absorbed(shape: Shape, attention: &Attention, seen: &Seen) -> f64 {
    let AttentionKind::Mla(latent) = &attention.kind else { return 0.0 };
    if !sparse::is_absorbed(shape) {
        return 0.0;
    }
    let (own, heads) = (Heads::of(shape, attention), attention.heads as f64 / shape.tp);
    let more = (2 * latent.kv_rank + latent.rope_dim) as f64 - own.qk_dim - own.v_dim;
    2.0 * shape.tokens * seen.sparse * heads * more
}

/// Queries that a flash kernel takes at a time.
const BLOCK: f64 = 128.0;

/// Layers whose queries see a window.
struct Windows {
    /// Of all attention layers.
    share: f64,
    /// Keys a query sees there.
    seen: f64,
    /// Keys a kernel walks for it: a block of queries walks what the first of them sees and the last.
    walked: f64,
}

fn windowed(shape: Shape, attention: &Attention, sequence: f64) -> Option<Windows> {
    let window = attention.window.as_ref().filter(|window| (window.tokens as f64) < sequence)?;
    let layers = shape.recipe.count(Mixer::Attention).max(1);
    let count = (0..layers).filter(|layer| !window.full_layers.contains(layer)).count();
    let seen = match shape.options.documents {
        Some(documents) => documents.mean(shape.layout.sequence, |length| window.seen(length)),
        None => window.seen(sequence),
    };
    let share = count as f64 / layers as f64;
    (count > 0).then_some(Windows { share, seen, walked: (seen + BLOCK).min(sequence / 2.0) })
}

/// What a kernel does over attention layers, on average over all of them.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    /// Operations in forward without those that a mask leaves out.
    pub masked: f64,
    /// And with them.
    pub all: f64,
    /// The share of layers that are walked so.
    share: f64,
    /// Tokens of the sequence over which a kernel is as good as this one, where that is not the layout's: one that walks few
    /// keys a query is no better than over twice as many tokens, of which half are masked.
    tokens: Option<f64>,
}

impl Walk {
    /// All layers alike.
    pub fn whole(masked: f64, all: f64) -> Walk {
        Walk { masked, all, share: 1.0, tokens: None }
    }
}

/// Scores and their use.
pub(super) fn kernel(shape: Shape, heads: &Heads, walk: Walk, ops: &mut Vec<Op>) {
    let Walk { masked, all, share, tokens } = walk;
    let sequence = shape.layout.sequence as f64;
    let io = share * 2.0 * shape.tokens * (heads.heads + heads.kv_heads) * (heads.qk_dim + heads.v_dim);
    // A batched product does the masked half too, and every score is written and read: by the
    // first product, the softmax, and the second product; backward reads what it needs again.
    let (flops, scores) = match shape.options.kernels.attention {
        AttentionKernel::Unfused => {
            let slow = if aligned(heads.qk_dim) && aligned(heads.v_dim) { 1.0 } else { UNALIGNED };
            (slow * all, 2.0 * shape.tokens * sequence * heads.heads)
        }
        _ => (masked, 0.0),
    };
    let work = |flops, bytes, pass| Work::Attention {
        flops,
        bytes,
        tokens: tokens.unwrap_or(kernel_tokens(shape, sequence)),
        rows: shape.tokens * heads.heads,
        dim: (heads.qk_dim + heads.v_dim) / 2.0,
        pass,
    };
    // Unfused backward is four products; a flash kernel runs the scores again.
    let again = if scores > 0.0 { 2.0 } else { BACKWARD };
    ops.push(Op {
        block: None,
        scope: None,
        part: Part::Attention,
        modules: &[RecomputeModule::CoreAttn],
        forward: vec![work(flops, io + 4.0 * scores, Direction::Forward)],
        input: vec![work(again * flops, 2.0 * io + 7.0 * scores, Direction::Backward)],
        weight: Vec::new(),
    });
}

/// Gradients of sinks: cuDNN's backward adds one number a query and head into one a head, all of them beside each other,
/// so that each waits for the one before.
fn sinks(shape: Shape, heads: &Heads, ops: &mut Vec<Op>) {
    if shape.options.kernels.elementwise != Elementwise::Fused {
        return;
    }
    let summed = Work::Atomic { adds: shape.tokens * heads.heads };
    ops.push(Op {
        block: None,
        scope: None,
        part: Part::Attention,
        modules: &[RecomputeModule::CoreAttn],
        forward: Vec::new(),
        input: vec![summed],
        weight: Vec::new(),
    });
}

/// Gates of latent attention's heads on its output.
fn gated(shape: Shape, attention: &Attention, heads: &Heads, ops: &mut Vec<Op>) {
    if matches!(&attention.kind, AttentionKind::Mla(mla) if mla.head_gate) {
        let bytes = 2.0 * shape.tokens * heads.heads * heads.v_dim;
        ops.push(Op::bytes(&[], (2.0 * bytes, 4.0), (4.0 * bytes, 4.0)));
    }
}

/// Tokens one attention kernel runs over: the whole sequence, the document that a token stands in on average, or under a
/// ring a rank's own in its first step. In later steps nothing is masked: all queries see half of another rank's keys, or
/// half of the queries all of them, which is what they would see of once or twice as many tokens under a mask.
fn kernel_tokens(shape: Shape, sequence: f64) -> f64 {
    if let Some(documents) = shape.options.documents {
        return documents.mean(shape.layout.sequence, |length| length);
    }
    sequence / shape.cp * (1.0 + (shape.cp - 1.0) * 1.5) / shape.cp
}

/// What a ring adds around its steps: each step's output is corrected into a sum in fp32, keys and
/// values are packed for sending, and in backward the gradients of each step are added up
/// (Transformer Engine, `attention/dot_product_attention/context_parallel.py`).
fn ring(shape: Shape, heads: &Heads, ops: &mut Vec<Op>) {
    if shape.cp <= 1.0 {
        return;
    }
    let (read_add_write, copied) = (2.0 + 4.0 + 4.0, 2.0 * 2.0);
    let out = shape.tokens * heads.heads * heads.v_dim;
    let queries = shape.tokens * heads.heads * heads.qk_dim;
    let pairs = shape.tokens * heads.kv_heads * (heads.qk_dim + heads.v_dim);
    // Kernels of a step: statistics, correction, two copies; in backward three sums and the copies.
    let forward = shape.cp * (read_add_write * out + copied * pairs);
    let backward = shape.cp * (read_add_write * (queries + pairs) + copied * pairs);
    let modules = &[RecomputeModule::CoreAttn];
    ops.push(Op::bytes(modules, (forward, 6.0 * shape.cp), (backward, 9.0 * shape.cp)));
}

/// Operations of the core in forward under a counting convention.
pub(super) fn flops(shape: Shape, convention: Convention) -> f64 {
    let Some(attention) = shape.recipe.attention() else { return 0.0 };
    let heads = Heads::of(shape, &attention);
    let sequence = shape.layout.sequence as f64;
    let seen = match convention {
        Convention::MaskedScores => Seen::of(shape, &attention, Stack::Layers).all(),
        Convention::AllScores => sequence,
    };
    scores(shape, &heads, seen)
}

/// Operations over so many keys a query.
fn scores(shape: Shape, heads: &Heads, keys: f64) -> f64 {
    2.0 * shape.tokens * keys * heads.heads * (heads.qk_dim + heads.v_dim)
}

/// Keys a query sees, on average over all attention layers.
struct Seen {
    /// Of those that are not sparse.
    dense: f64,
    /// Of those that are.
    sparse: f64,
    /// The share of layers that are sparse, and that have an indexer.
    sparse_share: f64,
    indexed: f64,
}

impl Seen {
    fn of(shape: Shape, attention: &Attention, stack: Stack) -> Seen {
        let sequence = shape.layout.sequence as f64;
        let layers = shape.recipe.count(Mixer::Attention).max(1);
        // Of queries in a document this long; all of a sequence is one where nobody says otherwise.
        let over = |of: &dyn Fn(f64) -> f64| match shape.options.documents {
            Some(documents) => documents.mean(shape.layout.sequence, of),
            None => of(sequence),
        };
        let causal = over(&|length| length / 2.0);
        let within = |limit: f64, length: f64| match limit >= length {
            true => length / 2.0,
            false => limit - limit * limit / (2.0 * length),
        };
        let dsa = shape.recipe.features.dsa().filter(|_| stack == Stack::Layers);
        let mut all = Seen { dense: 0.0, sparse: 0.0, sparse_share: 0.0, indexed: 0.0 };
        for ordinal in 0..layers {
            let window = attention.window.as_ref().filter(|w| !w.full_layers.contains(&ordinal));
            let sparse = dsa.filter(|d| d.covers(ordinal));
            all.indexed += f64::from(u8::from(sparse.is_some_and(|d| d.indexes(ordinal))));
            all.sparse_share += f64::from(u8::from(sparse.is_some()));
            match (window, sparse) {
                (Some(window), _) => all.dense += over(&|length| window.seen(length)),
                (None, Some(sparse)) => all.sparse += over(&|length| within(sparse.top_k as f64, length)),
                (None, None) => all.dense += causal,
            }
        }
        let mean = |sum: f64| sum / layers as f64;
        Seen {
            dense: mean(all.dense),
            sparse: mean(all.sparse),
            sparse_share: mean(all.sparse_share),
            indexed: mean(all.indexed),
        }
    }

    fn all(&self) -> f64 {
        self.dense + self.sparse
    }
}

/// Copies between projections and kernel: heads that lie group by group are taken apart and their gradients
/// put together again; latent heads are put together from a part that is turned and one that is not, in both
/// directions (Megatron-Core `attention.py`, `multi_latent_attention.py`; copies counted in its profiles).
fn packing(shape: Shape, attention: &Attention, heads: &Heads, ops: &mut Vec<Op>) {
    if shape.options.kernels.elementwise == Elementwise::Compiled {
        return;
    }
    let bytes = |width: f64| 2.0 * 2.0 * shape.tokens * width;
    let queries = bytes(heads.heads * heads.qk_dim);
    let (forward, backward) = match &attention.kind {
        AttentionKind::Gqa { .. } => {
            let keys = bytes(heads.kv_heads * heads.qk_dim);
            let copied = Work::stream(Stream::Strided, queries + keys, 2.0);
            (vec![copied], vec![Work::bytes(queries + 2.0 * keys, 1.0)])
        }
        AttentionKind::Mla(_) => {
            let copied = |times: f64| vec![Work::stream(Stream::Strided, times * queries, times)];
            (copied(4.0), copied(6.0))
        }
    };
    ops.push(Op::streams(&[], forward, backward));
}

/// Norms of queries and keys, head by head.
fn qk_norm(shape: Shape, attention: &Attention, heads: &Heads, ops: &mut Vec<Op>) {
    if attention.qk_norm != QkNorm::None {
        let width = heads.qk_dim as u64;
        for count in [heads.heads, heads.kv_heads] {
            norm(shape, shape.tokens * count * heads.qk_dim, width, &[], ops);
        }
    }
}

/// Rotation of queries and keys; of latent heads, of the part that turns.
fn rotation(shape: Shape, attention: &Attention, heads: &Heads, ops: &mut Vec<Op>) {
    let width = match &attention.kind {
        AttentionKind::Gqa { .. } => (heads.heads + heads.kv_heads) * heads.qk_dim,
        AttentionKind::Mla(mla) => (heads.heads + 1.0) * mla.rope_dim as f64,
    };
    turned(shape, width, ops);
}

/// So many columns of a token turned, where positions turn.
pub(super) fn turned(shape: Shape, width: f64, ops: &mut Vec<Op>) {
    if !matches!(shape.recipe.positions, Positions::Rope(_)) {
        return;
    }
    let bytes = 2.0 * shape.tokens * width;
    let (passes, kernels) = match shape.options.kernels.elementwise {
        // Halves negated, concatenated, multiplied by cosine and sine, added.
        Elementwise::Compiled => (2.0, 1.0),
        Elementwise::Fused | Elementwise::Eager if shape.options.kernels.rope_fusion => (2.0, 2.0),
        Elementwise::Fused | Elementwise::Eager => (9.0, 10.0),
    };
    let work = || vec![Work::stream(Stream::Mixed, passes * bytes, kernels)];
    ops.push(Op::streams(&[], work(), work()));
}

/// The sparse indexer scores every earlier token with a few narrow heads.
fn indexer(shape: Shape, share: f64, ops: &mut Vec<Op>) {
    let Some(dsa) = shape.recipe.features.dsa().filter(|_| share > 0.0) else { return };
    let sequence = shape.layout.sequence as f64;
    let pairs = share * shape.tokens * sequence / 2.0;
    let flops = 2.0 * pairs * (dsa.heads * dsa.head_dim) as f64;
    let dim = dsa.head_dim as f64;
    let work = |flops, pass| Work::Attention {
        flops,
        bytes: 4.0 * pairs,
        tokens: sequence / shape.cp,
        rows: shape.tokens * dsa.heads as f64,
        dim,
        pass,
    };
    ops.push(Op {
        block: None,
        scope: None,
        part: Part::Attention,
        modules: &[RecomputeModule::CoreAttn],
        forward: vec![work(flops, Direction::Forward)],
        input: vec![work(2.0 * flops, Direction::Backward)],
        weight: Vec::new(),
    });
}
