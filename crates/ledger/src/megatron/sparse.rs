//! Attention over chosen tokens (`megatron/core/transformer/experimental_attention_variant/dsa.py`). Without fused kernels
//! it is eager (`_unfused_absorbed_dsa_fn`): scores of every head over every key in fp32, a mask, a softmax of single
//! operations (`dsa_masking.py` `masked_softmax`), of which autograd keeps two in fp32, three masks and the weights in bf16
//! until backward. TileLang's kernel (`ops/sparse_mla.py`) keeps its operands alone and computes its output again.
//! Allocations and their order are those that torch's profiler shows of these functions.

use super::config::Config;
use super::ops::{copy, grad, grad_of, makes};
use super::rank::Rank;
use recipe::kinds::mla::Mla;
use replay::line::Line;
use replay::tape::{BF16, BYTE, FP32, Grads, INT32, INT64, Tape, Tensor};

/// Sizes of the core over a microbatch.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub batch: u64,
    pub heads: u64,
    /// Queries of this rank.
    pub tokens: u64,
    /// Keys a query may see: of all context-parallel ranks.
    pub keys: u64,
    /// Columns of a query and of the key: the latent and the part that turns.
    pub width: u64,
    pub latent: u64,
}

impl Sizes {
    pub fn of(c: &Config, latent: &Mla) -> Sizes {
        Sizes {
            batch: c.micro_batch,
            heads: c.attention().heads / c.tp,
            tokens: c.tokens,
            keys: c.full_sequence,
            width: latent.kv_rank + latent.rope_dim,
            latent: latent.kv_rank,
        }
    }

    /// Queries of all heads.
    pub fn rows(&self) -> u64 {
        self.tokens * self.heads
    }

    /// Scores of one head.
    pub fn pairs(&self) -> u64 {
        self.tokens * self.keys
    }

    /// Scores of all heads.
    pub fn scores(&self) -> u64 {
        self.pairs() * self.heads
    }

    pub fn queries(&self) -> u64 {
        self.rows() * self.width
    }

    pub fn key(&self) -> u64 {
        self.batch * self.keys * self.width
    }

    /// Operations of one product over all scores.
    pub fn flops(&self, width: u64) -> f64 {
        2.0 * self.scores() as f64 * width as f64
    }
}

/// Makes tensors on a line.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub tape: &'a Tape,
    pub line: Line,
}

impl Maker<'_> {
    pub fn of(&self, elements: u64, width: u64, name: &'static str) -> Tensor {
        self.tape.tensor(self.line, elements, width, name)
    }

    /// Which keys a query may see at all: two comparisons and both of them.
    pub fn seen(&self, s: Sizes) -> Tensor {
        let pairs = s.pairs() / s.batch;
        let _sides = [self.of(pairs, BYTE, "seen keys"), self.of(pairs, BYTE, "seen keys")];
        self.of(pairs, BYTE, "seen keys")
    }

    /// `masked_fill(~seen, …)` of scores.
    pub fn masked(&self, s: Sizes, scores: u64, name: &'static str) -> Tensor {
        let _seen = (self.seen(s), self.of(s.pairs() / s.batch, BYTE, "unseen keys"));
        self.of(scores, FP32, name)
    }

    /// Zero at chosen keys and minus infinity elsewhere, 256 queries of each sequence at a time.
    pub fn choice_mask(&self, s: Sizes, chosen: u64) -> Tensor {
        let mask = self.of(s.pairs(), FP32, "index mask");
        let some = s.batch * chosen * (s.tokens / s.batch).min(256);
        drop([(BYTE, "chosen"), (INT64, "chosen"), (FP32, "chosen")].map(|(width, name)| self.of(some, width, name)));
        mask
    }

    /// `masked_softmax` of scores that the caller holds. Masks that are expanded over heads are inverted at full size.
    pub fn softmax(&self, s: Sizes, kept: &mut dyn FnMut(&Tensor)) -> Tensor {
        let (scores, rows) = (s.scores(), s.rows());
        let made = |width, name| self.of(scores, width, name);
        let unseen = made(BYTE, "inverted attention mask");
        let logits = made(FP32, "masked scores");
        kept(&unseen);
        drop(unseen);
        let (any, most) = (self.of(rows, BYTE, "rows with keys"), self.of(rows, FP32, "largest scores"));
        let places = self.of(rows, INT64, "places of the largest scores");
        kept(&places);
        kept(&any);
        let least = self.of(rows, FP32, "largest scores");
        drop((places, most));
        let shifted = made(FP32, "shifted scores");
        let raised = made(FP32, "exponentials");
        kept(&raised);
        drop(shifted);
        let unseen = made(BYTE, "inverted attention mask");
        let seen = made(FP32, "masked exponentials");
        kept(&unseen);
        drop((unseen, raised));
        let sums = [self.of(rows, FP32, "sums of exponentials"), self.of(rows, FP32, "sums of exponentials")];
        sums.iter().for_each(&mut *kept);
        let weights = made(FP32, "attention weights");
        kept(&seen);
        drop((seen, sums));
        let unseen = made(BYTE, "inverted attention mask");
        let out = made(FP32, "masked attention weights");
        kept(&unseen);
        // Masked scores are a local of the function.
        drop((unseen, weights, any, least, logits));
        out
    }
}

