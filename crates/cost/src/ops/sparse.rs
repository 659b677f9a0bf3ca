//! Sparse attention as Megatron-Core runs it without fused kernels
//! (`megatron/core/transformer/experimental_attention_variant/dsa.py`): products over every key for every head, the first in
//! fp32 outside the matrix units, and everything between them by single operations of torch, each of which reads and writes
//! all scores. What the choice saves it does not save here. `ledger/src/megatron/sparse.rs` and `indexer.rs` replay the same
//! operations in memory.

use super::{Direction, Op, Shape, Stream, Work};
use crate::part::Part;
use case::SparseKernels;
use layout::request::RecomputeModule;
use layout::{Engine, Recompute};
use recipe::kinds::dsa::Dsa;
use recipe::kinds::mla::Mla;

/// Time of products in fp32 over whole sequences against a scan's chunks: 51 TFLOP/s on an H200 where those have 30.
const LARGE: f64 = 0.58;

/// Our kernels at NAM56R's shape over four sequences of 4096 tokens on an H200, November 2026 (0.42 ms of scores, 1.03 of
/// the choice, 0.51 of attention and 0.29 of its weights, backward 3.4 and of the indexer 1.2): time of products over
/// gathered keys and of index scores against attention's, passes of `torch.topk` over scores, and bytes read and written
/// for each that a key's gradient and an index key's have, which atomics add.
const GATHERED: (f64, f64) = (2.05, 1.74);
const SCORED: f64 = 1.28;
const BEST: f64 = 15.6;
const ADDED: (f64, f64) = (6.5, 4.6);

/// Heads that a program of ours reads for, at least and at most (`LEAST` and `MOST` of `sparse_kernels.py`).
const HEADS: (u64, u64) = (16, 64);

/// Queries whose choice is scattered into a mask at a time (`scatter_topk_into_index_mask`), and the kernels of it.
const SCATTERED: (f64, f64) = (256.0, 6.0);

/// What runs sparse layers, where their latents are absorbed into queries.
pub(super) fn kernels(shape: Shape) -> Option<SparseKernels> {
    is_absorbed(shape).then(|| case::sparse_kernels(shape.recipe, shape.layout, shape.options))
}

/// Whether sparse layers have their latents absorbed into queries: Megatron-Core's, which has no others.
pub(super) fn is_absorbed(shape: Shape) -> bool {
    matches!(shape.layout.engine, None | Some(Engine::Megatron))
        && shape.recipe.is_latent()
        && shape.recipe.features.dsa().is_some()
}

/// Bytes for each score of all heads: by kernels over neighbours, and by those with a side that is broadcast; the kernels.
#[derive(Clone, Copy)]
struct Moved {
    plain: f64,
    broadcast: f64,
    kernels: f64,
}

impl Moved {
    fn and(self, other: Moved) -> Moved {
        Moved {
            plain: self.plain + other.plain,
            broadcast: self.broadcast + other.broadcast,
            kernels: self.kernels + other.kernels,
        }
    }

    fn works(self, scores: f64) -> [Work; 2] {
        let half = self.kernels / 2.0;
        [Work::bytes(scores * self.plain, half), Work::stream(Stream::Broadcast, scores * self.broadcast, half)]
    }
}

/// `masked_softmax`: three copies that are filled where a mask says so, the largest score, exponential and sum; the mask
/// inverted three times and asked for rows without keys, the difference and the quotient.
const SOFTMAX: Moved = Moved { plain: 24.0 + 4.0 + 8.0 + 4.0, broadcast: 15.0 + 12.0 + 4.0 + 16.0, kernels: 16.0 };
/// The scale, the mask that is added, weights in bf16 and their product.
const FORWARD: Moved = Moved { plain: 8.0 + 6.0 + 2.0, broadcast: 8.0, kernels: 6.0 };
/// Both products of the weights, the cast, three fills, a division by a sum and one of it, the exponential, the difference
/// and the largest score, and the scale.
const BACKWARD: Moved = Moved { plain: 102.0, broadcast: 53.0, kernels: 28.0 };
/// The loss's own scores: scale, mask, and the sum of weights over heads.
const TARGET: Moved = Moved { plain: 8.0 + 8.0 + 4.0, broadcast: 5.0, kernels: 6.0 };
/// Index scores of a head: ReLU, weight and sum.
const INDEX: Moved = Moved { plain: 12.0, broadcast: 8.0, kernels: 6.0 };
/// Their gradients.
const INDEX_BACKWARD: Moved = Moved { plain: 42.0, broadcast: 16.0, kernels: 12.0 };
/// What is read and written of the scores that are summed over heads, by the choice, by the masks and by the loss.
const CHOICE: Moved = Moved { plain: 30.0, broadcast: 13.0, kernels: 12.0 };
const MASK: Moved = Moved { plain: 16.0, broadcast: 14.0, kernels: 12.0 };
const LOSS: Moved = Moved { plain: 90.0, broadcast: 20.0, kernels: 20.0 };

