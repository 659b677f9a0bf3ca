//! M2RNN as the package of a launch has it (`launch/assets/megatron/m2rnn.py`, kernels in `launch/assets/fsdp2/walk.py`),
//! behind Megatron's `M` symbol and on one rank a replica. The convolution, the decays and the gated norm keep their
//! inputs and run again in backward; the recurrence keeps a state every so many steps. No measured row shows it.

use super::blocks::M2rnnParams;
use super::linear::{Keeps, Mode, linear, norm_linear};
use super::ops::{grad, grad_of, weight_grad};
use super::rank::Rank;
use recipe::kinds::m2rnn::M2rnn;
use replay::tape::{FP32, Tape, Tensor};

/// Steps between kept states (`m2rnn.py` EVERY).
const EVERY: u64 = 4;

/// Rows of a state that a program of the kernels walks (`walk.py` FEW).
const ROWS: u64 = 16;

/// Sizes of one mixer over a microbatch, in elements.
#[derive(Clone, Copy)]
struct Sizes {
    /// Width of the packed projection: q k v f g.
    width: u64,
    packed: u64,
    /// Queries, keys and values, each head's once.
    conv: u64,
    /// The same with the zeros in front of every sequence.
    padded: u64,
    /// Queries or keys, each head's once.
    shared: u64,
    /// Queries or keys of every reading head.
    by_head: u64,
    /// Values, gates or the output.
    inner: u64,
    tokens: u64,
    /// One value a head and token.
    steps: u64,
    kept_states: u64,
    /// The state's weight, once for every sequence and program that has a gradient of its own.
    squares: u64,
    square: u64,
    /// Programs that walk a head.
    programs: u64,
}

/// Channels of the convolution.
pub(super) fn channels(mixer: &M2rnn) -> u64 {
    2 * mixer.qk_heads * mixer.key_dim + mixer.heads * mixer.value_dim
}

/// Rows of the packed projection.
pub(super) fn width(mixer: &M2rnn) -> u64 {
    channels(mixer) + mixer.heads * (1 + mixer.value_dim)
}

impl Sizes {
    fn of(c: &Rank, mixer: &M2rnn) -> Sizes {
        let (tokens, sequences) = (c.config.tokens, c.config.micro_batch);
        let state = sequences * mixer.heads * mixer.key_dim * mixer.value_dim;
        let square = mixer.heads * mixer.value_dim * mixer.value_dim;
        // A program has at least the sixteen rows that a product takes.
        let programs = mixer.key_dim.div_ceil(ROWS);
        Sizes {
            width: width(mixer),
            packed: tokens * width(mixer),
            conv: tokens * channels(mixer),
            padded: (tokens + sequences * (mixer.conv - 1)) * channels(mixer),
            shared: tokens * mixer.qk_heads * mixer.key_dim,
            by_head: tokens * mixer.heads * mixer.key_dim,
            inner: tokens * mixer.heads * mixer.value_dim,
            tokens,
            steps: tokens * mixer.heads,
            kept_states: state * (c.config.sequence.div_ceil(EVERY) + 1),
            squares: sequences * programs * square,
            square,
            programs,
        }
    }
}

/// Views of one tensor, whose gradients backward puts side by side.
fn split<const N: usize>(c: &Rank, whole: &Tensor, elements: u64, name: &'static str) -> [Tensor; N] {
    let views = std::array::from_fn(|_| whole.alias());
    let outputs: Vec<&Tensor> = views.iter().collect();
    c.tape.record(vec![whole.edge()], &outputs, Vec::new(), move |t, _, _| vec![Some(grad(t, elements, name))]);
    views
}

