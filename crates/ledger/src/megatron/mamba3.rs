//! Mamba-3 behind Megatron's `M` symbol, as the package that `launch` writes runs it
//! (`crates/launch/assets/megatron/mamba3.py`) on the published kernels (mamba_ssm 2.3.2.post1,
//! `mamba_ssm/ops/triton/mamba3/mamba3_siso_combined.py`): one input a head, tensor-parallel. The
//! norm in front is a module of its own, because the angle projection reads it too.

use super::blocks::Mamba3Params;
use super::config::Config;
use super::linear::{Keeps, Mode, linear};
use super::ops::{WeightProduct, copy, grad, grad_of, makes, norm, weight_grad};
use super::plain::transposed;
use super::rank::Rank;
use recipe::kinds::mamba3::Mamba3;
use replay::tape::{BF16, FP32, Tape, Tensor};

/// Columns of keys and queries whose backward adds up apart (`mamba3_siso_bwd.py`, `BLOCK_HEADDIM_QK`).
const BLOCK: u64 = 64;

/// Widths of one mixer on one rank.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    heads: u64,
    /// z, x or the output.
    pub inner: u64,
    /// B or C by group.
    shared: u64,
    state: u64,
    angles: u64,
    chunk: u64,
}

impl Widths {
    pub fn of(c: &Config, mamba: &Mamba3) -> Widths {
        let (heads, groups) = (mamba.heads / c.tp, (mamba.groups / c.tp).max(1));
        let (inner, shared) = (heads * mamba.head_dim, groups * mamba.state);
        Widths { heads, inner, shared, state: mamba.state, angles: mamba.angles, chunk: mamba.chunk }
    }

    /// Rows of the packed projection: z x B C dt A trap.
    pub fn packed(self) -> u64 {
        2 * self.inner + 2 * self.shared + 3 * self.heads
    }
}

/// Elements of one mixer's tensors over a microbatch.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: u64,
    packed: u64,
    inner: u64,
    shared: u64,
    /// B or C by head.
    by_head: u64,
    /// One value a head and token.
    steps: u64,
    /// Raw angles, which all heads share.
    raw: u64,
    /// Angles of every head.
    angles: u64,
    /// States at chunk borders.
    states: u64,
    /// One value a head and chunk.
    chunks: u64,
    /// Gradients of both biases before they are summed over chunks.
    partials: u64,
    /// Parts in which a step's gradients come.
    parts: u64,
    /// Heads of all sequences.
    heads: u64,
    rows: u64,
}

impl Sizes {
    fn of(c: &Rank, w: Widths) -> Sizes {
        let (tokens, batch) = (c.config.tokens, c.config.micro_batch);
        let chunks = batch * c.config.sequence.div_ceil(w.chunk);
        Sizes {
            tokens,
            packed: tokens * w.packed(),
            inner: tokens * w.inner,
            shared: tokens * w.shared,
            by_head: tokens * w.heads * w.state,
            steps: tokens * w.heads,
            raw: tokens * w.angles,
            angles: tokens * w.heads * w.angles,
            states: chunks * w.inner * w.state,
            chunks: chunks * w.heads,
            partials: chunks * w.heads * w.state,
            parts: w.state.next_power_of_two().div_ceil(BLOCK),
            heads: batch * w.heads,
            rows: tokens * w.shared / w.state,
        }
    }
}

pub(super) fn forward(c: &Rank, params: &Mamba3Params, x: &Tensor) -> Tensor {
    let (config, w) = (&c.config, params.widths);
    let sizes = Sizes::of(c, w);
    let normed = norm(c, x, config.hidden, &params.norm);
    let angles = angles(c, params, &normed, sizes);
    let packed = linear(c, &normed, Mode::Column, (config.hidden, w.packed()), &params.in_proj, Keeps::Quantized);
    let [z, x, b, q, rates, trap] = parts(c, packed, sizes);
    let (dt, decay) = steps(c, params, &rates, sizes);
    // Local variables of the mixer's forward.
    let _raw = (b.clone(), q.clone(), rates);
    let q = group_norm(c, params, &q, 1, sizes);
    let b = group_norm(c, params, &b, 0, sizes);
    let y = scan(c, params, [q, b, x, z, decay, dt, trap, angles], sizes);
    let y = transposed(c, y, "scan output");
    linear(c, &y, Mode::Row, (w.inner, config.hidden), &params.out_proj, Keeps::Quantized)
}

