//! Transformer Engine's fp8 on Hopper, whose products read rows only: what is needed by columns
//! has a transposed copy (`transformer_engine/pytorch/csrc/quantizer.cpp`).
//!
//! Modelled from source; no measured row shows it.

use super::options::Fp8Recipe;
use super::params::Param;
use super::rank::Rank;
use crate::line::Line;
use crate::tape::{BYTE, FP32, Tape, Tensor};

impl Fp8Recipe {
    /// Whether a gathered operand is gathered by rows and transposed afterwards.
    pub(super) fn gathers_rows(self) -> bool {
        self != Fp8Recipe::Blockwise
    }

    /// Whether some modules keep their bf16 input instead of its fp8 copy (`attention.py`,
    /// `shared_experts.py`: `set_save_original_input`).
    pub(super) fn may_save_original(self) -> bool {
        self != Fp8Recipe::Delayed
    }

    /// One orientation of a tensor: data and scales.
    pub(super) fn quantized(self, t: &Tape, line: Line, elements: u64, out: &mut Vec<Tensor>) {
        let scales = if self == Fp8Recipe::Blockwise { elements / 128 } else { 1 };
        out.push(t.tensor(line, elements, BYTE, "fp8 copy"));
        out.push(t.tensor(line, scales, FP32, "fp8 scales"));
    }

    /// Both orientations of a gradient.
    pub(super) fn both(self, t: &Tape, elements: u64) -> Vec<Tensor> {
        let mut out = Vec::new();
        self.quantized(t, Line::ActivationGradients, elements, &mut out);
        self.quantized(t, Line::ActivationGradients, elements, &mut out);
        out
    }

    /// One orientation of a tensor of the forward pass.
    pub(super) fn one(self, t: &Tape, line: Line, elements: u64) -> Vec<Tensor> {
        let mut out = Vec::new();
        self.quantized(t, line, elements, &mut out);
        out
    }
}

/// A weight's row and column copies, kept from the first forward on
/// (`transformer_engine/pytorch/module/base.py` get_weight_workspace).
pub(super) fn keep_weight(c: &Rank, weight: &Param) {
    let mut copies = weight.fp8.borrow_mut();
    while copies.len() < 2 {
        copies.push(c.tape.storage(Line::Workspaces, weight.elements, "fp8 weight"));
    }
}
