//! Transformer Engine's fp8. Hopper's products read rows only: what is needed by columns has a
//! transposed copy (`transformer_engine/pytorch/csrc/quantizer.cpp`). MXFP8 and NVFP4, which need
//! Blackwell, scale rows and columns apart and so have two copies too
//! (`transformer_engine/pytorch/tensor/mxfp8_tensor.py`, `nvfp4_tensor.py`). Their workspaces are
//! counted as Hopper's, and swizzled scales are not counted.
//!
//! Modelled from source; no measured row shows it.

use super::options::Fp8Recipe;
use super::params::Param;
use super::rank::Rank;
use replay::line::Line;
use replay::tape::{BYTE, FP32, Storage, Tape, Tensor};
use std::rc::Rc;

/// Elements that share a scale of MXFP8.
pub(super) const SCALED: u64 = 32;

impl Fp8Recipe {
    /// Whether a gathered operand is gathered by rows and transposed afterwards
    /// (`transformer_engine/pytorch/tensor/float8_tensor.py` supports_only_rowwise_all_gather).
    pub(super) fn gathers_rows(self) -> bool {
        matches!(self, Fp8Recipe::Delayed | Fp8Recipe::Tensorwise)
    }

    /// Whether a norm's output that is gathered stays by rows too: `layernorm_linear.py` drops its
    /// rows for MXFP8 and blockwise tensors only, `linear.py` for all.
    pub(super) fn keeps_gathered_rows(self) -> bool {
        self == Fp8Recipe::Nvfp4
    }

    /// Whether some modules keep their bf16 input instead of its fp8 copy (`attention.py`,
    /// `shared_experts.py`: `set_save_original_input`).
    pub(super) fn may_save_original(self) -> bool {
        self != Fp8Recipe::Delayed
    }

    /// What an expert's rows are padded to (`megatron/core/fp8_utils.py` get_fp8_align_size,
    /// `fp4_utils.py` get_fp4_align_size).
    pub(super) fn row_step(self) -> u64 {
        match self {
            Fp8Recipe::Delayed | Fp8Recipe::Tensorwise | Fp8Recipe::Blockwise => 16,
            Fp8Recipe::Mxfp8 => 32,
            Fp8Recipe::Nvfp4 => 128,
        }
    }

    /// Bytes of one orientation's data: fp4 packs two elements.
    pub(super) fn data(self, elements: u64) -> u64 {
        if self == Fp8Recipe::Nvfp4 { elements.div_ceil(2) } else { elements }
    }

    /// Bytes of one orientation's scales (`tensor/mxfp8_tensor.py`, `tensor/nvfp4_tensor.py`
    /// get_scale_shape), without the padding of small tensors to tiles of 128 by 4.
    fn scales(self, elements: u64) -> u64 {
        match self {
            Fp8Recipe::Delayed | Fp8Recipe::Tensorwise => FP32,
            Fp8Recipe::Blockwise => elements / 128 * FP32,
            Fp8Recipe::Mxfp8 => elements.div_ceil(SCALED),
            Fp8Recipe::Nvfp4 => elements.div_ceil(16),
        }
    }

    /// One orientation of a tensor: data and scales, and for NVFP4 the amax.
    pub(super) fn quantized(self, t: &Tape, line: Line, elements: u64, out: &mut Vec<Tensor>) {
        out.push(t.tensor(line, self.data(elements), BYTE, "fp8 copy"));
        out.push(t.tensor(line, self.scales(elements), BYTE, "fp8 scales"));
        if self == Fp8Recipe::Nvfp4 {
            out.push(t.tensor(line, 1, FP32, "fp4 amax"));
        }
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
/// (`transformer_engine/pytorch/module/base.py` get_weight_workspace). A weight's per-tensor and
/// 128 by 128 scales are too few to count.
pub(super) fn keep_weight(c: &Rank, weight: &Param, recipe: Fp8Recipe) {
    let mut copies = weight.fp8.borrow_mut();
    if copies.is_empty() {
        for _ in 0..2 {
            copies.push(c.tape.storage(Line::Workspaces, recipe.data(weight.elements), "fp8 weight"));
            copies.extend(weight_scales(c, weight, recipe));
        }
    }
}

/// A weight kept in the recipe's format alone (`megatron/core/fp8_utils.py` fp8_model_init with
/// preserve_high_precision_init_val; `transformer_engine/pytorch/module/base.py`
/// reset_parameters): built in bf16, copied to the host for the optimizer, then quantized both
/// ways. Rows are the weight, on its own line; columns and scales stand beside it, and no product
/// keeps another copy. Returns the rows.
pub(super) fn quantize_weight(c: &Rank, weight: &Param, recipe: Fp8Recipe) -> Rc<Storage> {
    let bytes = recipe.data(weight.elements);
    let rows = c.tape.storage(weight.line, bytes, "weight");
    let mut beside = weight.fp8.borrow_mut();
    beside.extend(weight_scales(c, weight, recipe));
    beside.push(c.tape.storage(Line::Workspaces, bytes, "fp8 weight columns"));
    beside.extend(weight_scales(c, weight, recipe));
    rows
}

/// The scales of one orientation of a weight.
fn weight_scales(c: &Rank, weight: &Param, recipe: Fp8Recipe) -> Option<Rc<Storage>> {
    let has_many = matches!(recipe, Fp8Recipe::Mxfp8 | Fp8Recipe::Nvfp4);
    has_many.then(|| c.tape.storage(Line::Workspaces, recipe.scales(weight.elements), "fp8 weight scales"))
}
