//! What routing costs besides the experts' own products: scores, sorting tokens by expert and
//! back, activations, and the wait for counts that the host needs.

use super::elementwise::activation;
use super::{Call, Op, Shape, Stream, Work};
use crate::part::Part;
use case::options::{Dispatch, Elementwise, Format, GraphModule, GraphsBy, Kernels, Options};
use layout::request::RecomputeModule;
use recipe::Dtype;
use recipe::kinds::Activation;
use recipe::kinds::moe::Moe;

/// Routed rows on one rank: a token once for each expert it goes to. Balance gives every
/// expert-parallel rank as many as it sends; expert-tensor ranks see their whole group's.
pub(super) fn rows(shape: Shape) -> f64 {
    let Some(moe) = &shape.recipe.moe else { return 0.0 };
    shape.local * moe.top_k as f64 * shape.layout.etp.get() as f64
}

/// Rows moved into the order of their experts and back: gathered by index, and summed by index on the way
/// back and in the gradient of the way there. Tokens that travel are put in the order of ranks first and of
/// experts where they arrive (nothing to sort with one expert a rank). DeepEP takes tokens as they lie, so that
/// they are put in order once, where they arrive; HybridEP does that too (Megatron-Core `moe/token_dispatcher.py`
/// `_DeepepManager`, `moe/fused_a2a.py` dispatch_with_permute).
fn permutations(shape: Shape, moe: &Moe, ops: &mut Vec<Op>) {
    let travels = shape.layout.ep.splits() || shape.layout.etp.splits();
    let dispatch = shape.options.kernels.dispatch;
    if travels && dispatch == Dispatch::HybridEp {
        return;
    }
    let width = width(shape, moe);
    let k = moe.top_k as f64;
    let bytes = 2.0 * width * shape.local * k;
    let modules: &'static [RecomputeModule] = &[RecomputeModule::Moe];
    // Reading rows and writing them, or writing the sum of a token's.
    let (moved, summed) = (2.0 * bytes, bytes * (1.0 + 1.0 / k));
    if shape.options.kernels.permute_fusion {
        // The map from rows to places takes three kernels over tokens and experts.
        let map = Work::stream(Stream::Mixed, 12.0 * shape.local * moe.experts as f64, 3.0);
        let once = |bytes| Work::stream(Stream::Plain, bytes, 1.0).started(Call::Fused);
        ops.push(Op::streams(modules, vec![map, once(moved), once(summed)], vec![once(summed), once(moved)]));
    } else {
        // A mask is turned into indices by a sort, a dozen small kernels (Megatron-Core `moe_utils.py` permute).
        let forward = vec![Work::stream(Stream::Plain, moved, 13.0), Work::stream(Stream::Scattered, moved, 3.0)];
        let backward = vec![Work::stream(Stream::Indexed, moved, 3.0), Work::stream(Stream::Plain, moved, 2.0)];
        ops.push(Op::streams(modules, forward, backward));
    }
    let here = moe.experts / shape.layout.ep.get().max(1);
    if travels && here > 1 && dispatch != Dispatch::DeepEp {
        let arrived = 2.0 * 2.0 * width * rows(shape);
        let sorted = || vec![Work::stream(Stream::Plain, arrived, 4.0), Work::stream(Stream::Plain, arrived, 4.0)];
        ops.push(Op::streams(modules, sorted(), sorted()));
    }
}