/// Raw angles of this rank's tokens, gathered from the others under sequence parallelism.
fn angles(c: &Rank, params: &Mamba3Params, normed: &Tensor, s: Sizes) -> Tensor {
    c.torch_product();
    let (config, weight) = (&c.config, &params.angle_proj);
    let (local, hidden) = (config.local_tokens * params.widths.angles, config.local_tokens * config.hidden);
    let mut raw = c.act(local, "angles");
    let product = WeightProduct::plain(weight);
    c.tape.record(vec![normed.edge(), weight.edge()], &[&raw], vec![normed.clone()], move |t, grads, saved| {
        let dx = grad(t, hidden, "input gradient");
        let operands = saved.iter().cloned().chain(grads[0].clone()).collect();
        vec![Some(dx), product.grad(t, operands)]
    });
    if config.sp {
        let whole = c.act(s.raw, "angles");
        makes(c, &raw, &whole, Vec::new(), local, BF16);
        raw = whole;
    }
    transposed(c, raw, "angles")
}

/// The packed projection taken apart in copies: z, x, B, C by sequence; rates of dt and A in fp32 and
/// trap by head.
fn parts(c: &Rank, packed: Tensor, s: Sizes) -> [Tensor; 6] {
    let sizes = [s.inner, s.inner, s.shared, s.shared, 2 * s.steps, s.steps];
    let views = sizes.map(|elements| packed.part(elements));
    let outputs: Vec<&Tensor> = views.iter().collect();
    c.tape.record(vec![packed.edge()], &outputs, Vec::new(), move |t, _, _| {
        vec![Some(grad(t, s.packed, "packed projection gradient"))]
    });
    let names = ["z", "x", "B rows", "C rows", "rates", "trapezoids"];
    let mut at = 0;
    let copies = views.each_ref().map(|view| {
        let (name, elements) = (names[at], sizes[at]);
        at += 1;
        if name != "rates" {
            return copy(c, view, elements, name);
        }
        let out = c.act_of(elements, FP32, name);
        makes(c, view, &out, Vec::new(), elements, BF16);
        out
    });
    drop((views, packed));
    copies
}

/// Steps, and decays over them.
fn steps(c: &Rank, params: &Mamba3Params, rates: &Tensor, s: Sizes) -> (Tensor, Tensor) {
    let fp32 = |name| c.act_of(s.steps, FP32, name);
    let halves = [(); 2].map(|()| rates.part(s.steps));
    let [dt, a] = &halves;
    c.tape.record(vec![rates.edge()], &[dt, a], Vec::new(), move |t, _, _| {
        vec![Some(grad_of(t, 2 * s.steps, FP32, "gradient of rates"))]
    });
    let biased = fp32("biased steps");
    let bias = params.dt_bias.elements;
    c.tape.record(vec![dt.edge(), params.dt_bias.edge()], &[&biased], Vec::new(), move |t, grads, _| {
        vec![grads[0].clone(), Some(weight_grad(t, bias))]
    });
    let step = fp32("steps");
    makes(c, &biased, &step, vec![biased.clone()], s.steps, FP32);
    drop(biased);
    let soft = fp32("decay rates");
    makes(c, a, &soft, vec![a.clone()], s.steps, FP32);
    let negative = fp32("decay rates");
    makes(c, &soft, &negative, Vec::new(), s.steps, FP32);
    drop(soft);
    let clamped = fp32("decay rates");
    makes(c, &negative, &clamped, vec![negative.clone()], s.steps, FP32);
    drop(negative);
    let decay = fp32("log decays");
    let saved = vec![clamped.clone(), step.clone()];
    c.tape.record(vec![clamped.edge(), step.edge()], &[&decay], saved, move |t, _, _saved| {
        [(); 2].map(|()| Some(grad_of(t, s.steps, FP32, "gradient of decays"))).to_vec()
    });
    (step, decay)
}

/// `rms_norm` of B or C by group. Without sequence parallelism each backward sums its weight's gradient over ranks.
fn group_norm(c: &Rank, params: &Mamba3Params, packed: &Tensor, which: usize, s: Sizes) -> Tensor {
    let weight = &params.norms[which];
    let out = c.act(s.shared, "B or C normed");
    let inverse = c.act_of(s.rows, FP32, "B or C rsigma");
    let elements = weight.elements;
    let saved = vec![packed.clone(), inverse];
    c.tape.record(vec![packed.edge(), weight.edge()], &[&out], saved, move |t, _, _saved| {
        vec![Some(grad(t, s.shared, "norm input gradient")), Some(weight_grad(t, elements))]
    });
    out
}