/// `_unfused_absorbed_dsa_fn`.
pub(super) fn eager(c: &Rank, s: Sizes, inputs: [&Tensor; 2]) -> Tensor {
    let m = Maker { tape: &c.tape, line: Line::Activations };
    let records = c.tape.records();
    c.torch_product();
    c.tape.work(s.flops(s.width) + s.flops(s.latent));
    let query = m.of(s.queries(), FP32, "query in fp32");
    let key = by_head(m, s, m.of(s.key(), FP32, "key in fp32"), (s.width, FP32));
    let raw = m.of(s.scores(), FP32, "attention scores");
    let scaled = m.of(s.scores(), FP32, "attention scores");
    drop(raw);
    let chosen = m.choice_mask(s, chosen(c, s));
    let mask = m.masked(s, s.pairs(), "index mask");
    drop(chosen);
    let scores = m.of(s.scores(), FP32, "attention scores");
    drop(scaled);
    let finite = m.of(s.pairs(), BYTE, "keys that count");
    let mut saved = vec![query, key];
    let weights = m.softmax(s, &mut |tensor| saved.extend(records.then(|| tensor.clone())));
    drop(scores);
    let narrow = m.of(s.scores(), BF16, "attention weights");
    let values = by_head(m, s, inputs[1].clone(), (s.latent, BF16));
    let product = m.of(s.rows() * s.latent, BF16, "latent output by head");
    let out = m.of(s.rows() * s.latent, BF16, "latent output");
    drop((weights, product, mask, finite));
    saved.extend([narrow, values]);
    c.tape.record(inputs.map(Tensor::edge).to_vec(), &[&out], saved, move |t, grads, saved| {
        t.work(2.0 * (s.flops(s.width) + s.flops(s.latent)));
        back(t, s, grads, saved)
    });
    out
}

/// Keys a query reads: `topk_k = min(index_topk, seqlen)`.
fn chosen(c: &Rank, s: Sizes) -> u64 {
    c.config.indexer.as_ref().map_or(0, |indexer| indexer.top_k.min(s.keys))
}

/// A batched product copies what all heads share for each of them, unless there is one sequence, whose stride may be zero.
fn by_head(m: Maker, s: Sizes, shared: Tensor, (width, bytes): (u64, u64)) -> Tensor {
    if s.batch == 1 {
        return shared;
    }
    m.of(s.batch * s.keys * s.heads * width, bytes, "keys by head")
}

