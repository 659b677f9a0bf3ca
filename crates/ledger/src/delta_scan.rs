//! The chunked kernels of gated delta nets (fla-org/flash-linear-attention, `fla/ops/gated_delta_rule/chunk.py`):
//! queries and keys of every value head, values, gates and the inverted triangle of each chunk are kept; states
//! are computed again. No measured row shows it.

use super::grads::{grad, grad_of};
use recipe::kinds::gated_delta::GatedDelta;
use replay::line::Line;
use replay::tape::{BF16, FP32, Tape, Tensor};

/// Tokens a chunk covers (`chunk_local_cumsum(g, chunk_size=64)`).
const CHUNK: u64 = 64;

/// Widths of one rank.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    pub value_heads: u64,
    /// Queries or keys.
    pub keys: u64,
    pub values: u64,
    pub key_dim: u64,
    pub value_dim: u64,
}

impl Widths {
    pub fn of(mixer: &GatedDelta, tp: u64) -> Widths {
        let value_heads = mixer.value_heads / tp;
        Widths {
            value_heads,
            keys: mixer.key_heads / tp * mixer.key_dim,
            values: value_heads * mixer.value_dim,
            key_dim: mixer.key_dim,
            value_dim: mixer.value_dim,
        }
    }

    /// Channels of the convolution.
    pub fn channels(&self) -> u64 {
        2 * self.keys + self.values
    }

    /// Rows of the packed projection: q k v z beta alpha.
    pub fn packed(&self) -> u64 {
        self.channels() + self.values + 2 * self.value_heads
    }
}

/// Sizes over a microbatch, in elements.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub conv: u64,
    /// Queries or keys of every value head.
    by_head: u64,
    pub values: u64,
    steps: u64,
    /// Triangles inside chunks.
    triangles: u64,
    /// States at chunk borders.
    states: u64,
}

impl Sizes {
    /// Of `batch` sequences of `sequence` tokens each.
    pub fn of(w: Widths, batch: u64, sequence: u64) -> Sizes {
        let (tokens, chunks) = (batch * sequence, batch * sequence.div_ceil(CHUNK));
        Sizes {
            conv: tokens * w.channels(),
            by_head: tokens * w.value_heads * w.key_dim,
            values: tokens * w.values,
            steps: tokens * w.value_heads,
            triangles: chunks * CHUNK * w.value_heads * CHUNK,
            states: chunks * w.value_heads * w.key_dim * w.value_dim,
        }
    }
}

/// Unit queries and keys, repeated for every value head, and the scan over chunks: its output and what it keeps.
pub(super) fn forward(t: &Tape, s: Sizes) -> (Tensor, Vec<Tensor>) {
    let made = |elements, width, name| t.tensor(Line::Activations, elements, width, name);
    let act = |elements, name| made(elements, BF16, name);
    let mut saved = vec![act(s.conv - s.values, "unit queries and keys")];
    saved.push(made(2 * s.steps, FP32, "norms of queries and keys"));
    saved.extend([act(s.by_head, "queries"), act(s.by_head, "keys"), act(s.values, "values")]);
    saved.extend([made(s.steps, FP32, "summed decays"), act(2 * s.steps, "gates")]);
    let wide = made(s.triangles, FP32, "chunk triangles");
    saved.push(act(s.triangles, "inverted triangles"));
    drop(wide);
    let _products = (act(s.by_head, "w"), act(s.values, "u"));
    let _states = (act(s.states, "chunk states"), act(s.values, "new values"));
    (act(s.values, "scan output"), saved)
}

/// `chunk_gated_delta_rule_bwd`: forward's products and states once more, then gradients.
pub(super) fn backward(t: &Tape, s: Sizes) -> Tensor {
    let _products = (grad(t, s.by_head, "w"), grad(t, s.values, "u"));
    let _states = (grad(t, s.states, "chunk states"), grad(t, s.values, "new values"));
    let _values = grad(t, s.values, "value gradient");
    let _state_grads = (grad(t, s.states, "state gradients"), grad(t, s.values, "value gradient"));
    let _keys = (grad(t, s.by_head, "query gradient"), grad(t, s.by_head, "key gradient"));
    let _w = (grad(t, s.by_head, "w gradient"), grad_of(t, s.steps, FP32, "decay gradient"));
    let _more = (grad(t, s.by_head, "key gradient"), grad(t, s.values, "value gradient"));
    let _steps = grad_of(t, 2 * s.steps, FP32, "gate gradients");
    grad(t, s.conv, "qkv gradient")
}
