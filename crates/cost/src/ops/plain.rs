//! Scans and recurrences as the FSDP2 program has them (`launch/assets/fsdp2`), whose blocks DeepSpeed's has too: operations
//! of torch one by one, in fp32 between their projections, and one kernel of its own for a recurrence. Bytes were counted by
//! running the blocks on a CPU and adding up what every operation reads and writes, at several widths of each kind.

use super::{Op, Shape, Stream, Work};
use crate::part::Part;
use case::options::Elementwise;
use layout::Engine;
use recipe::kinds::m2rnn::M2rnn;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::mamba3::Mamba3;

/// Positions of a chunk (`scans.py`).
const CHUNK: f64 = 64.0;

/// Whether mixers run so, rather than in an engine's fused kernels. Nobody has counted what a compiler makes of them: compiled
/// layers are priced alike.
pub(super) fn is_plain(shape: Shape) -> bool {
    let is_ours = match shape.layout.engine {
        Some(Engine::Fsdp2) => true,
        Some(Engine::Deepspeed) => !shape.options.is_of_script(shape.layout),
        _ => false,
    };
    is_ours && shape.options.kernels.elementwise != Elementwise::Fused
}

/// Mamba-2: one scan, a convolution, keys and queries copied to every head.
pub(super) fn mamba2(shape: Shape, m: &Mamba2, ops: &mut Vec<Op>) {
    let heads = m.heads as f64 / shape.tp;
    let shared = 2.0 * (m.groups as f64 / shape.tp).max(1.0) * m.state as f64;
    let (inner, keys) = (heads * m.head_dim as f64, heads * m.state as f64);
    scan(shape, Widths { heads, value: m.head_dim as f64, state: m.state as f64 }, ops);
    spread(shape, [inner, keys, shared], ([74.0, 8.0, 18.0], 32.0), ([147.0, 8.0, 28.0], 60.0), ops);
}

/// Mamba-3: two scans, of this step's input and of the last one's; keys and queries turned by angles that add up along time.
pub(super) fn mamba3(shape: Shape, m: &Mamba3, ops: &mut Vec<Op>) {
    let heads = m.heads as f64 / shape.tp;
    let (inner, keys, angles) = (heads * m.head_dim as f64, heads * m.state as f64, heads * m.angles as f64);
    for _ in 0..2 {
        scan(shape, Widths { heads, value: m.head_dim as f64, state: m.state as f64 }, ops);
    }
    around(
        shape,
        (70.0 * inner + 59.0 * keys + 202.0 * angles, 79.0),
        (97.0 * inner + 190.0 * keys + 304.0 * angles, 163.0),
        ops,
    );
    let work = || vec![Work::Cumulative { steps: shape.layout.sequence as f64 }];
    ops.push(Op { part: Part::Scan, ..Op::streams(&[], work(), work()) });
}

/// M2RNN around its walk: a convolution, keys and queries copied to every head.
pub(super) fn m2rnn(shape: Shape, m: &M2rnn, ops: &mut Vec<Op>) {
    let (heads, shared) = (m.heads as f64 / shape.tp, 2.0 * (m.qk_heads * m.key_dim) as f64);
    let (inner, keys) = (heads * m.value_dim as f64, heads * m.key_dim as f64);
    spread(shape, [inner, keys, shared], ([68.0, 8.0, 17.0], 30.0), ([130.0, 8.0, 30.0], 50.0), ops);
}

/// M2RNN of Megatron's package around its walk: the convolution between copies, and the gated norm by torch's operations in
/// fp32, both run again in backward; queries and keys are read where they are, their gradients made for every head. Bytes
/// were counted by reading `launch/assets/megatron/m2rnn.py`.
pub(super) fn packaged_m2rnn(shape: Shape, m: &M2rnn, ops: &mut Vec<Op>) {
    let (heads, shared) = (m.heads as f64 / shape.tp, 2.0 * (m.qk_heads * m.key_dim) as f64);
    let (inner, keys) = (heads * m.value_dim as f64, heads * m.key_dim as f64);
    spread(shape, [inner, keys, shared], ([118.0, 0.0, 12.0], 20.0), ([284.0, 16.0, 36.0], 60.0), ops);
}

/// A convolution over values and what heads share, and what stands around it: bytes a token for each element of values, of keys by
/// head and of what is shared, and kernels.
fn spread(shape: Shape, widths: [f64; 3], forward: ([f64; 3], f64), backward: ([f64; 3], f64), ops: &mut Vec<Op>) {
    let [inner, keys, shared] = widths;
    let bytes = |([a, b, c], kernels): ([f64; 3], f64)| (a * inner + b * keys + c * shared, kernels);
    around(shape, bytes(forward), bytes(backward), ops);
    convolution(shape, inner + shared, ops);
}

struct Widths {
    heads: f64,
    value: f64,
    state: f64,
}

/// A scan by products of matrices. Backward runs it again first, all but its last product.
fn scan(shape: Shape, widths: Widths, ops: &mut Vec<Op>) {
    let Widths { heads, value, state } = widths;
    let (rows, border) = (shape.tokens * heads, state * value / CHUNK);
    // Chunks hand states on by one product over all of them, or of chunks of chunks.
    let chunks = (shape.layout.sequence as f64 / CHUNK).clamp(1.0, CHUNK);
    let flops = 2.0 * (CHUNK * (state + value) + 2.0 * state * value + chunks * border);
    let products =
        |times: f64, bytes: f64, kernels| Work::Fp32 { flops: rows * times * flops, bytes: rows * bytes, kernels };
    let streams = |bytes: f64, kernels| Work::stream(Stream::Broadcast, rows * bytes, kernels);
    let forward = vec![
        products(1.0, 16.0 * (state + value + border) + 8.0 * CHUNK, 5.0),
        streams(20.0 * value + 32.0 * state + 41.0 * CHUNK + 8.0 * border, 22.0),
    ];
    let backward = vec![
        products(2.75, 44.0 * (state + value + border) + 24.0 * CHUNK, 14.0),
        streams(36.0 * value + 112.0 * state + 112.0 * CHUNK + 16.0 * border, 66.0),
    ];
    ops.push(Op { part: Part::Scan, ..Op::streams(&[], forward, backward) });
}

/// What stands between the projections and a mixer's core: bytes a token, and kernels.
fn around(shape: Shape, forward: (f64, f64), backward: (f64, f64), ops: &mut Vec<Op>) {
    let work = |(bytes, kernels): (f64, f64)| vec![Work::stream(Stream::Broadcast, shape.tokens * bytes, kernels)];
    ops.push(Op::streams(&[], work(forward), work(backward)));
}

/// torch's depthwise convolution, whose kernels are not bound by bytes: 445 µs forward for 10,240 channels of 4096 tokens on an
/// H200, 655 backward, where reading and writing would take 40.
const CONVOLVED: f64 = 1.4;

fn convolution(shape: Shape, channels: f64, ops: &mut Vec<Op>) {
    let bytes = 2.0 * CONVOLVED * shape.tokens * channels;
    let work = |passes: f64, kernels| vec![Work::stream(Stream::Indexed, passes * bytes, kernels)];
    ops.push(Op::streams(&[], work(2.0, 1.0), work(3.0, 2.0)));
}