/// Its backward, node by node in autograd's order.
fn back(t: &Tape, s: Sizes, grads: Grads, saved: Vec<Tensor>) -> Grads {
    let score = |name| grad_of(t, s.scores(), FP32, name);
    let by_heads = s.batch * s.keys * s.heads;
    let Ok(saved) = <[Tensor; 13]>::try_from(saved) else { unreachable!("what the core saves") };
    let [query, key, mask1, places, any, raised, mask2, sum, clamped, seen, mask3, weights, values] = saved;
    // The second product.
    let of_values = grad(t, by_heads * s.latent, "value gradient by head");
    let narrow = grad(t, s.scores(), "attention weight gradient");
    drop((grads, values, weights));
    let summed = grad(t, s.batch * s.keys * s.latent, "value gradient");
    drop(of_values);
    let mut of_scores = score("attention weight gradient");
    drop(narrow);
    let of_key = grad(t, s.key(), "key gradient");
    drop(summed);
    let masked = |before: Tensor, mask: Option<Tensor>| {
        let after = score("score gradient");
        drop((before, mask));
        after
    };
    of_scores = masked(of_scores, Some(mask3));
    of_scores = divided(t, s, of_scores, seen);
    drop((sum, clamped));
    of_scores = masked(of_scores, Some(mask2));
    of_scores = masked(of_scores, Some(raised));
    // The largest score was subtracted, and has its gradient at its place: zeros elsewhere.
    drop(score("negated gradient"));
    drop((score("gradient of the largest scores"), places, any));
    of_scores = masked(of_scores, Some(mask1));
    of_scores = masked(of_scores, None);
    // The first product.
    let of_keys = grad_of(t, by_heads * s.width, FP32, "key gradient by head");
    let of_queries = grad_of(t, s.queries(), FP32, "query gradient");
    drop((of_scores, query, key));
    let wide = grad_of(t, s.key(), FP32, "key gradient");
    drop(of_keys);
    drop((grad(t, s.key(), "key gradient"), wide));
    let narrow = grad(t, s.queries(), "query gradient");
    drop(of_queries);
    vec![Some(narrow), Some(of_key)]
}

/// `probs / sums`: four temporaries of the divisor's gradient, which is summed over a row once the other is there.
fn divided(t: &Tape, s: Sizes, before: Tensor, seen: Tensor) -> Tensor {
    let score = || grad_of(t, s.scores(), FP32, "temporary of a division");
    let temporaries = [score(), score(), score()];
    let of_sums = score();
    drop(temporaries);
    let after = grad_of(t, s.scores(), FP32, "score gradient");
    let _rows = grad_of(t, s.rows(), FP32, "gradient of sums");
    drop((of_sums, before, seen));
    after
}

/// `fused_sparse_mla_absorbed`: operands batch first, which the kernel keeps.
pub(super) fn fused(c: &Rank, s: Sizes, inputs: [&Tensor; 2]) -> Tensor {
    let chosen = chosen(c, s);
    let seen = 2.0 * (s.rows() * (s.width + s.latent)) as f64 * chosen as f64;
    c.tape.work(seen);
    // Kernels take 16 heads at least.
    let padded = s.tokens * s.heads.max(16);
    let query = c.act(padded * s.width, "query, batch first");
    let key = c.act(s.key(), "key, batch first");
    let places = c.act_of(s.tokens * chosen, INT32, "chosen tokens, batch first");
    let valid = c.act_of(padded, BYTE, "heads with keys");
    let made =
        || (c.act(padded * s.latent, "latent output, batch first"), c.act_of(padded, FP32, "softmax statistics"));
    let (raw, product) = (made(), made());
    drop(raw);
    let saved = vec![query, key, places, valid];
    c.tape.record(inputs.map(Tensor::edge).to_vec(), &[&product.0], saved, move |t, grads, _saved| {
        t.work(3.5 * seen);
        let made = || (grad(t, padded * s.latent, "latent output again"), grad_of(t, padded, FP32, "statistics again"));
        let given = grad(t, padded * s.latent, "latent output gradient");
        drop(grads);
        let (raw, (again, statistics)) = (made(), made());
        drop(raw);
        let delta = grad_of(t, padded, FP32, "sums of the output gradient");
        drop(again);
        let wide = grad_of(t, s.key(), FP32, "key gradient");
        let of_query = grad(t, padded * s.width, "query gradient");
        let of_key = grad(t, s.key(), "key gradient");
        drop(wide);
        let masked = grad(t, padded * s.width, "query gradient");
        drop((of_query, given, statistics, delta));
        vec![Some(masked), Some(of_key)]
    });
    let out = copy(c, &product.0, s.rows() * s.latent, "latent output");
    drop(product);
    out
}

