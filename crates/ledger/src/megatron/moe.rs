//! Expert layers with the all-to-all dispatcher (`megatron/core/transformer/moe/moe_layer.py`,
//! `token_dispatcher.py`, `moe_utils.py`, `experts.py`).

use super::blocks::{MoeParams, rows_in};
use super::config::{Config, Feed};
use super::linear::{Keeps, Mode, elements_of, grouped_linear, linear};
use super::mlp::shared_expert;
use super::moe_allgather;
use super::moe_deepep;
use super::moe_fused;
use super::moe_hybridep;
use super::ops::{activate, add, grad, grad_of, makes, weight_grad};
use super::options::{Dispatcher, Fp8Recipe, Routing};
use super::params::Param;
use super::rank::Rank;
use super::recompute::again;
use super::router::{self, Routed};
use layout::request::RecomputeModule;
use recipe::kinds::Activation;
use replay::line::Line;
use replay::tape::{BF16, BYTE, FP32, INT32, INT64, Tensor, WithoutOutput, checkpoint};
use std::rc::Rc;

/// `y` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &Rc<MoeParams>, y: &Tensor) -> Tensor {
    if !c.config.recomputes(RecomputeModule::Moe) {
        return layer(c, params, y);
    }
    let (rank, params, pass) = (c.clone(), params.clone(), c.pass.get());
    checkpoint(&c.tape, &[y], move |inputs| again(&rank, pass, || layer(&rank, &params, &inputs[0])))
}

fn layer(c: &Rc<Rank>, params: &Rc<MoeParams>, x: &Tensor) -> Tensor {
    let shared = shared(c, params, x);
    let routed = router::forward(c, params, x);
    // Router and shared expert see the hidden width; only dispatched tokens are projected.
    let latent = params.latent.as_ref().map(|(into, _)| {
        let sizes = (c.config.hidden, c.config.expert_hidden());
        linear(c, x, Mode::Plain, sizes, into, Keeps::Quantized)
    });
    let x = latent.as_ref().unwrap_or(x);
    match c.config.moe().dispatcher {
        Dispatcher::AllGather => moe_allgather::forward(c, params, x, routed, shared),
        Dispatcher::AllToAll => all_to_all(c, params, x, routed, shared),
        Dispatcher::DeepEp => moe_deepep::forward(c, params, x, routed, shared),
        Dispatcher::HybridEp => moe_hybridep::forward(c, params, x, routed, shared),
    }
}

/// Projects back to the hidden width and adds the shared expert's output, while the caller's
/// dispatch buffers are still there.
pub(super) fn with_shared(c: &Rank, params: &MoeParams, out: Tensor, shared: Option<Tensor>) -> Tensor {
    let out = match &params.latent {
        Some((_, back)) => {
            let sizes = (c.config.expert_hidden(), c.config.hidden);
            linear(c, &out, Mode::Plain, sizes, back, Keeps::Quantized)
        }
        None => out,
    };
    match shared {
        Some(shared) => add(c, &out, &shared),
        None => out,
    }
}

fn shared(c: &Rc<Rank>, params: &Rc<MoeParams>, x: &Tensor) -> Option<Tensor> {
    let (weights, feed) = (params.shared.as_ref()?, c.config.moe().shared?);
    if !c.config.recomputes(RecomputeModule::SharedExperts) {
        return Some(shared_expert(c, weights, feed, x));
    }
    let (rank, weights) = (c.clone(), weights.clone());
    Some(checkpoint(&c.tape, &[x], move |inputs| shared_expert(&rank, &weights, feed, &inputs[0])))
}

/// A tensor of tokens and their probabilities.
pub(super) struct Rows {
    pub tokens: Tensor,
    pub probs: Tensor,
    pub count: u64,
}

