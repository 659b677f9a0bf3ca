//! Small operations: what each allocates and saves.

use super::rank::Rank;
use crate::line::Line;
use crate::tape::{BF16, FP32, Tape, Tensor};

/// Blocks of threads that each hold a row of partial sums (an H100 has 132 multiprocessors).
const MULTIPROCESSORS: u64 = 132;

/// A bf16 gradient of an activation.
pub(super) fn grad(t: &Tape, elements: u64, name: &'static str) -> Tensor {
    grad_of(t, elements, BF16, name)
}

/// A gradient of an activation, or a temporary of backward.
pub(super) fn grad_of(t: &Tape, elements: u64, width: u64, name: &'static str) -> Tensor {
    t.tensor(Line::ActivationGradients, elements, width, name)
}

/// The bf16 gradient of a weight; it stays on its parameter until the microbatch's backward has
/// ended (`optim/gradient_accumulator.py` FP32GradientAccumulator.backward).
pub(super) fn weight_grad(t: &Tape, elements: u64) -> Tensor {
    t.tensor(Line::Gradients, elements, BF16, "weight gradient")
}

/// Records an operation whose backward makes one new bf16 gradient.
pub(super) fn makes(c: &Rank, x: &Tensor, out: &[&Tensor], saved: Vec<Tensor>, elements: u64) {
    c.tape.record(vec![x.edge()], out, saved, move |t, _, _saved| vec![Some(grad(t, elements, "gradient"))]);
}

/// A copy whose backward hands the gradient on.
pub(super) fn copy(c: &Rank, x: &Tensor, elements: u64, name: &'static str) -> Tensor {
    let out = c.act(elements, name);
    c.tape.record(vec![x.edge()], &[&out], Vec::new(), |_, mut grads, _| vec![grads.pop().flatten()]);
    out
}

/// Adds the residual; saves nothing, and both inputs get the same gradient.
pub(super) fn add(c: &Rank, x: &Tensor, residual: &Tensor) -> Tensor {
    let out = c.act(x.elements(), "residual stream");
    c.tape.record(vec![x.edge(), residual.edge()], &[&out], Vec::new(), |_, grads, _| vec![grads[0].clone(); 2]);
    out
}

/// An RMSNorm over the hidden width (`nn/layer_norm.py` TritonRMSNorm, `flash_attn`'s
/// `ops/triton/layer_norm.py`): saves its input and one fp32 a row; backward sums the weight's
/// gradient in fp32 rows, one a multiprocessor.
pub(super) fn rmsnorm(c: &Rank, x: &Tensor, weight: &Tensor) -> Tensor {
    let (elements, hidden) = (x.elements(), c.config.hidden);
    let out = c.act(elements, "norm output");
    let inverse = c.act_of(elements / hidden, FP32, "norm rsigma");
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], vec![x.clone(), inverse], move |t, _, _saved| {
        let dx = grad(t, elements, "norm input gradient");
        let _partials = grad_of(t, MULTIPROCESSORS * hidden, FP32, "norm partials");
        vec![Some(dx), Some(weight_grad(t, hidden))]
    });
    out
}