struct Sizes {
    heads: f64,
    /// Scores of one head.
    pairs: f64,
    queries: f64,
    sequences: f64,
    keys: f64,
    width: f64,
    latent: f64,
    /// Index heads and their columns.
    index: (f64, f64),
    chosen: f64,
}

impl Sizes {
    fn scores(&self) -> f64 {
        self.pairs * self.heads
    }

    /// A product in fp32 of so many scores by so many columns.
    fn product(&self, scores: f64, width: f64) -> Work {
        Work::Fp32 { flops: LARGE * 2.0 * scores * width, bytes: 4.0 * scores, kernels: 1.0 }
    }

    /// `times` products of weights and values, in bf16.
    fn weighed(&self, times: f64, pass: Direction) -> Work {
        Work::Attention {
            flops: times * 2.0 * self.scores() * self.latent,
            bytes: times * 2.0 * self.scores(),
            tokens: self.keys,
            rows: self.queries * self.heads,
            dim: self.latent,
            pass,
        }
    }

    /// A mask made of the choice.
    fn mask(&self) -> Vec<Work> {
        let (some, kernels) = SCATTERED;
        let pieces = (self.queries / self.sequences / some).ceil();
        let scattered = Work::stream(Stream::Indexed, 26.0 * self.queries * self.chosen, kernels * pieces);
        MASK.works(self.pairs).into_iter().chain([scattered]).collect()
    }

    fn attention(&self) -> Vec<Work> {
        let mut works = vec![self.product(self.scores(), self.width), self.weighed(1.0, Direction::Forward)];
        works.extend(FORWARD.and(SOFTMAX).works(self.scores()));
        works.extend(self.mask());
        works
    }

    fn attention_back(&self) -> Vec<Work> {
        let wide = || self.product(self.scores(), self.width);
        let mut works = vec![wide(), wide(), self.weighed(2.0, Direction::Backward)];
        works.extend(BACKWARD.works(self.scores()));
        works
    }

    fn index_scores(&self) -> Vec<Work> {
        let scores = self.pairs * self.index.0;
        [self.product(scores, self.index.1)].into_iter().chain(INDEX.works(scores)).collect()
    }

    /// Our kernel over chosen keys, whose heads fill blocks; a pass for the loss reads no values.
    fn read(&self, weighs: bool) -> Vec<Work> {
        let block = (self.heads as u64).next_power_of_two().clamp(HEADS.0, HEADS.1) as f64;
        let heads = block * (self.heads / block).ceil();
        let columns = match weighs {
            true => GATHERED.0 * (self.width + self.latent),
            false => GATHERED.1 * self.width,
        };
        let flops = 2.0 * self.queries * heads * self.chosen * columns;
        vec![Work::Attention {
            flops,
            bytes: 2.0 * self.queries * self.heads * (self.width + self.latent),
            tokens: self.keys,
            rows: self.queries * self.heads,
            dim: self.latent,
            pass: Direction::Forward,
        }]
    }

    /// Gradients of chosen keys are added where they belong, a number at a time.
    fn read_back(&self) -> Vec<Work> {
        vec![Work::bytes(ADDED.0 * 4.0 * self.queries * self.chosen * self.width, 2.0)]
    }