/// Router, permutations and activations of one expert block.
pub(super) fn routing(shape: Shape, ops: &mut Vec<Op>) {
    let Some(moe) = &shape.recipe.moe else { return };
    let first = ops.len();
    permutations(shape, moe, ops);
    ops[first..].iter_mut().for_each(|op| op.scope = Some(GraphModule::MoePreprocess));
    let modules: &'static [RecomputeModule] = &[RecomputeModule::Moe];
    // Scores in fp32: softmax or sigmoid, top-k, map, balancing loss; then histograms, offsets and
    // splits of the exchange, all of them small kernels that cost the host more than the device
    // (Megatron-Core's router, `token_dispatcher.py` and `moe_utils.py`, operation by operation).
    let scores = 4.0 * shape.local * moe.experts as f64;
    let kernels = match shape.options.kernels.elementwise {
        Elementwise::Eager | Elementwise::Fused => 75.0,
        Elementwise::Compiled => 25.0,
    };
    let mut router = Op::bytes(modules, (6.0 * scores, kernels), (4.0 * scores, 0.6 * kernels));
    if moe.router.dtype == Dtype::Fp32 {
        // Tokens go to the router's product in fp32, and their gradient comes back from it.
        let cast = Work::stream(Stream::Mixed, 6.0 * shape.local * shape.recipe.hidden as f64, 1.0);
        router.forward.push(cast);
        router.input.push(cast);
    }
    router.scope = Some(GraphModule::MoeRouter);
    ops.push(router);
    // Under a fixed capacity nobody has to know counts (`token_dispatcher.py`: cuda_sync_point is no_sync).
    if shape.options.kernels.graphs.by != GraphsBy::FullIteration && moe.capacity_factor.is_none() {
        let wait = Op {
            block: None,
            scope: None,
            part: Part::Launch,
            modules,
            forward: vec![Work::Sync],
            input: Vec::new(),
            weight: Vec::new(),
        };
        ops.push(wait);
    }
    let hidden = rows(shape) * shape.options.overload * moe.ffn as f64 / shape.layout.etp.get() as f64;
    let modules = &[RecomputeModule::Moe, RecomputeModule::MoeAct];
    if is_fused(shape.options) {
        // The first product's end writes its result for backward and the activation in both orders of 8 bits; backward
        // reads the one again and writes its gradient in 8 bits, and never the activation's (Transformer Engine,
        // `ops/fused/forward_grouped_mlp.py` and `backward_grouped_mlp.py`).
        ops.push(Op::bytes(modules, (2.0 * hidden, 0.0), (6.0 * hidden, 0.0)));
    } else if moe.activation == Activation::Relu2 && shape.options.kernels.relu2_fusion {
        squared(hidden, ops);
    } else {
        activation(shape, moe.activation, hidden, modules, ops);
        weighted(shape, moe.activation, hidden, ops);
        if moe.activation == Activation::SwiGluOai {
            clamped(shape, hidden, ops);
        }
    }
    if moe.bias && !is_fused(shape.options) {
        biased(shape, moe, hidden, ops);
    }
    padded(shape, moe, ops);
    summed(shape, moe, ops);
    if let Some(shared) = &moe.shared {
        let elements = shape.tokens * shared.ffn as f64 / shape.tp;
        let modules = &[RecomputeModule::Moe, RecomputeModule::SharedExperts];
        activation(shape, shared.activation, elements, modules, ops);
    }
}

/// Whether experts' products and what stands between them are one kernel.
pub(crate) fn is_fused(options: &Options) -> bool {
    options.kernels.expert_fusion && options.format == Format::Mxfp8
}

/// Elements of the tokens that experts are handed.
fn width(shape: Shape, moe: &Moe) -> f64 {
    moe.latent.unwrap_or(shape.recipe.hidden) as f64
}

/// Products of 8 and 4 bits want rows in steps: each expert's are copied to padded places and back again
/// (Megatron-Core `moe/experts.py` quantization_padding), unless HybridEP has left room.
fn padded(shape: Shape, moe: &Moe, ops: &mut Vec<Op>) {
    let Kernels { elementwise, dispatch, .. } = shape.options.kernels;
    let is_scaled = shape.options.format != Format::Bf16;
    if !is_scaled || elementwise != Elementwise::Fused || dispatch == Dispatch::HybridEp {
        return;
    }
    let bytes = 2.0 * 2.0 * rows(shape) * shape.options.overload * width(shape, moe);
    let copies = || vec![Work::bytes(2.0 * bytes, 2.0)];
    ops.push(Op::streams(&[RecomputeModule::Moe], copies(), copies()));
}

/// Sums over the ranks that share experts, or over all of them where tokens are gathered, run in the scores'
/// format: fp32 scores have every row cast up before and down behind (Megatron-Core `moe/token_dispatcher.py`,
/// combine_preprocess and token_combine).
fn summed(shape: Shape, moe: &Moe, ops: &mut Vec<Op>) {
    let (layout, kernels) = (shape.layout, shape.options.kernels);
    if moe.router.dtype != Dtype::Fp32 || kernels.elementwise != Elementwise::Fused {
        return;
    }
    let etp = layout.etp.get() as f64;
    let (copies, members) = match kernels.dispatch {
        Dispatch::AllToAll => (moe.top_k as f64, etp),
        Dispatch::AllGather => (1.0, etp * layout.ep.get() as f64),
        Dispatch::DeepEp | Dispatch::HybridEp => return,
    };
    if members <= 1.0 {
        return;
    }
    let part = 6.0 * shape.local * copies * width(shape, moe);
    let up = |bytes| Work::stream(Stream::Mixed, bytes, 1.0);
    let down = |bytes| Work::bytes(bytes, 1.0);
    let (ahead, back) = (vec![up(part * members), down(part)], vec![up(part), down(part * members)]);
    ops.push(Op::streams(&[RecomputeModule::Moe], ahead, back));
}