fn all_to_all(c: &Rc<Rank>, params: &MoeParams, x: &Tensor, routed: Routed, shared: Option<Tensor>) -> Tensor {
    *params.dispatched.borrow_mut() = vec![routed.probs.clone(), routed.map.clone()];
    let (tokens, moe, capacity) = (c.config.local_tokens, c.config.moe(), router::capacity(c));
    let count = capacity.map_or(tokens * moe.top_k, |capacity| capacity * moe.experts);
    let (permuted, order) = permute(c, x, &routed.probs, Spots { tokens, experts: moe.experts, count });
    params.dispatched.borrow_mut().push(order.clone());
    // Permuted tokens and what was received are locals until the layer's forward returns.
    let received = exchange(c, params, &permuted);
    let rows = received.as_ref().unwrap_or(&permuted);
    let mut out = experts(c, params, rows);
    if c.config.ep > 1 {
        let returned = c.scratch(permuted.count * c.config.expert_hidden(), BF16, "combined tokens");
        makes(c, &out, &returned, Vec::new(), rows.count * c.config.expert_hidden(), BF16);
        out = returned;
    }
    // Zeros, and a scatter that keeps its index.
    let whole = c.scratch(x.elements(), BF16, "unpermuted tokens");
    makes(c, &out, &whole, vec![order], permuted.count * c.config.expert_hidden(), BF16);
    // The layer's forward holds it until the shared expert's output is added.
    let _out = c.config.is_trained().then_some(out);
    with_shared(c, params, whole, shared)
}

/// Tokens over experts, and how many places they take there.
#[derive(Clone, Copy)]
pub(super) struct Spots {
    pub tokens: u64,
    pub experts: u64,
    pub count: u64,
}

/// Sorts tokens by expert; the permutation is the second result.
pub(super) fn permute(c: &Rank, x: &Tensor, probs: &Tensor, spots: Spots) -> (Rows, Tensor) {
    let Spots { tokens, experts, count } = spots;
    let (all, width) = (tokens * experts, probs.width());
    if c.config.told.permute_fusion {
        return permute_in_one_kernel(c, x, probs, spots);
    }
    let transposed_map = c.scratch(all, BYTE, "transposed map");
    let (sorted, order) = sort(c, all, count, router::capacity(c).is_some());
    let transposed = c.scratch(all, width, "transposed probabilities");
    makes(c, probs, &transposed, Vec::new(), all, width);
    let index = sorted.unwrap_or_else(|| c.scratch(count, INT64, "probability indices"));
    let permuted_probs = c.scratch(count, width, "permuted probabilities");
    makes(c, &transposed, &permuted_probs, vec![index.clone()], all, width);
    drop((transposed, index));
    drop(transposed_map);
    let tokens = c.scratch(count * c.config.expert_hidden(), BF16, "permuted tokens");
    makes(c, x, &tokens, vec![order.clone()], x.elements(), BF16);
    (Rows { tokens, probs: permuted_probs, count }, order)
}

/// What `--moe-permute-fusion` keeps (`transformer_engine/pytorch/permutation.py` `_moe_permute_mask_map`): a map
/// of rows, two int32 an expert and one more for every token.
pub(super) fn row_map(c: &Rank, tokens: u64, experts: u64) -> Tensor {
    c.scratch((2 * experts + 1) * tokens, INT32, "permutation")
}

fn permute_in_one_kernel(c: &Rank, x: &Tensor, probs: &Tensor, spots: Spots) -> (Rows, Tensor) {
    let Spots { tokens, experts, count } = spots;
    let (all, width, elements) = (tokens * experts, probs.width(), x.elements());
    let order = row_map(c, tokens, experts);
    let tokens = c.scratch(count * c.config.expert_hidden(), BF16, "permuted tokens");
    let permuted = c.scratch(count, width, "permuted probabilities");
    let edges = vec![x.edge(), probs.edge()];
    c.tape.record(edges, &[&tokens, &permuted], vec![order.clone()], move |t, _, _saved| {
        let dx = grad_of(t, elements, BF16, "gradient");
        vec![Some(dx), Some(grad_of(t, all, width, "probability gradient"))]
    });
    (Rows { tokens, probs: permuted, count }, order)
}