pub(super) fn forward(c: &Rank, params: &M2rnnParams, x: &Tensor) -> Tensor {
    let (config, mixer) = (&c.config, &params.mixer);
    let s = Sizes::of(c, mixer);
    let packed = norm_linear(c, x, config.hidden, s.width, &params.in_proj);
    let [qkv, forget, gate] = split(c, &packed, s.packed, "packed projection gradient");
    drop(packed);
    let qkv = convolve(c, params, qkv, s);
    let [queries, v] = split(c, &qkv, s.conv, "qkv gradient");
    drop(qkv);
    let keep = decays(c, params, forget, s);
    let read = walk(c, params, keep, queries, &v, s);
    let normed = gated(c, params, read, v, gate, s);
    linear(c, &normed, Mode::Row, (mixer.heads * mixer.value_dim, config.hidden), &params.out_proj, Keeps::Quantized)
}

/// The convolution and SiLU, once more in backward.
fn convolve(c: &Rank, params: &M2rnnParams, x: Tensor, s: Sizes) -> Tensor {
    let padded = c.act(s.padded, "padded conv input");
    let convolved = c.act(s.conv, "conv output");
    let activated = c.act(s.conv, "conv output, activated");
    drop(convolved);
    let out = c.act(s.conv, "queries, keys and values");
    drop((padded, activated));
    let vectors: Vec<_> = [Some(&params.conv), params.conv_bias.as_ref()].into_iter().flatten().collect();
    let edges = [x.edge()].into_iter().chain(vectors.iter().map(|p| p.edge())).collect();
    let elements: Vec<u64> = vectors.iter().map(|p| p.elements).collect();
    c.tape.record(edges, &[&out], vec![x], move |t, _, _saved| {
        let padded = grad(t, s.padded, "padded conv input");
        let convolved = grad(t, s.conv, "conv output");
        let _again = (grad(t, s.conv, "conv output, activated"), grad(t, s.conv, "queries, keys and values"));
        let of_output = grad(t, s.conv, "conv output gradient");
        drop(convolved);
        let of_padded = grad(t, s.padded, "padded conv input gradient");
        let vectors: Vec<_> = elements.iter().map(|&e| Some(weight_grad(t, e))).collect();
        drop((of_output, padded));
        let of_input = grad(t, s.conv, "conv input gradient");
        drop(of_padded);
        [Some(of_input)].into_iter().chain(vectors).collect()
    });
    out
}

/// What stays of a state, in fp32: a chain of operations by element, of which two tensors live at a time.
fn decays(c: &Rank, params: &M2rnnParams, forget: Tensor, s: Sizes) -> Tensor {
    let mut out = c.act_of(s.steps, FP32, "forget gates");
    for name in ["forget gates with bias", "softplus", "negated", "exponents", "decays"] {
        out = c.act_of(s.steps, FP32, name);
    }
    let edges = vec![forget.edge(), params.dt_bias.edge(), params.a_log.edge()];
    let elements = [params.dt_bias.elements, params.a_log.elements];
    c.tape.record(edges, &[&out], vec![forget], move |t, _, _saved| {
        // Its graph keeps the sum, what is negated, and the result.
        let _again: Vec<_> = (0..3).map(|_| grad_of(t, s.steps, FP32, "decay factors")).collect();
        let _chain = (grad_of(t, s.steps, FP32, "decay gradient"), grad_of(t, s.steps, FP32, "decay gradient"));
        let of_forget = grad(t, s.steps, "forget gate gradient");
        [Some(of_forget)].into_iter().chain(elements.map(|e| Some(weight_grad(t, e)))).collect()
    });
    out
}

/// The recurrence: every program has a part of what is read.
fn walk(c: &Rank, params: &M2rnnParams, keep: Tensor, queries: Tensor, v: &Tensor, s: Sizes) -> Tensor {
    let weight = c.act_of(s.square, FP32, "state weight");
    let parts = c.act_of(s.programs * s.inner, FP32, "scan output");
    let states = c.act_of(s.kept_states, FP32, "kept states");
    let out = summed(parts, s.programs, || c.act_of(s.inner, FP32, "scan output, summed"));
    let edges = vec![keep.edge(), queries.edge(), v.edge(), params.state_weight.edge()];
    let weight_elements = params.state_weight.elements;
    let saved = vec![keep, queries, v.clone(), weight, states];
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
        let (keep, queries, v) = walked_back(t, s);
        vec![Some(keep), Some(queries), Some(v), Some(weight_grad(t, weight_elements))]
    });
    out
}

