//! Small operations: what each allocates and saves. The gradient of a weight stays on its parameter
//! until the microbatch's backward has ended (`optim/gradient_accumulator.py`
//! FP32GradientAccumulator.backward).

use crate::grads::MULTIPROCESSORS;
pub(super) use crate::grads::{grad, grad_of, weight_grad};

use super::rank::Rank;
use replay::tape::{FP32, Tensor};

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