    /// Scores of every pair by our kernel, and torch's choice of the best.
    fn chosen(&self) -> Vec<Work> {
        let flops = self.pairs * self.index.0 * self.index.1;
        let scores = Work::Attention {
            flops: SCORED * flops,
            bytes: 4.0 * self.pairs,
            tokens: self.keys,
            rows: self.queries * self.index.0,
            dim: self.index.1,
            pass: Direction::Forward,
        };
        let few = self.queries * self.chosen;
        vec![scores, Work::bytes(BEST * 4.0 * self.pairs, 4.0), Work::bytes(26.0 * few, 3.0)]
    }

    fn chosen_back(&self) -> Vec<Work> {
        vec![Work::bytes(ADDED.1 * 4.0 * self.queries * self.chosen * self.index.1, 3.0)]
    }

    /// The loss over chosen keys and its gradient.
    fn learned(&self) -> Vec<Work> {
        let mut works = self.read(false);
        works.push(Work::bytes(110.0 * self.queries * self.chosen, 24.0));
        works
    }

    /// What the loss is taken against.
    fn target(&self) -> Vec<Work> {
        let mut works = vec![self.product(self.scores(), self.width)];
        works.extend(TARGET.and(SOFTMAX).works(self.scores()));
        works.extend(LOSS.works(self.pairs));
        works.extend(self.mask());
        works
    }

    fn index_back(&self) -> Vec<Work> {
        let scores = self.pairs * self.index.0;
        let wide = || self.product(scores, self.index.1);
        [wide(), wide(), wide()].into_iter().chain(INDEX_BACKWARD.works(scores)).collect()
    }
}

/// `share` of attention layers are sparse, and `indexed` of them choose.
pub(super) fn layers(shape: Shape, kernels: SparseKernels, (share, indexed): (f64, f64), ops: &mut Vec<Op>) {
    if share == 0.0 {
        return;
    }
    let (Some(dsa), Some(attention)) = (shape.recipe.features.dsa(), shape.recipe.attention()) else { return };
    let recipe::kinds::attention::AttentionKind::Mla(latent) = &attention.kind else { return };
    let sizes = of(shape, dsa, latent, attention.heads as f64 / shape.tp);
    let scaled = |works: Vec<Work>, share: f64| works.into_iter().map(|work| work.of(share)).collect::<Vec<_>>();
    around(shape, latent, share * sizes.heads, ops);
    if kernels == SparseKernels::Ours {
        push(scaled(sizes.read(true), share), scaled(sizes.read_back(), share), ops);
        // The loss is taken in the pass that records gradients, and so is what it is taken against.
        push(scaled(sizes.chosen(), indexed), scaled(sizes.chosen_back(), indexed), ops);
        let learned = scaled(sizes.learned(), indexed);
        let [forward, backward] = if recomputes(shape) { [Vec::new(), learned] } else { [learned, Vec::new()] };
        ops.push(Op { modules: &[], ..of_attention(forward, backward) });
        return;
    }
    push(scaled(sizes.attention(), share), scaled(sizes.attention_back(), share), ops);
    if indexed == 0.0 {
        return;
    }
    let choice: Vec<Work> = sizes.index_scores().into_iter().chain(CHOICE.works(sizes.pairs)).collect();
    let again = sizes.index_scores().into_iter().chain(sizes.target()).chain(sizes.index_back());
    // The loss is taken where gradients are recorded: once, and in backward where all of it is computed again.
    let mut backward: Vec<Work> = again.collect();
    let mut forward = choice;
    match recomputes(shape) {
        true => backward.extend(sizes.target()),
        false => forward.extend(sizes.target()),
    }
    push(scaled(forward, indexed), scaled(backward, indexed), ops);
}

fn of(shape: Shape, dsa: &Dsa, latent: &Mla, heads: f64) -> Sizes {
    let keys = shape.layout.sequence as f64;
    Sizes {
        heads,
        pairs: shape.tokens * keys,
        queries: shape.tokens,
        sequences: shape.layout.micro_batch as f64,
        keys,
        width: (latent.kv_rank + latent.rope_dim) as f64,
        latent: latent.kv_rank as f64,
        index: (dsa.heads as f64, dsa.head_dim as f64),
        chosen: (dsa.top_k as f64).min(keys),
    }
}