/// Squared ReLU and the weight of a token in one kernel each way (Megatron-Core
/// `fusions/fused_weighted_squared_relu.py`): read and write; read input and gradient, write gradient, sum along the
/// width on the way. 3.9 TB/s on an H200, at which plain kernels run.
fn squared(elements: f64, ops: &mut Vec<Op>) {
    let modules: &'static [RecomputeModule] = &[RecomputeModule::Moe, RecomputeModule::MoeAct];
    let of = |passes: f64| vec![Work::bytes(passes * 2.0 * elements, 1.0).started(Call::Fused)];
    ops.push(Op::streams(modules, of(2.0), of(3.0)));
}

/// What gpt-oss' unit takes beside the unit itself. Megatron clamps both halves where they lie, packed, and puts them
/// together; backward compares them with their borders once more, one for the gate and two for the other, picks
/// gradients by the answers and puts those together (`fusions/fused_bias_geglu.py`, and torch's `clamp` and `cat`).
/// Elsewhere every operation of transformers' `GptOssExperts` runs by itself, or all in the activation's kernel.
fn clamped(shape: Shape, elements: f64, ops: &mut Vec<Op>) {
    let half = 2.0 * elements;
    let of = |stream, passes: f64, kernels| Work::stream(stream, passes * half, kernels);
    let (forward, backward) = match shape.options.kernels.elementwise {
        Elementwise::Fused => (
            vec![of(Stream::Strided, 4.0, 2.0), of(Stream::Plain, 4.0, 1.0)],
            vec![of(Stream::Strided, 3.0 * 1.5 + 2.0 * 2.5, 5.0), of(Stream::Plain, 1.5 + 4.0, 2.0)],
        ),
        Elementwise::Eager => (
            vec![of(Stream::Strided, 4.0, 2.0), of(Stream::Plain, 7.0, 3.0)],
            vec![of(Stream::Strided, 3.0 * 1.5 + 2.0 * 2.5, 5.0), of(Stream::Plain, 10.0, 5.0)],
        ),
        Elementwise::Compiled => return,
    };
    ops.push(Op::streams(&[RecomputeModule::Moe, RecomputeModule::MoeAct], forward, backward));
}

/// Biases of experts. The first is added by its product, and its gradient is one more read of the product's. The second is
/// multiplied with its tokens' scores and added expert by expert, in the scores' format, put together and cast back; its
/// gradient and the scores' are two more products, each summed (Megatron-Core `moe/experts.py` `_apply_bias`).
fn biased(shape: Shape, moe: &Moe, hidden: f64, ops: &mut Vec<Op>) {
    let experts = (moe.experts / shape.layout.ep.get().max(1)) as f64;
    let rows = rows(shape) * shape.options.overload;
    let elements = rows * width(shape, moe);
    let score = if moe.router.dtype == Dtype::Fp32 { 4.0 } else { 2.0 };
    let first = 2.0 * hidden * if moe.activation.is_gated() { 2.0 } else { 1.0 };
    let modules: &'static [RecomputeModule] = &[RecomputeModule::Moe];
    let of = |stream, bytes: f64, kernels| Work::stream(stream, bytes, kernels);
    let (forward, backward) = if shape.options.kernels.elementwise == Elementwise::Compiled {
        (Vec::new(), vec![of(Stream::Plain, first + 2.0 * elements, 2.0)])
    } else {
        let casts = if score > 2.0 { elements * (score + 2.0) } else { 0.0 };
        (
            vec![
                of(Stream::Mixed, elements * (score + 2.0 + 2.0 * score) + casts, 2.0 * experts + 1.0),
                of(Stream::Plain, elements * 2.0 * score, 1.0),
            ],
            vec![
                of(Stream::Mixed, first + 2.0 * casts, 2.0 * experts + 1.0),
                of(Stream::Plain, elements * (6.0 * score + 4.0), 4.0 * experts + 1.0),
            ],
        )
    };
    ops.push(Op::streams(modules, forward, backward));
}

/// A token's weight for an expert multiplies the expert's activation in fp32, and has a gradient: a sum over
/// the width. Gated activations are compiled together with it, others are not.
fn weighted(shape: Shape, function: Activation, elements: f64, ops: &mut Vec<Op>) {
    if shape.options.kernels.elementwise != Elementwise::Fused {
        return;
    }
    let bytes = 2.0 * elements;
    let modules: &'static [RecomputeModule] = &[RecomputeModule::Moe, RecomputeModule::MoeAct];
    let of = |stream, passes: f64, kernels| Work::stream(stream, passes * bytes, kernels);
    let (forward, backward) = match function.is_gated() {
        true => (Vec::new(), vec![of(Stream::Gated, 3.0, 1.0)]),
        // Each operation by itself, half of them in fp32.
        false => (vec![of(Stream::Mixed, 8.0, 4.0)], vec![of(Stream::Mixed, 16.0, 7.0)]),
    };
    ops.push(Op::streams(modules, forward, backward));
}
