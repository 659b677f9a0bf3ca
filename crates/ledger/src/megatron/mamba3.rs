//! Mamba-3 as its authors' module runs it behind Megatron's `M` symbol, on one rank a replica
//! (`mamba_ssm/modules/mamba3.py`; `mamba_ssm/ops/triton/mamba3/mamba3_siso_combined.py` for one
//! input a head, `mamba_ssm/ops/tilelang/mamba3/mamba3_mimo.py` for several; the wrapper with its
//! norm is DatasunriseOU/cppmega, `cppmega/megatron/author_mamba3_spec.py`). No measured row shows
//! it. Per-token scalars of a head are counted in fp32.

use super::blocks::Mamba3Params;
use super::ops::{grad, grad_of, norm, weight_grad};
use super::plain::{linear, transposed};
use super::rank::Rank;
use recipe::kinds::mamba3::Mamba3;
use replay::line::Line;
use replay::tape::{BF16, FP32, Tape, Tensor};

/// Sizes of one mixer over a microbatch, in elements.
#[derive(Clone, Copy)]
struct Sizes {
    /// Width of the packed projection: z x B C dt A trap angle.
    width: u64,
    /// The packed projection.
    packed: u64,
    /// z, x or the output.
    inner: u64,
    /// B or C, by group.
    grouped: u64,
    /// B or C, by head.
    by_head: u64,
    /// One value a head and token.
    steps: u64,
    /// Angles of every head and token.
    angles: u64,
    /// States at chunk borders.
    states: u64,
    /// Products inside chunks.
    segments: u64,
    /// Products of a token's own inputs and outputs.
    own: u64,
    is_mimo: bool,
}

/// Rows of the packed projection.
pub(super) fn width(mamba: &Mamba3) -> u64 {
    2 * mamba.inner() + 2 * mamba.groups * mamba.state * mamba.mimo_rank + 3 * mamba.heads + mamba.angles
}

impl Sizes {
    fn of(c: &Rank, mamba: &Mamba3) -> Sizes {
        let tokens = c.config.tokens;
        let chunks = c.config.micro_batch * c.config.sequence.div_ceil(mamba.chunk);
        Sizes {
            width: width(mamba),
            packed: tokens * width(mamba),
            inner: tokens * mamba.inner(),
            grouped: tokens * mamba.groups * mamba.state * mamba.mimo_rank,
            by_head: tokens * mamba.heads * mamba.state * mamba.mimo_rank,
            steps: tokens * mamba.heads,
            angles: tokens * mamba.heads * mamba.angles,
            states: chunks * mamba.inner() * mamba.state,
            segments: chunks * mamba.heads * mamba.chunk * mamba.chunk,
            own: tokens * mamba.heads * mamba.mimo_rank * mamba.mimo_rank,
            is_mimo: mamba.mimo_rank > 1,
        }
    }
}

pub(super) fn forward(c: &Rank, params: &Mamba3Params, x: &Tensor) -> Tensor {
    let (config, mamba) = (&c.config, &params.mixer);
    let sizes = Sizes::of(c, mamba);
    let normed = transposed(c, norm(c, x, config.hidden, &params.norm), "norm output");
    let packed = linear(c, &normed, (config.hidden, sizes.width), &params.in_proj);
    drop(normed);
    let y = scan(c, params, packed, sizes);
    let out = linear(c, &y, (mamba.inner(), config.hidden), &params.out_proj);
    drop(y);
    transposed(c, out, "mixer output")
}

/// Norms of B and C, steps and angles, and the scan.
fn scan(c: &Rank, params: &Mamba3Params, packed: Tensor, s: Sizes) -> Tensor {
    let mut saved = prepared(c, s);
    let out = if s.is_mimo { mimo_forward(c, s, &mut saved) } else { siso_forward(c, s, &packed, &mut saved) };
    let edges = [packed.edge()].into_iter().chain(params.small.iter().map(|p| p.edge())).collect();
    let elements: Vec<u64> = params.small.iter().map(|p| p.elements).collect();
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
        if s.is_mimo {
            mimo_backward(t, s);
        } else {
            siso_backward(t, s);
        }
        // The split's backward puts the segments' gradients side by side.
        let packed = grad(t, s.packed, "packed projection gradient");
        let small = elements.iter().map(|&elements| Some(weight_grad(t, elements)));
        [Some(packed)].into_iter().chain(small).collect()
    });
    out
}

