//! Rotary positions (`megatron/core/models/common/embeddings/rope_utils.py`,
//! `rotary_pos_embedding.py`).

use super::ops::{grad, makes, passes};
use super::rank::Rank;
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage, Tensor};
use std::rc::Rc;

/// The table of one chunk (or of one latent layer): fp32, cut to this rank's part of the
/// sequence under context parallelism.
pub(super) fn table(c: &Rank, width: u64) -> Rc<Storage> {
    let make = |elements: u64| c.tape.storage(Line::Workspaces, elements * FP32, "rotary table");
    // Of packed documents, as long as the longest (`get_rotary_seq_len`).
    let rows = c.config.told.documents.map_or(c.config.full_sequence, |d| d.longest(c.config.full_sequence));
    let frequencies = make(rows * width / 2);
    let table = make(rows * width);
    drop(frequencies);
    if c.config.cp == 1 {
        return table;
    }
    make(c.config.sequence * width)
}

/// How a rotated slice is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Storing {
    /// Halves side by side.
    Halves,
    /// Pairs interleaved, as latent attention has them; they are taken apart first.
    Pairs,
}

/// Rotates `heads` of `width`.
pub(super) fn rotate(c: &Rank, source: &Tensor, heads: u64, width: u64, storing: Storing) -> Tensor {
    let elements = c.config.tokens * heads * width;
    if c.config.told.rope_fusion && storing == Storing::Halves {
        // `transformer_engine/pytorch/attention/rope.py` FusedRoPEFunc takes any strides and keeps
        // nothing but the table.
        let out = c.act(elements, "rotated heads");
        makes(c, source, &out, Vec::new(), elements, BF16);
        return out;
    }
    unfused(c, source, elements, width, storing)
}

/// Saves cosine and sine, each in bf16 for every call.
fn unfused(c: &Rank, source: &Tensor, elements: u64, width: u64, storing: Storing) -> Tensor {
    // `t[..., rot:]` has no columns, but its backward makes zeros of the full shape.
    let rest = Tensor::empty();
    makes(c, source, &rest, Vec::new(), elements, BF16);
    let t = match storing {
        Storing::Halves => source.clone(),
        Storing::Pairs => take_apart(c, source, elements),
    };
    let (cos, sin) = (factor(c, width), factor(c, width));
    let scaled = c.act(elements, "rope temporary");
    makes(c, &t, &scaled, vec![cos.clone()], elements, BF16);
    let turned = turn(c, &t, elements);
    let turned_scaled = c.act(elements, "rope temporary");
    makes(c, &turned, &turned_scaled, vec![sin.clone()], elements, BF16);
    drop(turned);
    let sum = c.act(elements, "rope temporary");
    passes(c, &[&scaled, &turned_scaled], &sum);
    drop((scaled, turned_scaled));
    let out = c.act(elements, "rotated heads");
    c.tape.record(vec![sum.edge(), rest.edge()], &[&out], Vec::new(), |_, grads, _| {
        vec![grads[0].as_ref().map(Tensor::alias), Some(Tensor::empty())]
    });
    // Factors and the sum are locals until here.
    drop((cos, sin, sum));
    out
}

/// Cosine or sine of the table: fp32 product, fp32 function, then bf16.
fn factor(c: &Rank, width: u64) -> Tensor {
    let elements = c.config.sequence * width;
    let angles = c.act_of(elements, FP32, "rope temporary");
    let _wide = c.act_of(elements, FP32, "rope temporary");
    drop(angles);
    c.act(elements, "rope factor")
}

/// Concatenates even and odd columns; backward is two slices, summed in place.
fn take_apart(c: &Rank, source: &Tensor, elements: u64) -> Tensor {
    let out = c.act(elements, "rope halves");
    c.tape.record(vec![source.edge()], &[&out], Vec::new(), move |t, _, _| {
        let even = grad(t, elements, "rope slice gradient");
        let _odd = grad(t, elements, "rope slice gradient");
        vec![Some(even)]
    });
    out
}

/// `_rotate_half`: a negated half, then both halves exchanged.
fn turn(c: &Rank, t: &Tensor, elements: u64) -> Tensor {
    let negated = c.act(elements / 2, "rope temporary");
    let out = c.act(elements, "rope temporary");
    drop(negated);
    c.tape.record(vec![t.edge()], &[&out], Vec::new(), move |t, _, _| {
        let _negated = grad(t, elements / 2, "rope half gradient");
        vec![Some(grad(t, elements, "rope gradient"))]
    });
    out
}
