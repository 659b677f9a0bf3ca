//! The chunked scan's tensors, kernel by kernel (`mamba_ssm/ops/triton/ssd_combined.py`,
//! `ssd_chunk_state.py`, `ssd_state_passing.py`, `ssd_bmm.py`, `ssd_chunk_scan.py`).

use super::ops::{grad, grad_of};
use super::params::MambaSizes;
use super::rank::Rank;
use crate::line::Line;
use crate::tape::{BF16, FP32, Tape, Tensor};

/// Multiprocessors of an H200, among which programs are dealt out.
pub(super) const MULTIPROCESSORS: u64 = 132;

/// Sizes of one scan, in elements.
#[derive(Clone, Copy)]
pub(super) struct Scan {
    tokens: u64,
    heads: u64,
    inner: u64,
    conv: u64,
    taps: u64,
    width: u64,
    /// One value a head and position, chunks padded.
    steps: u64,
    /// States at chunk borders.
    states: u64,
    final_states: u64,
    /// C·B products inside chunks.
    products: u64,
    /// B or C.
    shared: u64,
    /// Parts that gradients of B, C and their products are summed from.
    splits: u64,
    /// Whether the projection's row is no multiple of 16 bytes, so that slices are copied
    /// (`ensure_stride`).
    is_strided: bool,
}

impl Scan {
    pub fn of(c: &Rank) -> Scan {
        let (config, sizes) = (&c.config, MambaSizes::of(&c.config));
        let (batch, chunk) = (config.micro_batch, config.mamba().chunk);
        let chunks = config.sequence.div_ceil(chunk);
        let heads_of_group = sizes.heads / sizes.groups;
        // Heads of a group that one program takes, so that all multiprocessors have work.
        let per_program = (batch * chunks * sizes.heads).div_ceil(MULTIPROCESSORS).clamp(1, heads_of_group);
        Scan {
            tokens: config.tokens,
            heads: sizes.heads,
            inner: sizes.inner,
            conv: sizes.conv,
            taps: config.mamba().conv,
            width: sizes.width,
            steps: batch * sizes.heads * chunks * chunk,
            states: batch * chunks * sizes.inner * sizes.state,
            final_states: batch * sizes.inner * sizes.state,
            products: batch * chunks * sizes.groups * chunk * chunk,
            shared: config.tokens * sizes.groups * sizes.state,
            splits: heads_of_group.div_ceil(per_program),
            is_strided: !sizes.width.is_multiple_of(8),
        }
    }

    /// The convolution over a slice of the projection, which is copied first when strided.
    fn convolved(&self, t: &Tape, line: Line) -> Tensor {
        let copied = self.is_strided.then(|| t.tensor(line, self.tokens * self.conv, BF16, "conv input"));
        let out = t.tensor(line, self.tokens * self.conv, BF16, "conv output");
        drop(copied);
        out
    }
}

/// The gated output, and the output before its gate, which backward needs.
pub(super) fn forward(c: &Rank, s: Scan) -> (Tensor, Tensor) {
    let fp32 = |elements, name| c.act_of(elements, FP32, name);
    let _conv = s.convolved(&c.tape, Line::Activations);
    let _decays = (fp32(s.steps, "scan decays"), fp32(s.steps, "scan steps"));
    let states = fp32(s.states, "chunk states");
    let _passed = c.act(s.states, "passed states");
    let _final = fp32(s.final_states, "final states");
    drop(states);
    let _products = fp32(s.products, "chunk products");
    let out = c.act(s.tokens * s.inner, "scan output");
    let ungated = c.act(s.tokens * s.inner, "scan output before gate");
    (out, ungated)
}

/// Backward: forward's tensors once more, then gradients kernel by kernel. Returns the gradient
/// of the packed projection.
pub(super) fn backward(t: &Tape, s: Scan) -> Tensor {
    let _conv = s.convolved(t, Line::ActivationGradients);
    let packed = grad(t, s.tokens * s.width, "packed projection gradient");
    let _slices = grad(t, s.tokens * s.conv, "conv output gradient");
    chunks_backward(t, s);
    let strided = |name| s.is_strided.then(|| grad(t, s.tokens * s.conv, name));
    let _copies = (strided("conv gradient copy"), strided("conv input gradient"));
    let _weights = (grad_of(t, s.conv * s.taps, FP32, "conv gradient"), grad_of(t, s.conv, FP32, "conv gradient"));
    packed
}

/// `_mamba_chunk_scan_combined_bwd`. Everything is a local of it until it returns, unless it is
/// assigned anew.
fn chunks_backward(t: &Tape, s: Scan) {
    let fp32 = |elements, name| grad_of(t, elements, FP32, name);
    let step = |name| fp32(s.steps, name);
    let _raw_steps = grad(t, s.tokens * s.heads, "step inputs");
    let _decays = (step("scan decays"), step("scan steps"));
    let _products = fp32(s.products, "chunk products");
    let states = fp32(s.states, "chunk states");
    let passed = fp32(s.states, "passed states");
    drop(fp32(s.final_states, "final states"));
    drop(states);
    let _output = grad(t, s.tokens * s.inner, "scan output gradient");
    let state_grads = fp32(s.states, "state gradients");
    let _passed_grads = grad(t, s.states, "passed state gradients");
    let _cast = grad(t, s.states, "states in bf16");
    drop((state_grads, passed));
    let _step_grads = step("step gradients");
    let _decay_grads = step("decay gradients");
    let _b = summed(t, s.shared, s.splits, "B gradient");
    let _more_decay_grads = step("decay gradients");
    let _c = summed(t, s.shared, s.splits, "C gradient");
    let _product_grads = summed(t, s.products, s.splits, "product gradients");
    let (first, second) = (step("decay gradients"), step("decay gradients"));
    drop(first);
    let _previous = step("decay gradients");
    drop(second);
    let _partials = fp32(s.steps * 4, "decay partials");
    let _decays_total = step("decay gradients");
}

/// Partial sums of each split, then their total; the parts die with it.
fn summed(t: &Tape, elements: u64, splits: u64, name: &'static str) -> Tensor {
    let parts = grad_of(t, elements * splits, FP32, name);
    let total = grad_of(t, elements, FP32, name);
    drop(parts);
    total
}