/// `_Mamba3Function`: inputs [C, B, x, z, decay, dt, trap, angles]; it keeps all of them, both outputs, and what its
/// first pass makes.
fn scan(c: &Rank, params: &Mamba3Params, inputs: [Tensor; 8], s: Sizes) -> Tensor {
    let small = [&params.c_bias, &params.b_bias, &params.d];
    let wide = small.map(|param| {
        let (out, elements) = (c.act_of(param.elements, FP32, "fp32 parameter"), param.elements);
        c.tape.record(vec![param.edge()], &[&out], Vec::new(), move |t, _, _| vec![Some(weight_grad(t, elements))]);
        out
    });
    let summed = c.act(s.angles, "summed angles");
    let last = c.act(s.heads * s.raw / s.tokens, "last angles");
    let out = c.act(s.inner, "scan output");
    let first = c.tape.records().then(|| {
        let states = c.act(s.states, "chunk states");
        let sums = [s.steps, s.chunks].map(|elements| c.act_of(elements, FP32, "summed decays"));
        (states, sums, c.act(s.inner, "scan output before gate"))
    });
    let turned = [(); 2].map(|()| c.act(s.by_head, "turned B or C"));
    let factors = [(); 3].map(|()| c.act_of(s.steps, FP32, "scan factors"));
    drop(last);
    let edges = inputs.iter().chain(&wide).map(Tensor::edge).collect();
    let widths = wide.each_ref().map(Tensor::elements);
    let mut saved: Vec<Tensor> = inputs.into_iter().chain(wide).chain(turned).chain(factors).collect();
    saved.extend([summed, out.alias()]);
    if let Some((states, sums, ungated)) = first {
        saved.extend([states, ungated]);
        saved.extend(sums);
        // Empty tensors in place of states at either end and of borders of sequences.
        saved.extend((0..5).map(|_| c.act_of(1, FP32, "placeholder")));
    }
    let copies = c.config.micro_batch > 1;
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| backward(t, s, copies, widths));
    out
}

/// The kernels of backward one after another; everything they make lives until the last has run.
fn backward(t: &Tape, s: Sizes, copies: bool, [c_bias, b_bias, d]: [u64; 3]) -> Vec<Option<Tensor>> {
    let fp32 = |elements, name| grad_of(t, elements, FP32, name);
    // `compute_dzdo` wants the output's gradient by sequence.
    let laid = copies.then(|| grad(t, s.inner, "output gradient by sequence"));
    let dz = grad(t, s.inner, "gate gradient");
    let _scaled = grad(t, s.inner, "scaled output gradient");
    drop(laid);
    let _turned = [(); 2].map(|()| grad(t, s.by_head, "turned B or C gradient"));
    let dx = grad(t, s.inner, "scan input gradient");
    let ddecay = fp32(s.steps, "decay gradient");
    let _own = fp32(s.steps, "gradient of own products");
    let by_sequence = fp32(s.heads, "skip gradients");
    let dd = fp32(d, "skip gradient");
    drop(by_sequence);
    let grouped = [(); 2].map(|()| grad(t, s.shared, "B or C gradient"));
    let _summed = grad(t, s.angles, "summed angle gradient");
    let in_parts = [(); 2].map(|()| fp32(s.parts * s.steps, "factor gradients"));
    let partials = [(); 2].map(|()| fp32(s.partials, "bias gradients of chunks"));
    let _factors = in_parts.map(|_part| fp32(s.steps, "factor gradients"));
    let biases = [c_bias, b_bias].map(|elements| fp32(elements, "bias gradient"));
    drop(partials);
    let trap = fp32(s.steps, "fp32 trapezoids");
    let (dstep, dtrap) = (fp32(s.steps, "step gradient"), fp32(s.steps, "trapezoid gradient"));
    drop(trap);
    let by_head = grad(t, s.angles, "angle gradient by head");
    let of_angles = fp32(s.steps, "step gradient");
    let ddt = fp32(s.steps, "step gradient");
    drop((dstep, of_angles));
    // autograd gives trap's gradient in its own format, and expand's backward sums angles over heads.
    let narrow = grad(t, s.steps, "trapezoid gradient");
    drop(dtrap);
    let raw = grad(t, s.raw, "angle gradient");
    drop(by_head);
    let [dc, db] = grouped;
    let [dc_bias, db_bias] = biases;
    [dc, db, dx, dz, ddecay, ddt, narrow, raw, dc_bias, db_bias, dd].map(Some).to_vec()
}
