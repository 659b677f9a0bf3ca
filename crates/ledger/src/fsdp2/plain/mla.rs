//! Multi-latent attention as torchtitan writes it (`torchtitan/models/deepseek_v3/model.py`):
//! queries and keys are joined from their parts with and without position.
//!
//! Where values are narrower than keys, flash attention of this torch does not run, and the fused
//! kernel that does saves the same tensors.

use super::attention::{Heads, concatenate, flash, rotate};
use super::ops::{cast, enter, grad, leave, linear, makes, norm};
use super::params::{Latent, MlaParams};
use super::rank::Rank;
use replay::tape::{BF16, FP32, Tensor};
use std::rc::Rc;

/// `x` is the normed input.
pub(super) fn forward(c: &Rc<Rank>, params: &MlaParams, x: &Tensor) -> Tensor {
    let (sizes, tokens) = (&params.sizes, c.config.tokens);
    let count = c.config.attention().heads / c.config.tp;
    let heads = Heads { query: count, kv: count, qk_dim: sizes.qk_dim + sizes.rope_dim, v_dim: sizes.v_dim };
    let x = enter(c, x);
    let q = match &params.q_latent {
        Some(latent) => linear(c, &down(c, latent, &x), &params.q),
        None => linear(c, &x, &params.q),
    };
    let q = joined(c, &q, tokens * count, sizes.rope_dim, heads.qk_dim, "query");
    let width = sizes.kv_rank + sizes.rope_dim;
    let both = linear(c, &x, &params.kv_latent.down);
    let latent = both.part(tokens * sizes.kv_rank);
    let position = both.part(tokens * sizes.rope_dim);
    c.tape.record(vec![both.edge()], &[&latent, &position], Vec::new(), move |t, _, _| {
        vec![Some(grad(t, tokens * width, "latent gradient"))]
    });
    drop(both);
    let position = if c.config.rotates { rotate(c, &position) } else { position };
    let latent = match &params.kv_latent.norm {
        Some(weight) => norm(c, &latent, sizes.kv_rank, weight),
        None => latent,
    };
    // Keys without position and values are one projection; values stay a slice of it.
    let kv = linear(c, &latent, &params.kv);
    let k = concatenate(c, &[&kv, &position], tokens * count * heads.qk_dim, "key");
    let out = flash(c, [&q, &k, &kv], heads);
    drop((q, k, kv, position, latent));
    let out = match &params.gate {
        Some(gate) => opened(c, out, linear(c, &x, gate)),
        None => out,
    };
    leave(c, linear(c, &out, &params.out))
}

/// The output times the sigmoid of a gate a head, made in fp32 (`modeling_bailing_hybrid.py` BailingHybridAttention).
fn opened(c: &Rank, out: Tensor, gate: Tensor) -> Tensor {
    let wide = cast(c, &gate, FP32, "fp32 gates");
    let open = c.act_of(gate.elements(), FP32, "sigmoid of gates");
    makes(c, &wide, &open, vec![open.alias()], gate.elements(), FP32);
    let open = cast(c, &open, BF16, "gates");
    let (elements, of_gates) = (out.elements(), gate.elements());
    let opened = c.act(elements, "gated output");
    let saved = vec![out.clone(), open.clone()];
    c.tape.record(vec![out.edge(), open.edge()], &[&opened], saved, move |t, _, _saved| {
        let dx = grad(t, elements, "attention output gradient");
        drop(grad(t, elements, "product before its sum"));
        vec![Some(dx), Some(grad(t, of_gates, "gate gradient"))]
    });
    opened
}

/// Into a latent and through its norm.
fn down(c: &Rc<Rank>, latent: &Latent, x: &Tensor) -> Tensor {
    let out = linear(c, x, &latent.down);
    match &latent.norm {
        Some(weight) => norm(c, &out, latent.down.weight.rows, weight),
        None => out,
    }
}

/// A projection of heads whose slice of `turned` is rotated and joined to the rest again.
fn joined(c: &Rank, x: &Tensor, rows: u64, turned: u64, width: u64, name: &'static str) -> Tensor {
    if !c.config.rotates {
        return x.clone();
    }
    let part = x.part(rows * turned);
    c.tape.record(vec![x.edge()], &[&part], Vec::new(), move |t, _, _| {
        vec![Some(grad(t, rows * width, "slice gradient"))]
    });
    let turned = rotate(c, &part);
    concatenate(c, &[x, &turned], rows * width, name)
}
