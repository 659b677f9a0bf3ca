//! Experts under Transformer Engine's op fuser (`megatron/core/transformer/moe/experts.py` TEGroupedMLP `_fused_forward`;
//! Transformer Engine 2.16, `transformer_engine/pytorch/ops/fused/forward_grouped_mlp.py` and `backward_grouped_mlp.py`
//! over cuDNN's CuTe kernels): in forward the first product writes its result once for backward and the activation in
//! mxfp8 both ways, in backward the second product's input gradient leaves its kernel as the first one's output gradient
//! in mxfp8 both ways. The activation and its gradient are never there in bf16.
//!
//! Unlike Transformer Engine's modules it keeps no copy of a weight from pass to pass: weights are quantized in every
//! forward, and that forward's copies wait for its backward. Workspaces of cuDNN's kernels, 128 bytes an expert, are
//! left out.
//!
//! Modelled from source; no measured row shows it.

use super::blocks::{MoeParams, rows_in};
use super::fp8::SCALED;
use super::linear::elements_of;
use super::ops::{WeightProduct, grad, grad_of, weight_grad};
use super::options::Fp8Recipe;
use super::params::Param;
use super::rank::Rank;
use replay::line::Line;
use replay::tape::{BF16, BYTE, FP32, Tensor};
use std::rc::Rc;

/// The one format there are kernels for.
const RECIPE: Fp8Recipe = Fp8Recipe::Mxfp8;

/// Rows of what experts are handed and of what they make; elements of both weights of all of them.
#[derive(Clone, Copy)]
struct Sizes {
    rows: u64,
    hidden: u64,
    /// Columns that the first product makes, and that the second reads.
    wide: u64,
    narrow: u64,
    weights: [u64; 2],
}

/// `rows` are padded already.
pub(super) fn forward(c: &Rank, params: &MoeParams, tokens: &Tensor, probs: &Tensor, rows: u64) -> Tensor {
    let feed = c.config.moe().feed;
    let all = |weights: &[Rc<Param>]| weights.iter().map(|weight| weight.elements).sum();
    let weights = [all(&params.fc1), all(&params.fc2)];
    let s = Sizes { rows, hidden: c.config.expert_hidden(), wide: rows_in(feed), narrow: feed.ffn, weights };
    let copies = [&params.fc1, &params.fc2].map(|weights| quantized(c, weights));
    let t = &c.tape;
    let by_rows = RECIPE.one(t, Line::ExpertInputs, rows * s.hidden);
    let columns = if t.records() { RECIPE.one(t, Line::ExpertInputs, rows * s.hidden) } else { Vec::new() };
    // Locals of one function: biases side by side, weights' scales in the kernels' order, scores in bf16 for one kernel
    // and ones for the other.
    let _biases = [&params.fc1_biases, &params.fc2_biases].map(|biases| packed(c, biases));
    let _scores = c.scratch(rows, BF16, "bf16 scores");
    let _swizzled = weights.map(|elements| c.act_of(elements / SCALED, BYTE, "swizzled scales"));
    t.work(2.0 * rows as f64 * (s.hidden * s.wide) as f64);
    let kept = c.act(rows * s.wide, "expert projection output");
    let activated = RECIPE.one(t, Line::Activations, rows * s.narrow);
    let activated_columns = RECIPE.one(t, Line::Activations, rows * s.narrow);
    let _ones = c.scratch(rows, FP32, "ones");
    t.work(2.0 * rows as f64 * (s.hidden * s.narrow) as f64);
    let out = c.act(rows * s.hidden, "expert outputs");
    drop((by_rows, activated));
    let parts = [copies.concat(), columns, activated_columns, vec![kept, probs.clone()]];
    record(c, params, [tokens, probs, &out], parts, s);
    out
}

/// Copies of weights both ways, which come and go with what the pass saves; none of weights that are kept in the format.
fn quantized(c: &Rank, weights: &[Rc<Param>]) -> Vec<Tensor> {
    if c.config.quantized_weights.is_some() {
        return Vec::new();
    }
    let ways = if c.tape.records() { 2 } else { 1 };
    let mut copies = Vec::new();
    for weight in weights {
        (0..ways).for_each(|_| RECIPE.quantized(&c.tape, Line::Activations, weight.elements, &mut copies));
    }
    copies
}

fn packed(c: &Rank, biases: &[Rc<Param>]) -> Option<Tensor> {
    let elements: u64 = elements_of(biases).iter().sum();
    (elements > 0).then(|| c.act(elements, "biases side by side"))
}