/// What a sort by chunks keeps: nothing, or where each row went, when one kernel does it. Chunks of a fixed capacity are
/// transposed (`token_dispatcher.py`, drop_and_pad).
fn chunk_map(c: &Rank, rows: u64) -> Vec<Tensor> {
    let is_mapped = c.config.told.permute_fusion && c.config.moe().capacity_factor.is_none();
    is_mapped.then(|| c.scratch(rows, FP32, "chunk map")).into_iter().collect()
}

/// The permutation. Without a capacity the whole sort is kept too: what is used of it is a slice,
/// and a slice keeps all of its storage.
fn sort(c: &Rank, all: u64, count: u64, is_padded: bool) -> (Option<Tensor>, Tensor) {
    if is_padded {
        let sorted = c.scratch(all, INT64, "sorted map");
        let order = c.scratch(count, INT64, "permutation");
        drop(sorted);
        return (None, order);
    }
    let values = c.scratch(all, BYTE, "sorted values");
    let sorted = c.scratch(all, INT64, "sorted map");
    drop(values);
    let order = c.scratch(count, INT64, "permutation");
    (Some(sorted), order)
}

/// Tokens this rank receives over the expert-parallel group, when there is one.
fn exchange(c: &Rank, params: &MoeParams, permuted: &Rows) -> Option<Rows> {
    let hidden = c.config.expert_hidden();
    if c.config.ep == 1 {
        return None;
    }
    let is_padded = c.config.moe().capacity_factor.is_some();
    let count = if is_padded { permuted.count } else { received_tokens(c, params, permuted.count) };
    let tokens = c.scratch(count * hidden, BF16, "received tokens");
    makes(c, &permuted.tokens, &tokens, Vec::new(), permuted.count * hidden, BF16);
    let width = permuted.probs.width();
    let probs = c.scratch(count, width, "received probabilities");
    makes(c, &permuted.probs, &probs, Vec::new(), permuted.count, width);
    Some(Rows { tokens, probs, count })
}

/// Tokens a rank receives when every rank routes as this one does: its own tokens for local
/// experts, times the group. Each token chooses without replacement, which makes the variance
/// hypergeometric.
pub(super) fn received_tokens(c: &Rank, params: &MoeParams, even: u64) -> u64 {
    let (moe, ep) = (c.config.moe(), c.config.ep);
    if ep == 1 {
        return even;
    }
    let seed = match moe.routing {
        Routing::Balanced => return even,
        Routing::Overloaded { factor } => return ((even as f64 * factor) as u64).max(1),
        Routing::Random { seed } => seed,
    };
    let (share, experts, top_k) = (1.0 / ep as f64, moe.experts as f64, moe.top_k as f64);
    let spread = (experts - top_k) / (experts - 1.0).max(1.0);
    let variance = c.config.local_tokens as f64 * top_k * share * (1.0 - share) * spread;
    let draw = normal(seed, u64::from(params.layer), c.pass.get());
    let own = (even as f64 / ep as f64 + variance.sqrt() * draw).round();
    (own as u64).max(1) * ep
}

/// A normal draw that depends on its arguments only (SplitMix64, Box–Muller).
fn normal(seed: u64, layer: u64, pass: u64) -> f64 {
    let mut state = seed ^ layer.wrapping_mul(0xD134_2543_DE82_EF95) ^ pass.wrapping_mul(0xA24B_AED4_963E_E407);
    let mut uniform = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform()).cos()
}

/// From received tokens to their outputs in the same order.
fn experts(c: &Rc<Rank>, params: &MoeParams, rows: &Rows) -> Tensor {
    let (config, width) = (&c.config, rows.probs.width());
    let count = rows.count * config.etp;
    let mut out = sorted_experts(c, params, rows, count);
    // The caller of `combine_preprocess` holds what it handed over until that returns. Rows of
    // Megatron-Core by itself were settled without.
    let _handed_over = config.is_trained().then(|| out.clone());
    if config.moe().local_experts > 1 {
        let map = chunk_map(c, count);
        let unsorted = c.scratch(count * config.expert_hidden(), BF16, "unsorted outputs");
        makes(c, &out, &unsorted, map, count * config.expert_hidden(), BF16);
        out = unsorted;
    }
    if config.etp > 1 {
        // One statement casts, reduces and casts back: what it began with stays until its end.
        let _before = config.is_trained().then(|| out.clone());
        out = reduce_scattered(c, out, (count, rows.count), width);
    }
    out
}

