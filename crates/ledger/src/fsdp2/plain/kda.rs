//! Kimi's delta attention as transformers writes it (`modeling_kimi_linear.py` KimiLinearDeltaAttention) over fla 0.6's
//! kernels (fla-org/flash-linear-attention, `fla/ops/kda/chunk.py` ChunkKDAFunction): unit queries and keys, values,
//! decays before and behind their sum over a chunk, and two triangles of every chunk are kept; states are computed
//! again. Decays are made in fp32, step by step. No measured row shows it.

use super::linear::Params;
use super::ops::{grad, grad_of, linear, makes, product, sizes_of, weight_grads};
use super::params::{Linear, Param, Unit};
use super::rank::Rank;
use recipe::kinds::kda::Kda;
use replay::line::Line;
use replay::tape::{BF16, BYTE, FP32, Tensor};
use std::rc::Rc;

/// Tokens a chunk covers, and a block of its diagonal (`chunk_size`, `BC`).
const CHUNK: u64 = 64;
const DIAGONAL: u64 = 16;

/// Projections (queries, keys and values; beta; decays through their latent, where they have one; gates likewise), and the convolution, steps and rates.
pub(super) fn params(m: &Kda, hidden: u64, unit: &mut Unit) -> (Vec<Linear>, Vec<Rc<Param>>) {
    let inner = m.inner();
    let from = if m.latents { m.head_dim } else { hidden };
    let through = |unit: &mut Unit| {
        let latent = m.latents.then(|| unit.linear(Line::ReplicatedParams, (m.head_dim, hidden), false));
        latent.into_iter().chain([unit.column(inner, from, false)]).collect::<Vec<_>>()
    };
    let mut projections = vec![unit.column(3 * inner, hidden, false), unit.column(m.heads, hidden, false)];
    projections.extend(through(unit));
    projections.extend(through(unit));
    let shapes = [(3 * inner, m.conv), (inner, 1), (m.heads, 1)];
    (projections, shapes.map(|(rows, columns)| unit.add(Line::TpParams, rows, columns)).into())
}

/// `x` is the normed input.
pub(super) fn forward(own: &Params, c: &Rc<Rank>, x: &Tensor, m: &Kda) -> Tensor {
    let (qkv, beta) = (&own.projections[0], &own.projections[1]);
    let (decay, gate) = own.projections[2..].split_at(own.projections.len() / 2 - 1);
    let through = |all: &[Linear]| all.iter().fold(x.clone(), |x, each| linear(c, &x, each));
    let packed = linear(c, x, qkv);
    let joined = c.act(packed.elements(), "queries, keys and values");
    makes(c, &packed, &joined, Vec::new(), packed.elements(), BF16);
    drop(packed);
    let convolved = own.convolve(c, &joined, &own.others[..1]);
    drop(joined);
    let decays = decays(own, c, through(decay));
    let beta = own.sigmoid(c, linear(c, x, beta));
    let out = scan(c, m, convolved, decays, beta);
    let gate = own.sigmoid(c, through(gate));
    let normed = own.normed(c, &out, m.head_dim);
    drop(out);
    product(c, &normed, &gate)
}

/// `KimiLinearForgetGate`: the exponential, the logarithm's input and the softplus are kept in fp32, and a mask.
fn decays(own: &Params, c: &Rank, x: Tensor) -> Tensor {
    let elements = x.elements();
    let out = c.act_of(elements, FP32, "decays");
    let mut kept: Vec<Tensor> = [(); 3].map(|()| c.act_of(elements, FP32, "softplus of decays")).into();
    kept.push(c.act_of(elements, BYTE, "mask of decays"));
    let weights: Vec<&Rc<Param>> = own.others[1..].iter().collect();
    let edges = [x.edge()].into_iter().chain(weights.iter().map(|p| p.edge())).collect();
    let sizes = sizes_of(&weights);
    c.tape.record(edges, &[&out], kept, move |t, _, _saved| {
        let _steps = [(); 2].map(|()| grad_of(t, elements, FP32, "softplus gradient"));
        [Some(grad(t, elements, "decay gradient"))].into_iter().chain(weight_grads(t, &sizes)).collect()
    });
    out
}

fn scan(c: &Rank, m: &Kda, convolved: Tensor, decays: Tensor, beta: Tensor) -> Tensor {
    let (tokens, total) = (c.config.tokens, convolved.elements());
    let (inner, steps) = (tokens * m.inner(), tokens * m.heads);
    let chunks = c.config.micro_batch * c.config.sequence.div_ceil(CHUNK);
    let states = chunks * m.inner() * m.head_dim;
    let triangles = steps * CHUNK;
    let mut kept =
        vec![c.act(2 * inner, "unit queries and keys"), c.act_of(2 * steps, FP32, "norms of queries and keys")];
    kept.extend([c.act(inner, "values"), c.act_of(inner, FP32, "summed decays")]);
    let parts = [c.act(inner, "w"), c.act(inner, "u"), c.act(inner, "decayed keys")];
    kept.extend([c.act(triangles, "query triangles"), c.act(triangles, "inverted triangles")]);
    drop(c.act_of(steps * DIAGONAL, FP32, "diagonal blocks"));
    let passed = (c.act(states, "chunk states"), c.act(inner, "new values"));
    let out = c.act(inner, "scan output");
    drop((parts, passed));
    kept.extend([decays.clone(), beta.clone()]);
    let of_beta = beta.elements();
    c.tape.record(vec![convolved.edge(), decays.edge(), beta.edge()], &[&out], kept, move |t, _, _saved| {
        let fp32 = |elements, name| grad_of(t, elements, FP32, name);
        let _parts = [(); 4].map(|()| grad(t, inner, "w, u and decayed keys"));
        let _passed = (grad(t, states, "chunk states"), grad(t, inner, "new values"));
        let _triangle = fp32(triangles, "triangle gradient");
        let _values = [(); 3].map(|()| grad(t, inner, "value gradient"));
        let _states = grad(t, states, "state gradients");
        let first = [(); 3].map(|()| fp32(inner, "query, key and decay gradients"));
        let _inverted = fp32(triangles, "triangle gradient");
        let second = [(); 2].map(|()| fp32(inner, "query and key gradients"));
        let of_decays = fp32(inner, "decay gradient");
        drop(first);
        drop(second);
        vec![Some(grad(t, total, "qkv gradient")), Some(of_decays), Some(grad(t, of_beta, "beta gradient"))]
    });
    out
}
