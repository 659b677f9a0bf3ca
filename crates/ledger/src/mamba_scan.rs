//! The chunked scan's tensors, kernel by kernel (`mamba_ssm/ops/triton/ssd_combined.py`,
//! `ssd_chunk_state.py`, `ssd_state_passing.py`, `ssd_bmm.py`, `ssd_chunk_scan.py`).

use super::grads::{MULTIPROCESSORS, grad, grad_of};
use recipe::kinds::mamba2::Mamba2;
use replay::line::Line;
use replay::tape::{BF16, FP32, Tape, Tensor};

/// Sizes of the mixer on one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct MambaSizes {
    pub heads: u64,
    pub state: u64,
    pub groups: u64,
    /// Width between the projections.
    pub inner: u64,
    /// Channels of the convolution.
    pub conv: u64,
    /// Width of the packed projection: z x B C dt.
    pub width: u64,
}

impl MambaSizes {
    /// Heads and groups go to tensor-parallel ranks whole; a rank has at least one group.
    pub fn of(mamba: &Mamba2, tp: u64) -> MambaSizes {
        let (heads, groups) = (mamba.heads / tp, (mamba.groups / tp).max(1));
        let inner = heads * mamba.head_dim;
        let shared = 2 * groups * mamba.state;
        MambaSizes { heads, state: mamba.state, groups, inner, conv: inner + shared, width: 2 * inner + shared + heads }
    }
}

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
    /// The scan of `batch` sequences of `sequence` tokens each on one rank of `tp`.
    pub fn of(mamba: &Mamba2, tp: u64, batch: u64, sequence: u64) -> Scan {
        let (sizes, tokens, chunk) = (MambaSizes::of(mamba, tp), batch * sequence, mamba.chunk);
        let chunks = sequence.div_ceil(chunk);
        let heads_of_group = sizes.heads / sizes.groups;
        // Heads of a group that one program takes, so that all multiprocessors have work.
        let per_program = (batch * chunks * sizes.heads).div_ceil(MULTIPROCESSORS).clamp(1, heads_of_group);
        Scan {
            tokens,
            heads: sizes.heads,
            inner: sizes.inner,
            conv: sizes.conv,
            taps: mamba.conv,
            width: sizes.width,
            steps: batch * sizes.heads * chunks * chunk,
            states: batch * chunks * sizes.inner * sizes.state,
            final_states: batch * sizes.inner * sizes.state,
            products: batch * chunks * sizes.groups * chunk * chunk,
            shared: tokens * sizes.groups * sizes.state,
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
pub(super) fn forward(t: &Tape, s: Scan) -> (Tensor, Tensor) {
    let made = |elements, width, name| t.tensor(Line::Activations, elements, width, name);
    let fp32 = |elements, name| made(elements, FP32, name);
    let bf16 = |elements, name| made(elements, BF16, name);
    let _conv = s.convolved(t, Line::Activations);
    let _decays = (fp32(s.steps, "scan decays"), fp32(s.steps, "scan steps"));
    let states = fp32(s.states, "chunk states");
    let _passed = bf16(s.states, "passed states");
    let _final = fp32(s.final_states, "final states");
    drop(states);
    let _products = fp32(s.products, "chunk products");
    let out = bf16(s.tokens * s.inner, "scan output");
    let ungated = bf16(s.tokens * s.inner, "scan output before gate");
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

/// The scan over parts that lie apart (`MambaChunkScanCombinedFn`): its output, and what it keeps of its own: the output,
/// before the gate where it is gated here, and the decays.
pub(super) fn forward_apart(t: &Tape, s: Scan, is_gated: bool) -> (Tensor, Vec<Tensor>) {
    let made = |elements, width, name| t.tensor(Line::Activations, elements, width, name);
    let fp32 = |elements, name| made(elements, FP32, name);
    let bf16 = |elements, name| made(elements, BF16, name);
    let (decays, _steps) = (fp32(s.steps, "scan decays"), fp32(s.steps, "scan steps"));
    let states = fp32(s.states, "chunk states");
    let _passed = bf16(s.states, "passed states");
    let _final = fp32(s.final_states, "final states");
    drop(states);
    let _products = fp32(s.products, "chunk products");
    let out = bf16(s.tokens * s.inner, "scan output");
    let ungated = is_gated.then(|| bf16(s.tokens * s.inner, "scan output before gate"));
    let kept = vec![decays, ungated.unwrap_or_else(|| out.alias())];
    (out, kept)
}

/// Its backward pass but for the gradients that it returns.
pub(super) fn backward_apart(t: &Tape, s: Scan) {
    chunks_backward(t, s);
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
