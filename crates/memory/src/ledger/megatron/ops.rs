//! Small operations of torch and Transformer Engine: what each allocates and saves.

use super::params::Param;
use super::rank::Rank;
use crate::line::Line;
use crate::tape::{BF16, FP32, Tape, Tensor};

/// Blocks of threads that each hold a row of partial sums (an H200 has 132 multiprocessors).
pub(super) const MULTIPROCESSORS: u64 = 132;

/// A bf16 gradient of an activation.
pub(super) fn grad(t: &Tape, elements: u64, name: &'static str) -> Tensor {
    grad_of(t, elements, BF16, name)
}

/// A gradient of an activation, or a temporary of backward.
pub(super) fn grad_of(t: &Tape, elements: u64, width: u64, name: &'static str) -> Tensor {
    t.tensor(Line::ActivationGradients, elements, width, name)
}

/// The bf16 gradient of a weight on its way into the gradient buffer.
pub(super) fn weight_grad(t: &Tape, elements: u64) -> Tensor {
    t.tensor(Line::Gradients, elements, BF16, "weight gradient")
}

/// Records an operation whose backward makes one new gradient of the given size.
pub(super) fn makes(c: &Rank, x: &Tensor, out: &Tensor, saved: Vec<Tensor>, elements: u64, width: u64) {
    c.tape.record(vec![x.edge()], &[out], saved, move |t, _, _| vec![Some(grad_of(t, elements, width, "gradient"))]);
}

/// Records an operation whose backward hands the same gradient to every input.
pub(super) fn passes(c: &Rank, inputs: &[&Tensor], out: &Tensor) {
    let count = inputs.len();
    let edges = inputs.iter().map(|x| x.edge()).collect();
    c.tape.record(edges, &[out], Vec::new(), move |_, grads, _| vec![grads[0].clone(); count]);
}

/// Adds the residual (`megatron/core/fusions/fused_bias_dropout.py`, compiled, no dropout): saves
/// nothing.
pub(super) fn add(c: &Rank, x: &Tensor, residual: &Tensor) -> Tensor {
    let out = c.act_of(x.elements(), x.width(), "residual stream");
    passes(c, &[x, residual], &out);
    out
}

/// A contiguous copy of `elements`.
pub(super) fn copy(c: &Rank, x: &Tensor, elements: u64, name: &'static str) -> Tensor {
    let out = c.act_of(elements, x.width(), name);
    passes(c, &[x], &out);
    out
}

/// Partial sums of a norm's weight gradient (`transformer_engine/common/normalization`).
pub(super) fn norm_partials(t: &Tape, width: u64) -> Tensor {
    grad_of(t, MULTIPROCESSORS * width, FP32, "norm partials")
}

/// An RMSNorm of rows of `width`; saves its input and one fp32 a row
/// (`transformer_engine/pytorch/ops/basic/rmsnorm.py`).
pub(super) fn rmsnorm(c: &Rank, x: &Tensor, width: u64, weight: &Param) -> Tensor {
    let elements = x.elements();
    let out = c.act(elements, "norm output");
    let inverse = c.act_of(elements / width, FP32, "norm rsigma");
    let weight_elements = weight.elements;
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], vec![x.clone(), inverse], move |t, _, _saved| {
        let dx = grad(t, elements, "norm input gradient");
        let _partials = norm_partials(t, width);
        vec![Some(dx), Some(weight_grad(t, weight_elements))]
    });
    out
}

/// SwiGLU over packed gate and up; saves its input
/// (`megatron/core/fusions/fused_bias_swiglu.py`).
fn swiglu(c: &Rank, x: &Tensor, elements: u64) -> Tensor {
    let out = c.act(elements, "activation output");
    makes(c, x, &out, vec![x.clone()], 2 * elements, BF16);
    out
}

/// Squared ReLU as torch does it: `relu` saves its result, `pow` its input, which is the same.
pub(super) fn relu2(c: &Rank, x: &Tensor, elements: u64) -> Tensor {
    let relu = c.act(elements, "relu output");
    makes(c, x, &relu, vec![relu.alias()], elements, BF16);
    let out = c.act(elements, "activation output");
    c.tape.record(vec![relu.edge()], &[&out], vec![relu.clone()], move |t, _, _saved| {
        // grad · (2 · x): the factor, its product with two, then the result.
        let factor = grad(t, elements, "pow temporary");
        let _scaled = grad(t, elements, "pow temporary");
        drop(factor);
        vec![Some(grad(t, elements, "pow input gradient"))]
    });
    out
}

/// The function between the projections of a feed-forward block.
pub(super) fn activate(c: &Rank, x: &Tensor, elements: u64, is_gated: bool) -> Tensor {
    if is_gated { swiglu(c, x, elements) } else { relu2(c, x, elements) }
}
