//! Grouped-query attention over a packed projection; positions turn pairs of channels in an
//! operation that keeps nothing but its table.

use super::super::Config;
use super::super::attention::{Heads, flash};
use super::super::ops::{grad_of, linear};
use super::super::params::{Linear, Unit};
use super::super::rank::Rank;
use super::borders::{enter, leave};
use super::projection;
use super::steps::{by, copied, split};
use replay::line::Line;
use replay::tape::{BF16, Tape, Tensor};
use std::rc::Rc;

pub(crate) struct Attention {
    qkv: Linear,
    pub(super) out: Linear,
    heads: Heads,
}

impl Attention {
    pub(super) fn new(c: &Config, unit: &mut Unit) -> Attention {
        let a = c.attention();
        let (query, kv) = (a.heads / c.tp, (a.kv_heads / c.tp).max(1));
        let heads = Heads { query, kv, qk_dim: a.head_dim, v_dim: a.head_dim };
        let qkv = projection(c, unit, "attention.qkv", ((query + 2 * kv) * a.head_dim, c.hidden));
        Attention { qkv, out: projection(c, unit, "attention.out", (c.hidden, query * a.head_dim)), heads }
    }

    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let (tokens, heads) = (c.config.tokens, self.heads);
        let factors = c.config.multipliers;
        let packed = linear(c, &enter(c, &by(c, x.clone(), factors.attention_in)), &self.qkv);
        let size = |count| tokens * count * heads.qk_dim;
        let [mut q, mut k, v] = split(c, &packed, [size(heads.query), size(heads.kv), size(heads.kv)]);
        k = by(c, k, factors.key);
        if c.config.rotates {
            // One table for all sequences, unless each has positions of its own.
            let places = if c.config.takes_some { tokens } else { c.config.sequence };
            let entries = places * c.config.rotated / 2;
            let table = [c.act(entries, "cosines"), c.act(entries, "sines")];
            let share = |x: &Tensor| x.elements() / heads.qk_dim * c.config.rotated;
            q = rotated(c, &q, &table, share(&q));
            k = rotated(c, &k, &table, share(&k));
        }
        let v = copied(c, &v, "values");
        let out = flash(c, [&q, &k, &v], heads);
        drop((q, k, v));
        let out = leave(c, linear(c, &out, &self.out));
        drop(packed);
        by(c, out, factors.attention_out)
    }
}

/// Queries and keys of heads that turn whole.
pub(in super::super) fn turned_whole(c: &Rank, q: Tensor, k: Tensor, head_dim: u64) -> (Tensor, Tensor) {
    let entries = c.config.sequence * head_dim / 2;
    let table = [c.act(entries, "cosines"), c.act(entries, "sines")];
    // Both are assigned at once, so that unturned queries and keys live until both are turned.
    (rotated(c, &q, &table, q.elements()), rotated(c, &k, &table, k.elements()))
}

/// `_Rotate`: backward turns the gradient back the same way. So many elements turn.
fn rotated(c: &Rank, x: &Tensor, table: &[Tensor; 2], turning: u64) -> Tensor {
    let elements = x.elements();
    let out = turned(&c.tape, Line::Activations, elements, turning);
    c.tape.record(vec![x.edge()], &[&out], table.to_vec(), move |t, _, saved| {
        let _negative = grad_of(t, saved[1].elements(), BF16, "negative sines");
        vec![Some(turned(t, Line::ActivationGradients, elements, turning))]
    });
    out
}

/// `turned`: two products and their sum for each half of what turns, then the halves joined with the rest.
fn turned(t: &Tape, line: Line, elements: u64, turning: u64) -> Tensor {
    let half = |name| t.tensor(line, turning / 2, BF16, name);
    let side = || {
        let _products = (half("turned product"), half("turned product"));
        half("turned half")
    };
    let _sides = (side(), side());
    t.tensor(line, elements, BF16, "rotated")
}
