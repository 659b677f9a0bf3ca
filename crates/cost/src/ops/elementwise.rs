//! Norms, residual sums and activations: bytes over bandwidth. Passes over memory are counted
//! from what each kernel reads and writes.

use super::{Op, Shape};
use case::options::Elementwise;
use layout::request::RecomputeModule;
use recipe::kinds::Activation;

/// Bytes of an activation.
const ACTIVATION: f64 = 2.0;

/// Passes over a tensor and kernels, forward and backward.
struct Passes {
    forward: (f64, f64),
    backward: (f64, f64),
}

/// The norm before a block and the sum behind it.
pub(super) fn around_block(shape: Shape, ops: &mut Vec<Op>) {
    let bytes = shape.local * shape.recipe.hidden as f64 * ACTIVATION;
    let norm = match shape.options.kernels.elementwise {
        // Upcast, square, mean, scale, cast: each its own kernel, partly in fp32.
        Elementwise::Eager => Passes { forward: (8.0, 5.0), backward: (12.0, 8.0) },
        // Read and write; read input and gradient, write gradient.
        Elementwise::Fused => Passes { forward: (2.0, 1.0), backward: (3.0, 2.0) },
        // The sum before it is part of the same kernel.
        Elementwise::Compiled => Passes { forward: (2.0, 1.0), backward: (3.0, 1.0) },
    };
    push(bytes, norm, &[RecomputeModule::Layernorm], ops);
    let sum = match shape.options.kernels.elementwise {
        Elementwise::Eager | Elementwise::Fused => Passes { forward: (3.0, 1.0), backward: (3.0, 1.0) },
        Elementwise::Compiled => Passes { forward: (2.0, 0.0), backward: (2.0, 0.0) },
    };
    push(bytes, sum, &[], ops);
}

/// The activation of a dense feed-forward block.
pub(super) fn mlp(shape: Shape, ops: &mut Vec<Op>) {
    if let Some(mlp) = &shape.recipe.mlp {
        let elements = shape.tokens * mlp.ffn as f64 / shape.tp;
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
    let passes = match (function.is_gated(), eager) {
        (true, true) => Passes { forward: (5.0, 2.0), backward: (9.0, 4.0) },
        (true, false) => Passes { forward: (3.0, 1.0), backward: (5.0, 1.0) },
        (false, true) => Passes { forward: (3.0, 2.0), backward: (5.0, 3.0) },
        (false, false) => Passes { forward: (2.0, 1.0), backward: (3.0, 1.0) },
    };
    push(elements * ACTIVATION, passes, modules, ops);
}

fn push(bytes: f64, passes: Passes, modules: &'static [RecomputeModule], ops: &mut Vec<Op>) {
    let scaled = |(times, kernels): (f64, f64)| (times * bytes, kernels);
    ops.push(Op::bytes(modules, scaled(passes.forward), scaled(passes.backward)));
}
