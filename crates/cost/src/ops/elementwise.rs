//! Norms, residual sums and activations: bytes over bandwidth. Passes over memory are counted
//! from what each kernel reads and writes.

use super::{Call, Op, Shape, Stream, Work};
use case::options::Elementwise;
use layout::request::RecomputeModule;
use recipe::kinds::{Activation, NormPlace};

/// Bytes of an activation.
const ACTIVATION: f64 = 2.0;

/// Widths that Transformer Engine has norms tuned for (`common/normalization`, the tuned launchers; widths
/// that ran general kernels in profiles of its trainer: 128, 3584, 7168).
const TUNED: [u64; 8] = [512, 768, 1024, 1536, 2048, 4096, 8192, 12288];

/// How a norm over a width reads and writes.
fn normed(width: u64) -> Stream {
    if TUNED.contains(&width) { Stream::Plain } else { Stream::Normed }
}

/// A norm over `elements` of rows of a width: read and write; read input and gradient, write gradient.
pub(super) fn norm(shape: Shape, elements: f64, width: u64, modules: &'static [RecomputeModule], ops: &mut Vec<Op>) {
    let bytes = elements * ACTIVATION;
    let fused =
        |passes: f64, kernels: f64| vec![Work::stream(normed(width), passes * bytes, kernels).started(Call::Norm)];
    let (forward, backward) = match shape.options.kernels.elementwise {
        // Upcast, square, mean, scale, cast: each its own kernel, partly in fp32.
        Elementwise::Eager => (vec![Work::bytes(8.0 * bytes, 5.0)], vec![Work::bytes(12.0 * bytes, 8.0)]),
        Elementwise::Fused => (fused(2.0, 1.0), fused(3.0, 2.0)),
        // The sum before it is part of the same kernel.
        Elementwise::Compiled => (vec![Work::bytes(2.0 * bytes, 1.0)], vec![Work::bytes(3.0 * bytes, 1.0)]),
    };
    ops.push(Op::streams(modules, forward, backward));
}

/// The norms before and behind a block, and what is dropped of it.
pub(super) fn norms(shape: Shape, ops: &mut Vec<Op>) {
    let elements = shape.local * shape.recipe.hidden as f64;
    let norms = if shape.recipe.norm_place == NormPlace::Both { 2 } else { 1 };
    for _ in 0..norms {
        norm(shape, elements, shape.recipe.hidden, &[RecomputeModule::Layernorm], ops);
    }
    if shape.recipe.dropout > 0.0 {
        let (bytes, call) = (elements * ACTIVATION, by(shape));
        // Input, output and a mask of one byte an element; backward reads the mask and the gradient.
        let masked = |kernels: f64| vec![Work::bytes(2.5 * bytes, kernels).started(call)];
        ops.push(Op::streams(&[], masked(1.0), masked(1.0)));
    }
}

/// What a block gives, added to the residual stream.
pub(super) fn sum(shape: Shape, ops: &mut Vec<Op>) {
    let (bytes, call) = (shape.local * shape.recipe.hidden as f64 * ACTIVATION, by(shape));
    let (forward, backward) = match shape.options.kernels.elementwise {
        Elementwise::Eager | Elementwise::Fused => ((3.0, 1.0), (3.0, 1.0)),
        Elementwise::Compiled => ((2.0, 0.0), (2.0, 0.0)),
    };
    let work = |(passes, kernels): (f64, f64)| vec![Work::bytes(passes * bytes, kernels).started(call)];
    ops.push(Op::streams(&[], work(forward), work(backward)));
}

/// How functions that an engine fuses by hand are started.
fn by(shape: Shape) -> Call {
    if shape.options.kernels.elementwise == Elementwise::Fused { Call::Fused } else { Call::Eager }
}

/// The activation of a dense feed-forward block.
pub(super) fn mlp(shape: Shape, ops: &mut Vec<Op>) {
    if let Some(mlp) = &shape.recipe.mlp {
        let elements = shape.tokens * mlp.ffn as f64 / shape.tp;
        if mlp.shift {
            // The difference to the token before, and the input plus its share of it.
            let bytes = shape.tokens * shape.recipe.hidden as f64 * ACTIVATION;
            ops.push(Op::bytes(&[], (5.0 * bytes, 2.0), (8.0 * bytes, 4.0)));
        }
        activation(shape, mlp.activation, elements, &[RecomputeModule::Mlp], ops);
    }
}

/// The function between two projections, over `elements` of its result.
pub(super) fn activation(
    shape: Shape,
    function: Activation,
    elements: f64,
    modules: &'static [RecomputeModule],
    ops: &mut Vec<Op>,
) {
    let eager = shape.options.kernels.elementwise == Elementwise::Eager;
    let (forward, backward) = match (function.is_gated(), eager) {
        (true, true) => ((5.0, 2.0), (9.0, 4.0)),
        (true, false) => ((3.0, 1.0), (5.0, 1.0)),
        (false, true) => ((3.0, 2.0), (5.0, 3.0)),
        (false, false) => ((2.0, 1.0), (3.0, 1.0)),
    };
    let stream = if function.is_gated() && !eager { Stream::Gated } else { Stream::Plain };
    let bytes = elements * ACTIVATION;
    let work =
        |(passes, kernels): (f64, f64), stream| vec![Work::stream(stream, passes * bytes, kernels).started(by(shape))];
    ops.push(Op::streams(modules, work(forward, Stream::Plain), work(backward, stream)));
}