fn recomputes(shape: Shape) -> bool {
    match &shape.layout.recompute {
        Recompute::Full => true,
        Recompute::Selective(modules) => modules.contains(&RecomputeModule::CoreAttn),
        Recompute::None => false,
    }
}

fn push(forward: Vec<Work>, input: Vec<Work>, ops: &mut Vec<Op>) {
    ops.push(of_attention(forward, input));
}

fn of_attention(forward: Vec<Work>, input: Vec<Work>) -> Op {
    let modules = &[RecomputeModule::CoreAttn];
    Op { part: Part::Attention, modules, block: None, scope: None, forward, input, weight: Vec::new() }
}

/// Queries of the latent's width and outputs of it, each made contiguous behind its product.
fn around(shape: Shape, latent: &Mla, heads: f64, ops: &mut Vec<Op>) {
    let columns = heads * (3 * latent.kv_rank + latent.rope_dim + latent.v_dim) as f64;
    let copied = |times: f64| vec![Work::stream(Stream::Strided, times * 4.0 * shape.tokens * columns, 4.0 * times)];
    ops.push(Op::streams(&[], copied(1.0), copied(1.0)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roofline::Meter;
    use case::options::Options;
    use hardware::Device;

    /// The same of our kernels, over four sequences.
    #[test]
    fn our_kernels_take_what_was_timed() {
        let sizes = Sizes {
            heads: 56.0,
            pairs: 4.0 * 4096.0 * 4096.0,
            queries: 4.0 * 4096.0,
            sequences: 4.0,
            keys: 4096.0,
            width: 128.0,
            latent: 64.0,
            index: (32.0, 64.0),
            chosen: 256.0,
        };
        let recipe = recipe::builtin::find("nam56r").unwrap();
        let options = Options::of(Some(Engine::Megatron), &recipe);
        let meter = Meter::new(&Device::find("H200").unwrap(), &options).unwrap();
        let [scores, best, _] = <[Work; 3]>::try_from(sizes.chosen()).unwrap();
        let mut timed =
            vec![(scores, 0.423), (best, 1.029), (sizes.read(true)[0], 0.507), (sizes.read(false)[0], 0.287)];
        timed.extend([(sizes.read_back()[0], 3.419), (sizes.chosen_back()[0], 1.197)]);
        for (work, measured) in timed {
            let milliseconds = 1e3 * meter.seconds(&work);
            assert!((milliseconds / measured - 1.0).abs() < 0.05, "{milliseconds} of {measured} ms");
        }
    }

    /// One layer without its indexer at 128 heads of DeepSeek's latents and at NAM56R's 56 over two sequences of 4096
    /// tokens: milliseconds of attention forward and backward, and of the loss's scores, timed on an H200 with torch 2.11.
    #[test]
    fn a_layer_takes_what_was_timed() {
        let of = |heads: f64, sequences: f64, latent: f64, rope: f64| Sizes {
            heads,
            pairs: sequences * 4096.0 * 4096.0,
            queries: sequences * 4096.0,
            sequences,
            keys: 4096.0,
            width: latent + rope,
            latent,
            index: (1.0, 1.0),
            chosen: 256.0,
        };
        let timed =
            [(of(128.0, 1.0, 512.0, 64.0), [125.5, 209.3, 126.1]), (of(56.0, 2.0, 64.0, 64.0), [79.0, 104.0, 80.6])];
        let recipe = recipe::builtin::find("nam56r").unwrap();
        let options = Options::of(Some(Engine::Megatron), &recipe);
        let meter = Meter::new(&Device::find("H200").unwrap(), &options).unwrap();
        for (sizes, measured) in timed {
            let works = [sizes.attention(), sizes.attention_back(), sizes.target()];
            for (works, measured) in works.iter().zip(measured) {
                let seconds: f64 = works.iter().map(|work| meter.seconds(work)).sum();
                assert!((1e3 * seconds / measured - 1.0).abs() < 0.1, "{} of {measured} ms", 1e3 * seconds);
            }
        }
    }
}