/// `parts` are kept for backward: copies of weights, columns of the input, columns of the activation, and the first
/// product's result with the scores.
fn record(c: &Rank, params: &MoeParams, [tokens, probs, out]: [&Tensor; 3], parts: [Vec<Tensor>; 4], s: Sizes) {
    let weights = [&params.fc1, &params.fc1_biases, &params.fc2, &params.fc2_biases];
    let edges =
        [tokens.edge(), probs.edge()].into_iter().chain(weights.iter().flat_map(|p| p.iter().map(|p| p.edge())));
    let [into, back] = [&params.fc1, &params.fc2].map(|weights| WeightProduct::of_all(c, weights));
    let [into_biases, back_biases] = [&params.fc1_biases, &params.fc2_biases].map(|biases| elements_of(biases));
    let (width, lengths) = (probs.width(), [parts[0].len(), parts[1].len(), parts[2].len()]);
    c.tape.record(edges.collect(), &[out], parts.concat(), move |t, _, mut saved| {
        let _rest = saved.split_off(lengths.iter().sum());
        let activated = saved.split_off(lengths[0] + lengths[1]);
        let columns = saved.split_off(lengths[0]);
        let _copies = saved;
        let outputs = RECIPE.both(t, s.rows * s.hidden);
        let _cast = (width != FP32).then(|| grad_of(t, s.rows, FP32, "fp32 scores"));
        let _of_scores = grad_of(t, s.rows, FP32, "probability gradient");
        let _swizzled = s.weights.map(|elements| grad_of(t, elements / SCALED, BYTE, "swizzled scales"));
        t.work(2.0 * s.rows as f64 * (s.hidden * s.narrow) as f64);
        let wide = RECIPE.both(t, s.rows * s.wide);
        let dprobs = grad_of(t, s.rows, width, "probability gradient");
        let bias = |elements: &u64| Some(weight_grad(t, *elements));
        let back_biases: Vec<_> = back_biases.iter().map(bias).collect();
        let into_biases: Vec<_> = into_biases.iter().map(bias).collect();
        let dback = back.grads(t, activated.iter().chain(&outputs).cloned().collect());
        // `clear_tensor_data` of the second product's input.
        drop(activated);
        let _ones = grad_of(t, s.rows, FP32, "ones");
        t.work(2.0 * s.rows as f64 * (s.hidden * (2 * s.wide + s.narrow)) as f64);
        let dx = grad(t, s.rows * s.hidden, "expert input gradient");
        let dinto = into.grads(t, columns.iter().chain(&wide).cloned().collect());
        let of_weights = dinto.into_iter().chain(into_biases).chain(dback).chain(back_biases);
        [Some(dx), Some(dprobs)].into_iter().chain(of_weights).collect()
    });
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::{allocated, on_eight, run};
    use super::super::options::{Dispatcher, MegatronOptions};
    use super::*;
    use layout::LayoutRequest;
    use replay::{PhaseKind, Replay};

    /// 128 experts of 2048 by 768, 16 on each of 8 ranks, over so many stages.
    fn replayed(pp: u64, change: impl FnOnce(&mut MegatronOptions)) -> Replay {
        let ep = 8 / pp;
        let request = LayoutRequest { ep: Some(ep), pp: Some(pp), microbatches: Some(4), ..LayoutRequest::default() };
        let told = |told: &mut MegatronOptions| {
            told.fp8 = Some(RECIPE);
            told.dispatcher = Dispatcher::HybridEp;
            change(told);
        };
        run(&on_eight("qwen3-30b-a3b", request), told).unwrap()
    }

    /// Bytes of both copies of one expert's weights: a byte an element and one for 32 of them, two ways.
    const COPIES: u64 = 3 * 2048 * 768 * 33 / 32 * 2;

    /// Whether bytes are those asked for, and what torch does not split off a block: up to a mebibyte of each copy.
    fn near(held: u64, asked: u64) -> bool {
        held >= asked && held - asked < asked / 8
    }

    /// Modules of Transformer Engine keep copies of weights from step to step, the op fuser those of passes in flight
    /// only. Scores that arrived are of more rows: half of 256 an expert for half of 32.
    #[test]
    fn no_copy_of_a_weight_outlives_its_backward() {
        let after = |replay: &Replay| allocated(replay, PhaseKind::Update(0));
        let (one_by_one, fused) = (replayed(1, |_| {}), replayed(1, |told| told.expert_fusion = true));
        let less = after(&one_by_one) - after(&fused);
        let (experts, scores) = (48 * 16, 48 * 16 * (128 - 16) * 4);
        // Four workspaces of grouped products are not there either.
        let workspaces = 4 * (32 << 20);
        let wanted = experts * COPIES + workspaces - scores;
        assert!(near(less, wanted), "{less} and {wanted}");
    }

    /// Weights that are kept in the format have no copies beside them.
    #[test]
    fn weights_in_the_format_are_read_where_they_lie() {
        let peak = |gathers: bool| {
            let replay = replayed(1, |told| {
                told.expert_fusion = true;
                told.fp8_param_gather = gathers;
            });
            replay.line(Line::Activations)
        };
        let (less, wanted) = (peak(false) - peak(true), 48 * 16 * COPIES);
        assert!(near(less, wanted), "{less} and {wanted}");
    }

    /// Two passes in flight on the first of two stages have copies of their own.
    #[test]
    fn copies_wait_for_their_backward() {
        let peak = |fused: bool| replayed(2, |told| told.expert_fusion = fused).allocated_peak();
        let (more, copies) = (peak(true) - peak(false), 24 * 32 * COPIES);
        // A row kept: its input and its activation in mxfp8, the first product's result, its score.
        let row = (2048 + 768) * 33 / 32 + 2 * 768 * 2 + 4;
        let padding = 2 * 24 * 32 * (128 - 16) * row;
        let wanted = copies + padding;
        assert!(near(more, wanted), "{more} and {wanted}");
    }
}
