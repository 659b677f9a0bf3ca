//! Chunked scans: Mamba of three kinds and gated delta nets. Within a chunk of Q tokens work is a
//! masked product; between chunks a state is handed on (Dao and Gu, arXiv 2405.21060, section 6).

use super::{Call, Direction, Op, Shape, Stream, Work, plain};
use crate::part::Part;
use case::options::Elementwise;
use layout::request::RecomputeModule;
use recipe::Mixer;
use recipe::kinds::linear::Linear;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba3::Mamba3;

/// Sizes of one chunked scan on one rank.
struct Chunked {
    heads: f64,
    /// Groups that share keys and queries (B and C).
    groups: f64,
    /// Width of a value head.
    value: f64,
    /// Width of keys and queries: the state of one element.
    state: f64,
    chunk: f64,
    /// Products of the delta rule against plain accumulation.
    factor: f64,
}

impl Chunked {
    /// Operations a token: scores of a group, scores by values, state in, state out.
    fn flops(&self) -> f64 {
        let scores = self.groups * 2.0 * self.chunk * self.state;
        let values = self.heads * 2.0 * self.chunk * self.value;
        let states = self.heads * 4.0 * self.state * self.value;
        self.factor * (scores + values + states)
    }

    /// Bytes a token: inputs and result in bf16, and the fp32 state of every chunk written, read
    /// by the pass along chunks, written and read again.
    fn bytes(&self) -> f64 {
        let streams = 2.0 * (3.0 * self.heads * self.value + 2.0 * self.groups * self.state);
        streams + 16.0 * self.heads * self.value * self.state / self.chunk
    }
}

/// The scan of an M block; Mamba-1 has none that is chunked.
fn of_mamba(shape: Shape) -> Option<Chunked> {
    match shape.recipe.mamba.as_ref()? {
        Mamba::One(_) => None,
        Mamba::Two(m) => Some(Chunked {
            heads: m.heads as f64 / shape.tp,
            groups: (m.groups as f64 / shape.tp).max(1.0),
            value: m.head_dim as f64,
            state: m.state as f64,
            chunk: m.chunk as f64,
            factor: 1.0,
        }),
        Mamba::Three(m) => Some(Chunked {
            heads: m.heads as f64 / shape.tp,
            // B and C are rotated by head, so every head has its own.
            groups: m.heads as f64 / shape.tp,
            value: (m.head_dim * m.mimo_rank) as f64,
            state: m.state as f64,
            chunk: m.chunk as f64,
            factor: 1.0,
        }),
    }
}

/// The scan of a G block: the delta rule inverts a small triangle in every chunk (Yang et al.,
/// arXiv 2412.06464), assumed to double its products; not measured.
fn of_gated_delta(shape: Shape) -> Option<Chunked> {
    let delta = shape.recipe.gated_delta.as_ref()?;
    Some(Chunked {
        heads: delta.value_heads as f64 / shape.tp,
        groups: delta.value_heads as f64 / shape.tp,
        value: delta.value_dim as f64,
        state: delta.key_dim as f64,
        chunk: 64.0,
        factor: 2.0,
    })
}

/// The scan of an L block, where it is one over chunks: plain accumulation with decays. Not measured.
fn of_linear(shape: Shape) -> Option<Chunked> {
    let of = |heads: u64, value: u64, state: u64, chunk: u64| Chunked {
        heads: heads as f64 / shape.tp,
        groups: heads as f64 / shape.tp,
        value: value as f64,
        state: state as f64,
        chunk: chunk as f64,
        factor: 1.0,
    };
    match shape.recipe.linear.as_ref()? {
        Linear::Lightning(m) => Some(of(m.heads, m.head_dim, m.head_dim, m.chunk)),
        Linear::Mlstm(m) => Some(of(m.heads, m.v_dim / m.heads, m.qk_dim / m.heads, m.chunk)),
        // The delta rule inverts a triangle in every chunk, as a gated delta net's does.
        Linear::Kda(m) => Some(Chunked { factor: 2.0, ..of(m.heads, m.head_dim, m.head_dim, 64) }),
        // Decays, rates and keys of a token are three vectors where a delta net has two: its products once more.
        Linear::Rwkv7(m) => Some(Chunked { factor: 3.0, ..of(m.heads, m.v_dim, m.head_dim, 64) }),
        Linear::ShortConv(_) | Linear::RgLru(_) => None,
    }
}

/// Operations of a mixer's scan in forward.
pub(super) fn flops(shape: Shape, mixer: Mixer) -> f64 {
    let chunked = match mixer {
        Mixer::Mamba => of_mamba(shape),
        Mixer::Linear => of_linear(shape),
        _ => of_gated_delta(shape),
    };
    chunked.map_or(0.0, |chunked| shape.tokens * chunked.flops())
}

