//! Grouped-query attention over a packed projection; positions turn pairs of channels in an
//! operation that keeps nothing but its table.

use super::super::Config;
use super::super::attention::{Heads, flash};
use super::super::ops::{grad_of, linear};
use super::super::params::{Linear, Unit};
use super::super::rank::Rank;
use super::borders::{enter, leave};
use super::projection;
use super::steps::{copied, split};
use replay::line::Line;
use replay::tape::{BF16, Tape, Tensor};
use std::rc::Rc;

pub(crate) struct Attention {
    qkv: Linear,
    out: Linear,
    heads: Heads,
}

impl Attention {
    pub(super) fn new(c: &Config, unit: &mut Unit) -> Attention {
        let a = c.attention();
        let (query, kv) = (a.heads / c.tp, (a.kv_heads / c.tp).max(1));
        let heads = Heads { query, kv, qk_dim: a.head_dim, v_dim: a.head_dim };
        let qkv = projection(c, unit, (query + 2 * kv) * a.head_dim, c.hidden);
        Attention { qkv, out: projection(c, unit, c.hidden, query * a.head_dim), heads }
    }

    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let (tokens, heads) = (c.config.tokens, self.heads);
        let packed = linear(c, &enter(c, x), &self.qkv);
        let size = |count| tokens * count * heads.qk_dim;
        let [mut q, mut k, v] = split(c, &packed, [size(heads.query), size(heads.kv), size(heads.kv)]);
        if c.config.rotates {
            let entries = c.config.sequence * heads.qk_dim / 2;
            let table = [c.act(entries, "cosines"), c.act(entries, "sines")];
            q = rotated(c, &q, &table);
            k = rotated(c, &k, &table);
        }
        let v = copied(c, &v, "values");
        let out = flash(c, [&q, &k, &v], heads);
        drop((q, k, v));
        let out = leave(c, linear(c, &out, &self.out));
        drop(packed);
        out
    }
}

/// `_Rotate`: backward turns the gradient back the same way.
fn rotated(c: &Rank, x: &Tensor, table: &[Tensor; 2]) -> Tensor {
    let elements = x.elements();
    let out = turned(&c.tape, Line::Activations, elements);
    c.tape.record(vec![x.edge()], &[&out], table.to_vec(), move |t, _, saved| {
        let _negative = grad_of(t, saved[1].elements(), BF16, "negative sines");
        vec![Some(turned(t, Line::ActivationGradients, elements))]
    });
    out
}

/// `turned`: two products and their sum for each half, then the halves joined.
fn turned(t: &Tape, line: Line, elements: u64) -> Tensor {
    let half = |name| t.tensor(line, elements / 2, BF16, name);
    let side = || {
        let _products = (half("turned product"), half("turned product"));
        half("turned half")
    };
    let _sides = (side(), side());
    t.tensor(line, elements, BF16, "rotated")
}