/// What both kernels are given and keep: B and C before and after their norms, decay and step with
/// the factors of their own graph, and fp32 angles of every head.
fn prepared(c: &Rank, s: Sizes) -> Vec<Tensor> {
    let fp32 = |elements, name| c.act_of(elements, FP32, name);
    let mut saved = Vec::new();
    for _ in 0..2 {
        saved.push(c.act(s.grouped, "B or C rows"));
        saved.push(c.act(s.grouped, "B or C normed"));
    }
    // Decay: its cast, two clamps and a reciprocal; step: its input, itself; and their product.
    saved.extend((0..7).map(|_| fp32(s.steps, "decay and step factors")));
    saved.push(fp32(s.angles, "angles"));
    saved.push(fp32(s.angles, "summed angles"));
    saved
}

/// One input a head: z and x stay slices of the packed projection, and states, rotated B and C and
/// the output before its gate are kept.
fn siso_forward(c: &Rank, s: Sizes, packed: &Tensor, saved: &mut Vec<Tensor>) -> Tensor {
    let out = c.act(s.inner, "scan output");
    let kept = [
        packed.clone(),
        c.act(s.states, "chunk states"),
        c.act_of(s.steps, FP32, "summed decays"),
        c.act(s.inner, "scan output before gate"),
        c.act(s.by_head, "rotated C"),
        c.act(s.by_head, "rotated B"),
        c.act_of(3 * s.steps, FP32, "scan factors"),
        out.alias(),
    ];
    saved.extend(kept);
    out
}

fn siso_backward(t: &Tape, s: Sizes) {
    let _gate = (grad(t, s.inner, "gate gradient"), grad(t, s.inner, "scaled output gradient"));
    let _rotated = (grad(t, s.by_head, "rotated C gradient"), grad(t, s.by_head, "rotated B gradient"));
    let _input = grad(t, s.inner, "scan input gradient");
    let _decays = grad_of(t, 2 * s.steps, FP32, "decay gradients");
    let _grouped = (grad(t, s.grouped, "C gradient"), grad(t, s.grouped, "B gradient"));
    let _angles = grad_of(t, s.angles, FP32, "summed angle gradient");
    let _factors = grad_of(t, 4 * s.steps, FP32, "factor gradients");
    let _turned = grad_of(t, s.angles, FP32, "angle gradient");
}

/// Several inputs a head: z and x are copied, and everything else is computed again.
fn mimo_forward(c: &Rank, s: Sizes, saved: &mut Vec<Tensor>) -> Tensor {
    saved.extend([c.act(s.inner, "x"), c.act(s.inner, "z")]);
    let _decays = c.act_of(2 * s.steps, FP32, "summed decays");
    let _segments = c.act_of(s.segments, FP32, "decay segments");
    c.act(s.inner, "scan output")
}

fn mimo_backward(t: &Tape, s: Sizes) {
    let fp32 = |elements, name| grad_of(t, elements, FP32, name);
    let _decays = fp32(2 * s.steps, "summed decays");
    let _segments = fp32(s.segments, "decay segments");
    let _states = t.tensor(Line::ActivationGradients, s.states, BF16, "chunk states");
    let _gate = grad(t, s.inner, "gate gradient");
    let _own = grad(t, s.own, "own products");
    let by_head = (grad(t, s.by_head, "C gradient by head"), grad(t, s.by_head, "B gradient by head"));
    let _input = grad(t, s.inner, "scan input gradient");
    let _angles = fp32(s.angles, "summed angle gradient");
    let _factors = fp32(5 * s.steps, "factor gradients");
    let _segment_grads = fp32(s.segments, "segment gradients");
    let _grouped = (grad(t, s.grouped, "C gradient"), grad(t, s.grouped, "B gradient"));
    drop(by_head);
    let _turned = fp32(s.angles, "angle gradient");
}