/// The mixer of an M block.
pub(super) fn mamba(shape: Shape, ops: &mut Vec<Op>) {
    match &shape.recipe.mamba {
        Some(Mamba::Two(m)) if plain::is_plain(shape) && m.conv > 0 => return plain::mamba2(shape, m, ops),
        Some(Mamba::Three(m)) if plain::is_plain(shape) => return plain::mamba3(shape, m, ops),
        Some(Mamba::Three(m)) => return mamba3(shape, m, ops),
        _ => {}
    }
    if let Some(chunked) = of_mamba(shape) {
        scan(shape, &chunked, ops);
    }
    let (channels, inner) = match &shape.recipe.mamba {
        Some(Mamba::One(m)) => {
            selective(shape, m.inner as f64 / shape.tp, m.state as f64, ops);
            (Some(m.inner), None)
        }
        Some(Mamba::Two(m)) => ((m.conv > 0).then(|| m.conv_channels()), Some(m.inner())),
        Some(Mamba::Three(_)) | None => (None, None),
    };
    if let Some(channels) = channels {
        convolution(shape, channels as f64 / shape.tp, ops);
    }
    if let Some(inner) = inner {
        gate(shape, inner as f64 / shape.tp, &[], ops);
    }
    if let Some(Mamba::Two(m)) = &shape.recipe.mamba {
        if m.conv == 0 {
            // SiLU over x alone, where the convolution's kernel would have done it.
            gate(shape, m.inner() as f64 / shape.tp, &[], ops);
        }
        taken_apart(shape, (m.inner() + m.conv_channels() + m.heads) as f64 / shape.tp, ops);
    }
}

/// The mixer of an L block.
pub(super) fn linear(shape: Shape, ops: &mut Vec<Op>) {
    if let Some(chunked) = of_linear(shape) {
        scan(shape, &chunked, ops);
    }
    match &shape.recipe.linear {
        Some(Linear::ShortConv(_)) => {
            let hidden = shape.recipe.hidden as f64 / shape.tp;
            convolution(shape, hidden, ops);
            gate(shape, hidden, &[], ops);
            gate(shape, hidden, &[], ops);
        }
        Some(Linear::Lightning(m)) => gate(shape, (m.heads * m.head_dim) as f64 / shape.tp, &[], ops),
        Some(Linear::RgLru(m)) => {
            let width = m.width as f64 / shape.tp;
            convolution(shape, width, ops);
            selective(shape, width, 1.0, ops);
            gate(shape, width, &[], ops);
        }
        Some(Linear::Mlstm(m)) => gate(shape, m.v_dim as f64 / shape.tp, &[], ops),
        Some(Linear::Kda(m)) => {
            let inner = m.inner() as f64 / shape.tp;
            convolution(shape, 3.0 * inner, ops);
            gate(shape, inner, &[], ops);
            // Decays are made in fp32.
            gate(shape, 2.0 * inner, &[], ops);
        }
        Some(Linear::Rwkv7(m)) => {
            let (keys, values) = (m.keys() as f64 / shape.tp, m.values() as f64 / shape.tp);
            // Six mixtures with the token before, read once and written each; backward reads their gradients.
            let mixed = 2.0 * shape.tokens * shape.recipe.hidden as f64;
            ops.push(Op::bytes(&[], (10.0 * mixed, 2.0), (12.0 * mixed, 4.0)));
            // Decays, rates, unit keys and the scan's keys; values drawn to the first layer's; norm, bonus and gate.
            (0..4).for_each(|_| gate(shape, keys, &[], ops));
            (0..3).for_each(|_| gate(shape, values, &[], ops));
        }
        None => {}
    }
}

/// The mixer of a G block.
pub(super) fn gated_delta(shape: Shape, ops: &mut Vec<Op>) {
    let Some((delta, chunked)) = shape.recipe.gated_delta.as_ref().zip(of_gated_delta(shape)) else { return };
    scan(shape, &chunked, ops);
    let keys = (2 * delta.key_heads * delta.key_dim) as f64;
    let values = (delta.value_heads * delta.value_dim) as f64;
    convolution(shape, (keys + values) / shape.tp, ops);
    gate(shape, values / shape.tp, &[RecomputeModule::GdnNormOut], ops);
}

fn scan(shape: Shape, chunked: &Chunked, ops: &mut Vec<Op>) {
    scan_at(shape, chunked, (1.0, 1.0), ops);
}

/// A scan whose kernels take so many times as long as Mamba-2's for the same operations.
fn scan_at(shape: Shape, chunked: &Chunked, (forward, backward): (f64, f64), ops: &mut Vec<Op>) {
    let work = |times: f64, pass| Work::Scan {
        flops: times * shape.tokens * chunked.flops(),
        bytes: times * shape.tokens * chunked.bytes(),
        pass,
    };
    ops.push(Op {
        block: None,
        scope: None,
        part: Part::Scan,
        modules: &[],
        forward: vec![work(forward, Direction::Forward)],
        // Chunk states are computed again, then every product has two gradients.
        input: vec![work(2.5 * backward, Direction::Backward)],
        weight: Vec::new(),
    });
}