/// The sum over programs, which one alone does not need.
fn summed(parts: Tensor, programs: u64, sum: impl FnOnce() -> Tensor) -> Tensor {
    if programs == 1 { parts } else { sum() }
}

/// Gradients of the decays, of queries and keys, and of values. Those of queries and keys are made for every head
/// and summed over the heads that share one.
fn walked_back(t: &Tape, s: Sizes) -> (Tensor, Tensor, Tensor) {
    let keep = grad_of(t, s.programs * s.steps, FP32, "decay gradients of programs");
    let v = grad_of(t, s.programs * s.inner, FP32, "value gradients of programs");
    let by_head = [(); 2].map(|()| grad_of(t, s.by_head, FP32, "query and key gradients of heads"));
    let _squares = grad_of(t, s.squares, FP32, "state weight gradients of programs");
    let shared = [(); 2].map(|()| {
        let _wide = (s.shared < s.by_head).then(|| grad_of(t, s.shared, FP32, "query and key gradients"));
        grad(t, s.shared, "query and key gradients")
    });
    drop(by_head);
    let keep = summed(keep, s.programs, || grad_of(t, s.steps, FP32, "decay gradient"));
    let v = summed(v, s.programs, || grad_of(t, s.inner, FP32, "value gradient"));
    let v = (grad(t, s.inner, "value gradient"), v).0;
    let _square = grad_of(t, s.square, FP32, "state weight gradient");
    // Queries and keys are two views of one tensor.
    let queries = grad(t, 2 * s.shared, "query and key gradients");
    drop(shared);
    (keep, queries, v)
}

/// `norm((read + D · v) · silu(gate))` in fp32, once more in backward.
fn gated(c: &Rank, params: &M2rnnParams, read: Tensor, v: Tensor, gate: Tensor, s: Sizes) -> Tensor {
    let fp32 = |name| c.act_of(s.inner, FP32, name);
    let values = fp32("values");
    let skip = fp32("skip");
    drop(values);
    let y = fp32("scan output with skip");
    drop(skip);
    let wide = fp32("gates");
    let activated = fp32("activated gates");
    drop(wide);
    let whole = fp32("gated output");
    drop((y, activated));
    let squares = fp32("squares");
    let sums = c.act_of(s.tokens, FP32, "sums of squares");
    drop(squares);
    let normed = fp32("normed output");
    let weighed = fp32("weighed output");
    drop((normed, sums));
    let out = c.act(s.inner, "mixer output");
    drop((whole, weighed));
    let edges = vec![read.edge(), v.edge(), gate.edge(), params.d.edge(), params.gate_norm.edge()];
    let elements = [params.d.elements, params.gate_norm.elements];
    c.tape.record(edges, &[&out], vec![read, v, gate], move |t, _, _saved| {
        let fp32 = |name| grad_of(t, s.inner, FP32, name);
        // Its graph keeps values, the sum, the gate before and after SiLU, and the output gated and normed.
        let again: Vec<_> = (0..6).map(|_| fp32("gated norm again")).collect();
        let _out = grad(t, s.inner, "mixer output");
        let (of_weighed, of_normed) = (fp32("weighed output gradient"), fp32("normed output gradient"));
        drop(of_weighed);
        let of_whole = (fp32("gated output gradient"), fp32("gated output gradient"));
        drop(of_normed);
        let of_gate = fp32("activated gate gradient");
        let of_read = fp32("scan output gradient");
        drop((of_whole, again));
        let gate = grad(t, s.inner, "gate gradient");
        drop(of_gate);
        let values = fp32("value gradient");
        let v = grad(t, s.inner, "value gradient");
        drop(values);
        let [d, norm] = elements.map(|e| Some(weight_grad(t, e)));
        vec![Some(of_read), Some(v), Some(gate), d, norm]
    });
    out
}