/// Gathers over expert tensor parallel ranks, sorts by local expert, and runs the experts.
fn sorted_experts(c: &Rc<Rank>, params: &MoeParams, rows: &Rows, count: u64) -> Tensor {
    let config = &c.config;
    let (mut tokens, mut probs) = (rows.tokens.clone(), rows.probs.clone());
    let each = |x: &Tensor, before: u64, name, saved| {
        let size = x.elements() / before;
        let out = c.scratch(count * size, x.width(), name);
        makes(c, x, &out, saved, before * size, x.width());
        out
    };
    if config.etp > 1 {
        tokens = each(&tokens, rows.count, "gathered tokens", Vec::new());
        probs = each(&probs, rows.count, "gathered probabilities", Vec::new());
    }
    if config.moe().local_experts > 1 {
        tokens = each(&tokens, count, "sorted tokens", chunk_map(c, count));
        probs = each(&probs, count, "sorted probabilities", Vec::new());
    }
    expert_mlp(c, params, &tokens, &probs, count)
}

/// Sums over expert tensor parallel ranks, in the scores' format.
pub(super) fn reduce_scattered(c: &Rank, out: Tensor, rows: (u64, u64), width: u64) -> Tensor {
    let hidden = c.config.expert_hidden();
    let mut out = out;
    let mut step = |count: u64, to: u64, before: u64, from: u64| {
        let next = c.scratch(count * hidden, to, "reduced outputs");
        makes(c, &out, &next, Vec::new(), before * hidden, from);
        out = next;
    };
    if width != BF16 {
        step(rows.0, width, rows.0, BF16);
    }
    step(rows.1, width, rows.0, width);
    if width != BF16 {
        step(rows.1, BF16, rows.1, width);
    }
    out
}

/// The experts themselves (`experts.py` TEGroupedMLP). `count` rows are padded here unless HybridEP did.
pub(super) fn expert_mlp(c: &Rc<Rank>, params: &MoeParams, tokens: &Tensor, probs: &Tensor, count: u64) -> Tensor {
    let (hidden, config) = (c.config.expert_hidden(), &c.config);
    let pads = config.fp8.is_some() && config.moe().dispatcher != Dispatcher::HybridEp;
    let padded = pads.then(|| pad(c, tokens, probs, count));
    let (tokens, probs, rows) = padded.as_ref().map_or((tokens, probs, count), |p| (&p.tokens, &p.probs, p.count));
    let out = match config.told.expert_fusion {
        true => moe_fused::forward(c, params, tokens, probs, rows),
        false => one_by_one(c, params, tokens, probs, rows),
    };
    if padded.is_none() {
        return out;
    }
    let unpadded = c.scratch(count * hidden, BF16, "unpadded outputs");
    makes(c, &out, &unpadded, Vec::new(), rows * hidden, BF16);
    unpadded
}

/// A product, the activation, a product.
fn one_by_one(c: &Rc<Rank>, params: &MoeParams, tokens: &Tensor, probs: &Tensor, rows: u64) -> Tensor {
    let (hidden, moe) = (c.config.expert_hidden(), c.config.moe());
    let feed = Feed { ffn: moe.feed.ffn / c.config.etp, ..moe.feed };
    let (into, back) = ((&params.fc1[..], &params.fc1_biases[..]), (&params.fc2[..], &[][..]));
    let wide = grouped_linear(c, tokens, rows, (hidden, rows_in(feed)), into, Keeps::Quantized, Line::ExpertInputs);
    let rank = c.clone();
    let activation = move |inputs: &[Tensor]| vec![weighted(&rank, &inputs[0], &inputs[1], rows, feed)];
    let (kept, narrow) = if c.config.recomputes(RecomputeModule::MoeAct) {
        let (kept, narrow) = WithoutOutput::new(&c.tape, &[&wide, probs], activation);
        (Some(kept), narrow)
    } else {
        (None, activation(&[wide.clone(), probs.clone()]))
    };
    let keeps = if kept.is_some() { Keeps::Original } else { Keeps::Quantized };
    let product = grouped_linear(c, &narrow[0], rows, (feed.ffn, hidden), back, keeps, Line::Activations);
    if let Some(kept) = kept {
        kept.discard_until(&product);
    }
    if feed.has_bias { with_biases(c, &product, probs, &params.fc2_biases) } else { product }
}