/// `Attention` of `shardwright_megatron/sparse.py`: what is read, sums of heads and, where the indexer learns, each chosen
/// key's weight summed over heads. Keys' gradients are summed in fp32.
pub(super) fn ours(c: &Rank, s: Sizes, inputs: [&Tensor; 2], tokens: Option<Tensor>, learns: bool) -> (Tensor, Tensor) {
    let read = 2.0 * (s.rows() * (s.width + s.latent)) as f64 * chosen(c, s) as f64;
    c.tape.work(read);
    let out = c.act(s.rows() * s.latent, "latent output");
    let sums = c.act_of(s.rows(), FP32, "logarithms of sums");
    let blocks = if learns { s.heads.div_ceil(HEADS) } else { 0 };
    let parts = c.act_of(blocks * s.tokens * chosen(c, s), FP32, "weights of chosen keys");
    let shares = match blocks {
        2.. => c.act_of(s.tokens * chosen(c, s), FP32, "weights of chosen keys"),
        _ => parts,
    };
    let saved = inputs.map(Tensor::clone).into_iter().chain(tokens).chain([out.alias(), sums]).collect();
    c.tape.record(inputs.map(Tensor::edge).to_vec(), &[&out], saved, move |t, _, _saved| {
        t.work(2.5 * read);
        let of_query = grad(t, s.queries(), "query gradient");
        let _wide = grad_of(t, s.key(), FP32, "key gradient");
        vec![Some(of_query), Some(grad(t, s.key(), "key gradient"))]
    });
    (out, shares)
}

/// Heads of a query that one program of our kernels reads for.
const HEADS: u64 = 64;

/// Keys of all context-parallel ranks in order (`gather_from_sequence_parallel_region`, then `index_select`).
pub(super) fn over_cp(c: &Rank, key: &Tensor, width: u64) -> Tensor {
    if c.config.cp == 1 {
        return key.clone();
    }
    let (part, whole) = (c.config.tokens * width, c.config.tokens * c.config.cp * width);
    let gathered = c.comm(whole, "gathered keys");
    makes(c, key, &gathered, Vec::new(), part, BF16);
    let ordered = c.act(whole, "keys in order");
    makes(c, &gathered, &ordered, Vec::new(), whole, BF16);
    ordered
}

#[cfg(test)]
mod tests {
    use super::super::options::MegatronOptions;
    use super::super::{Job, replay};
    use super::*;
    use layout::request::RecomputeModule;
    use layout::{Layout, LayoutRequest, Recompute, StagePlan, check};
    use recipe::{Feature, Recipe};
    use replay::Replay;
    use replay::tape::backward;

    /// NAM56R with latent and sparse attention on eight ranks.
    fn sparse(request: LayoutRequest) -> (Recipe, Layout) {
        let recipe = recipe::builtin::find("nam56r").unwrap();
        let recipe = recipe.with_features(&[Feature::Mla, Feature::Dsa], &[]).unwrap();
        let mode = Some(recipe::Mode::NemoNative);
        let checked = check(&recipe, &LayoutRequest { world: Some(8), mode, ep: Some(4), etp: Some(1), ..request });
        (checked.recipe, checked.layout.unwrap_or_else(|| panic!("{:?}", checked.findings)))
    }

