//! Gradients as every ledger books them.

use replay::line::Line;
use replay::tape::{BF16, Tape, Tensor};

/// Multiprocessors of Hopper cards (H100 and H200), among which kernels deal out partial sums.
pub(crate) const MULTIPROCESSORS: u64 = 132;

/// A half-precision gradient of an activation.
pub(crate) fn grad(t: &Tape, elements: u64, name: &'static str) -> Tensor {
    grad_of(t, elements, BF16, name)
}

/// A gradient of an activation, or a temporary of backward.
pub(crate) fn grad_of(t: &Tape, elements: u64, width: u64, name: &'static str) -> Tensor {
    t.tensor(Line::ActivationGradients, elements, width, name)
}

/// The half-precision gradient of a weight; when it dies is the engine's to say.
pub(crate) fn weight_grad(t: &Tape, elements: u64) -> Tensor {
    t.tensor(Line::Gradients, elements, BF16, "weight gradient")
}