/// What an expert's rows are padded to under the op fuser (`moe_utils.py` get_align_size_for_quantization: "CUTLASS kernel
/// for grouped GEMM assumes 256 alignment").
const FUSED_ROW_STEP: u64 = 256;

/// Rows that padding adds: under fp8 each expert's are padded to a multiple of a step, which is half of one an expert on
/// average.
pub(super) fn padding(config: &Config) -> u64 {
    let step = |recipe: Fp8Recipe| if config.told.expert_fusion { FUSED_ROW_STEP } else { recipe.row_step() };
    config.fp8.map_or(0, |recipe| config.moe().local_experts * (step(recipe) / 2))
}

fn pad(c: &Rank, tokens: &Tensor, probs: &Tensor, count: u64) -> Rows {
    let (hidden, width) = (c.config.expert_hidden(), probs.width());
    let padded = count + padding(&c.config);
    let wide = c.scratch(padded * hidden, BF16, "padded tokens");
    makes(c, tokens, &wide, Vec::new(), count * hidden, BF16);
    let wide_probs = c.scratch(padded, width, "padded probabilities");
    makes(c, probs, &wide_probs, Vec::new(), count, width);
    Rows { tokens: wide, probs: wide_probs, count: padded }
}

/// Each expert's bias times its tokens' scores, added to its rows and all put together again: in the scores' format, and
/// cast back (`experts.py` `_apply_bias`).
fn with_biases(c: &Rank, x: &Tensor, probs: &Tensor, biases: &[Rc<Param>]) -> Tensor {
    let (elements, scores, width) = (x.elements(), probs.elements(), probs.width());
    let each = elements / biases.len() as u64;
    let sums: Vec<Tensor> = biases
        .iter()
        .map(|_| {
            let _weighed = c.scratch(each, width, "weighed bias");
            c.scratch(each, width, "biased outputs")
        })
        .collect();
    let whole = c.scratch(elements, width, "biased outputs");
    drop(sums);
    let out = if width == BF16 { whole } else { c.scratch(elements, BF16, "biased outputs") };
    let edges = [x.edge(), probs.edge()].into_iter().chain(biases.iter().map(|bias| bias.edge())).collect();
    let sizes = elements_of(biases);
    c.tape.record(edges, &[&out], vec![probs.clone()], move |t, _, _saved| {
        let _wide = (width != BF16).then(|| grad_of(t, elements, width, "biased gradient"));
        let casts = |_: &u64| {
            let cast = (width != BF16).then(|| grad(t, each, "expert output gradient"));
            // The bias' share summed over rows, and the scores' over columns.
            drop(grad_of(t, each, width, "bias product"));
            drop(grad_of(t, each, width, "score product"));
            cast
        };
        let _casts: Vec<_> = sizes.iter().map(casts).collect();
        let dx = grad(t, elements, "expert output gradient");
        let dprobs = grad_of(t, scores, width, "probability gradient");
        [Some(dx), Some(dprobs)].into_iter().chain(sizes.iter().map(|size| Some(weight_grad(t, *size)))).collect()
    });
    out
}

/// Gate and linear half clamped, and put together again: the unit behind keeps the clamped pair, the clamps what came
/// (`fusions/fused_bias_geglu.py` weighted_bias_quick_geglu_impl).
fn clamped(c: &Rank, x: &Tensor) -> Tensor {
    let half = x.elements() / 2;
    let halves = [c.act(half, "clamped half"), c.act(half, "clamped half")];
    let out = c.act(2 * half, "clamped projections");
    drop(halves);
    c.tape.record(vec![x.edge()], &[&out], vec![x.clone()], move |t, _, _saved| {
        let masked = |masks: u64| {
            let _masks = grad_of(t, masks * half, BYTE, "clamp mask");
            grad(t, half, "clamp gradient")
        };
        // The linear half has two borders, and their masks are joined in a third.
        let _halves = (masked(3), masked(1));
        vec![Some(grad(t, 2 * half, "clamp gradient"))]
    });
    out
}