/// Time of Mamba-3's kernels against Mamba-2's for the same operations: 1.36 ms and 2.15 ms for 8 x 4096 tokens of 56
/// heads of 64, state 64, in bf16 on an H200 (mamba_ssm 2.3.2.post1, `mamba3_siso_combined`, with its gate and skip).
const SISO: (f64, f64) = (1.34, 0.71);

/// Mamba-3 as the package that `launch` writes for Megatron runs it (`crates/launch/assets/megatron/mamba3.py`): parts of
/// the packed projection copied apart, norms of B and C, steps and decays in fp32, the kernels with gate and skip inside.
fn mamba3(shape: Shape, m: &Mamba3, ops: &mut Vec<Op>) {
    if let Some(chunked) = of_mamba(shape) {
        scan_at(shape, &chunked, SISO, ops);
    }
    let (heads, groups) = (m.heads as f64 / shape.tp, (m.groups as f64 / shape.tp).max(1.0));
    let (inner, shared) = (heads * m.head_dim as f64, 2.0 * groups * m.state as f64);
    let angles = heads * m.angles as f64;
    let packed = 2.0 * inner + shared + 3.0 * heads;
    let streams = |strided: f64, plain: f64, kernels: (f64, f64)| {
        vec![
            Work::stream(Stream::Strided, shape.tokens * strided, kernels.0),
            Work::stream(Stream::Plain, shape.tokens * plain, kernels.1),
        ]
    };
    // Copies read and write bf16, the output's by sequence too; norms two passes; seven passes in fp32 of steps and decays.
    let forward = streams(4.0 * (packed + inner), 4.0 * shared + 56.0 * heads, (7.0, 12.0));
    // The same gradients joined; norms three passes; gradients of angles summed over heads; ten passes in fp32.
    let backward = streams(4.0 * (packed + inner), 6.0 * shared + 2.0 * angles + 80.0 * heads, (2.0, 19.0));
    ops.push(Op::streams(&[], forward, backward));
}

/// Mamba-1 steps every channel's state by itself: no products, about nine operations an element
/// outside the matrix units, so that it is priced by the bytes its fused kernel moves plus those
/// operations at the rate of a scan.
fn selective(shape: Shape, inner: f64, state: f64, ops: &mut Vec<Op>) {
    let work = |times: f64, pass| Work::Scan {
        flops: times * 9.0 * shape.tokens * inner * state,
        bytes: times * shape.tokens * (2.0 * 4.0 * inner + 4.0 * state),
        pass,
    };
    ops.push(Op {
        block: None,
        scope: None,
        part: Part::Scan,
        modules: &[],
        forward: vec![work(1.0, Direction::Forward)],
        input: vec![work(2.5, Direction::Backward)],
        weight: Vec::new(),
    });
}

/// The short convolution: read and write; backward runs it again, reads input and gradient and writes one.
pub(super) fn convolution(shape: Shape, channels: f64, ops: &mut Vec<Op>) {
    let bytes = 2.0 * shape.tokens * channels;
    let work =
        |passes: f64, kernels| vec![Work::stream(Stream::Convolved, passes * bytes, kernels).started(Call::Inside)];
    ops.push(Op::streams(&[], work(2.0, 1.0), work(5.0, 2.0)));
}

/// The gated norm behind a mixer.
pub(super) fn gate(shape: Shape, inner: f64, modules: &'static [RecomputeModule], ops: &mut Vec<Op>) {
    let bytes = 2.0 * shape.tokens * inner;
    let eager = if shape.options.kernels.elementwise == Elementwise::Eager { 2.0 } else { 1.0 };
    let work = |passes: f64, kernels| {
        let stream = if eager > 1.0 { Stream::Plain } else { Stream::Normed };
        vec![Work::stream(stream, passes * eager * bytes, kernels * eager).started(Call::Fused)]
    };
    ops.push(Op::streams(modules, work(3.0, 1.0), work(5.0, 2.0)));
}

/// Parts of the projection into a mixer taken apart, and their gradients put together: two copies of about
/// 0.6 of it either way, none of them contiguous (counted in profiles of Megatron-Core's `mamba_mixer.py`).
fn taken_apart(shape: Shape, width: f64, ops: &mut Vec<Op>) {
    if shape.options.kernels.elementwise != Elementwise::Compiled {
        // Rows that are no multiple of 16 bytes are copied element by element, and once more to be aligned.
        let copies = if width % 8.0 == 0.0 { 2.0 } else { 5.0 };
        let bytes = 0.6 * copies * 2.0 * 2.0 * shape.tokens * width;
        let work = || vec![Work::stream(Stream::Strided, bytes, copies)];
        ops.push(Op::streams(&[], work(), work()));
    }
}