    fn with<T>((recipe, layout): &(Recipe, Layout), use_of: impl FnOnce(&Job) -> T) -> T {
        let stages = StagePlan::new(recipe, layout, None).unwrap();
        let options = MegatronOptions::launched(recipe);
        use_of(&Job { recipe, layout, stages: &stages, rank: 0, options: &options })
    }

    fn run(request: LayoutRequest) -> Replay {
        with(&sparse(request), |job| replay(job).unwrap())
    }

    fn one_rank() -> LayoutRequest {
        LayoutRequest { tp: Some(1), ..LayoutRequest::default() }
    }

    /// torch 2.11 on an H200, the same functions at 56 heads over 4096 tokens, 128 columns of which 64 are the latent:
    /// 12,433,719,296 bytes were allocated behind forward, with a target of 67,108,864 among them.
    #[test]
    fn the_eager_core_keeps_what_torch_kept() {
        with(&sparse(one_rank()), |job| {
            let config = Config::new(job).unwrap();
            let s = Sizes::of(&config, config.attention().mla.as_ref().unwrap());
            assert_eq!((s.batch, s.heads, s.tokens, s.keys, s.width, s.latent), (1, 56, 4096, 4096, 128, 64));
            let rank = Rank::new(config, Tape::default());
            let made = |elements| rank.act(elements, "input").requiring_grad();
            let (query, key) = (made(s.queries()), made(s.key()));
            rank.torch_product();
            // As asked for: what the allocator hands out may be up to a mebibyte more a block.
            let held = || {
                rank.tape.reset_peaks();
                rank.tape.requested_peak()
            };
            let before = held();
            let out = eager(&rank, s, [&query, &key]);
            let most_forward = rank.tape.requested_peak() - before;
            assert_eq!(held() - before, 12_433_719_296 - 67_108_864);
            // Six scores in fp32 and three masks; queries and keys in fp32; the mask, in fp32 and as bits; a number a row.
            let [scores, rows, pairs] = [s.scores(), s.rows(), s.pairs()];
            let most = 27 * scores + 4 * (s.queries() + s.key()) + 5 * pairs + rows * (8 + 1 + 4 + 4 + 4);
            assert_eq!(most_forward, most);
            let upstream = grad(&rank.tape, out.elements(), "gradient");
            backward(&rank.tape, &out, upstream);
            // Both that are kept and five of the division's, two masks; queries and keys in fp32; the key's gradient, and
            // the output, which is held here. torch's own peak was the same and the gradient that was handed in.
            let own = 30 * scores + 4 * (s.queries() + s.key()) + 2 * s.key() + rows * (8 + 1 + 4 + 4);
            let most = own + 2 * rows * s.latent;
            assert_eq!(most, 28_436_037_632 - 67_108_864 - 2 * rows * s.latent);
            assert_eq!(rank.tape.requested_peak() - before, most);
        });
    }

    /// What is computed again holds no scores between passes: nine layers keep 13 bytes a score.
    #[test]
    fn recompute_leaves_scores_of_one_layer() {
        let again = |recompute| run(LayoutRequest { recompute: Some(recompute), ..one_rank() }).allocated_peak();
        let kept = run(one_rank()).allocated_peak();
        let scores = 56 * 4096 * 4096;
        let core = again(Recompute::Selective(vec![RecomputeModule::CoreAttn]));
        let eight = 8 * 13 * scores;
        assert!((eight - eight / 20..eight + eight / 5).contains(&(kept - core)), "{}", kept - core);
        assert!(again(Recompute::Full) < core);
    }

    /// Heads are cut over tp, and so are scores; queries are cut over cp.
    #[test]
    fn scores_are_cut_with_heads() {
        let [one, two] =
            [1, 2].map(|tp| run(LayoutRequest { tp: Some(tp), ..LayoutRequest::default() }).allocated_peak());
        let scores = 9 * 13 * 28 * 4096 * 4096;
        assert!(one - two > scores, "{one} {two}");
    }
}