/// The activation times the probabilities: fused for SwiGLU, and for squared ReLU when told so
/// (`fusions/fused_weighted_squared_relu.py`), else three tensors.
fn weighted(c: &Rank, x: &Tensor, probs: &Tensor, rows: u64, feed: Feed) -> Tensor {
    let elements = rows * feed.ffn;
    let is_one_kernel = match feed.activation {
        Activation::SwiGlu | Activation::SwiGluOai => true,
        Activation::Relu2 => c.config.told.relu2_fusion,
        _ => false,
    };
    if !is_one_kernel {
        return times_probs(c, &activate(c, x, elements, feed.activation), probs, rows);
    }
    let pair = (feed.activation == Activation::SwiGluOai).then(|| clamped(c, x));
    let x = pair.as_ref().unwrap_or(x);
    let out = c.act(elements, "activation output");
    let (width, wide) = (probs.width(), x.elements());
    c.tape.record(vec![x.edge(), probs.edge()], &[&out], vec![x.clone(), probs.clone()], move |t, _, _saved| {
        let dx = grad_of(t, wide, BF16, "activation gradient");
        vec![Some(dx), Some(grad_of(t, rows, width, "probability gradient"))]
    });
    out
}

fn times_probs(c: &Rank, x: &Tensor, probs: &Tensor, rows: u64) -> Tensor {
    let (elements, prob_width) = (x.elements(), probs.width());
    let width = x.width().max(prob_width);
    let out = c.act_of(elements, width, "weighted activation");
    c.tape.record(vec![x.edge(), probs.edge()], &[&out], vec![x.clone(), probs.clone()], move |t, _, _saved| {
        let mut dx = grad_of(t, elements, width, "activation gradient");
        if width != BF16 {
            dx = grad_of(t, elements, BF16, "activation gradient");
        }
        let product = grad_of(t, elements, width, "probability product");
        let dprobs = grad_of(t, rows, prob_width, "probability gradient");
        drop(product);
        vec![Some(dx), Some(dprobs)]
    });
    if width == BF16 {
        return out;
    }
    let cast = c.act(elements, "weighted activation");
    makes(c, &out, &cast, Vec::new(), elements, width);
    cast
}

#[cfg(test)]
mod tests {
    use super::super::Job;
    use super::super::options::MegatronOptions;
    use super::super::options::tests::experts;
    use super::*;
    use layout::StagePlan;

    /// 16 experts of a rank: half of 16 rows each, of 32 in mxfp8 and of 256 where they are fused.
    #[test]
    fn rows_are_padded_for_the_product() {
        let (recipe, layout) = experts();
        let stages = StagePlan::new(&recipe, &layout, None).unwrap();
        let rows = |fp8, expert_fusion| {
            let options = MegatronOptions { fp8, expert_fusion, ..MegatronOptions::launched(&recipe) };
            let job = Job { recipe: &recipe, layout: &layout, stages: &stages, rank: 0, options: &options };
            padding(&Config::new(&job).unwrap())
        };
        assert_eq!(rows(None, false), 0);
        assert_eq!(rows(Some(Fp8Recipe::Tensorwise), false), 16 * 8);
        assert_eq!(rows(Some(Fp8Recipe::Mxfp8), false), 16 * 16);
        assert_eq!(rows(Some(Fp8Recipe::Mxfp8), true), 16 * 128);
    }

    #[test]
    fn draws_are_standard_and_repeatable() {
        let draws: Vec<f64> = (0..4096).map(|i| normal(0, i % 64, i / 64)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|d| d * d).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        assert_eq!(normal(1, 2, 3), normal(1, 2, 3));
    }
}
