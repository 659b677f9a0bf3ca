//! RWKV-7's time mixing as flash-linear-attention 0.6 runs it (fla-org/flash-linear-attention, `fla/layers/rwkv7.py` RWKV7Attention)
//! over its kernels (`fla/ops/rwkv7/{fused_addcmul,fused_k_update,gate_output_correction}.py`,
//! `fla/ops/generalized_delta_rule/dplr/chunk.py` ChunkDPLRDeltaRuleFunction): the scan keeps its six inputs and computes everything
//! else again in backward. No measured row shows it.

use super::linear::Params;
use super::ops::{grad, grad_of, linear, makes, product, sizes_of, weight_grad, weight_grads};
use super::params::{Linear, Param, Unit};
use super::rank::Rank;
use recipe::kinds::rwkv7::Rwkv7;
use replay::line::Line;
use replay::tape::{BF16, FP32, Tensor};
use std::rc::Rc;

/// Tokens a chunk of the scan covers (`chunk_size=64`).
const CHUNK: u64 = 64;

/// Where projections stand: receptance, keys, values, then each latent and what is made of it.
const R: usize = 0;
const K: usize = 1;
const V: usize = 2;
const DECAY: usize = 3;
const RATE: usize = 5;
const GATE: usize = 7;
const FIRST: usize = 9;

/// Shares of the token before for six uses.
const SHARES: usize = 6;

/// Projections in the order above; shares, then scales of keys and the bonus of a token for itself.
pub(super) fn params(m: &Rwkv7, hidden: u64, is_first: bool, unit: &mut Unit) -> (Vec<Linear>, Vec<Rc<Param>>) {
    let (keys, values) = (m.keys(), m.values());
    let mut others: Vec<_> = (0..SHARES).map(|_| unit.add(Line::ReplicatedParams, hidden, 1)).collect();
    others.extend((0..3).map(|_| unit.add(Line::TpParams, keys, 1)));
    let mut projections: Vec<_> = [keys, keys, values].map(|rows| unit.column(rows, hidden, false)).into();
    let mut latents = vec![(m.decay_rank, keys, true), (m.rate_rank, keys, true), (m.gate_rank, values, false)];
    latents.extend((!is_first).then_some((m.value_rank, values, true)));
    for (rank, rows, has_bias) in latents {
        projections.push(unit.linear(Line::ReplicatedParams, (rank, hidden), false));
        projections.push(unit.column(rows, rank, has_bias));
    }
    (projections, others)
}

/// `x` is the normed input.
pub(super) fn forward(own: &Params, c: &Rc<Rank>, x: &Tensor, m: &Rwkv7) -> Tensor {
    let at = |index: usize| &own.projections[index];
    let through = |x: &Tensor, latent: usize| linear(c, &linear(c, x, at(latent)), at(latent + 1));
    let [xr, xw, xk, xv, xa, xg] = mixed(c, x, &own.others[..SHARES]);
    let r = linear(c, &xr, at(R));
    drop(xr);
    let latent = own.sigmoid(c, linear(c, &xw, at(DECAY)));
    drop(xw);
    let decay = own.sigmoid(c, linear(c, &latent, at(DECAY + 1)));
    let w = scaled(c, &decay);
    drop((latent, decay));
    let (k, v) = (linear(c, &xk, at(K)), linear(c, &xv, at(V)));
    drop(xk);
    let v = match own.projections.len() > FIRST {
        true => drawn(c, &v, &own.sigmoid(c, through(&xv, FIRST))),
        false => {
            c.first.replace(Some(v.clone()));
            v
        }
    };
    drop(xv);
    let rate = own.sigmoid(c, through(&xa, RATE));
    drop(xa);
    let opened = own.sigmoid(c, linear(c, &xg, at(GATE)));
    let gate = linear(c, &opened, at(GATE + 1));
    drop((xg, opened));
    let unit_keys = unit(c, &times(c, &k, &own.others[SHARES]), m);
    let k = raised(c, &k, &rate, &own.others[SHARES + 1]);
    let (against, towards) = (scaled(c, &unit_keys), product(c, &unit_keys, &rate));
    drop((unit_keys, rate));
    let out = scan(c, m, [&r, &k, &v, &against, &towards, &w]);
    drop((against, towards, w));
    let normed = own.normed(c, &out, m.v_dim);
    drop(out);
    corrected(c, [&normed, &r, &k, &v, &gate], &own.others[SHARES + 2])
}

/// `token_shift` and `fused_addcmul_rwkv7`: six mixtures of one input, which keep it and its difference to the token before.
fn mixed(c: &Rank, x: &Tensor, shares: &[Rc<Param>]) -> [Tensor; 6] {
    let elements = x.elements();
    let delta = c.act(elements, "difference to the token before");
    makes(c, x, &delta, Vec::new(), elements, BF16);
    let outs = [(); SHARES].map(|()| c.act(elements, "mixed input"));
    let edges = [x.edge(), delta.edge()].into_iter().chain(shares.iter().map(|p| p.edge())).collect();
    let sizes = sizes_of(&shares.iter().collect::<Vec<_>>());
    c.tape.record(edges, &outs.each_ref(), vec![x.clone(), delta.clone()], move |t, _, _saved| {
        let of_inputs = [(); 2].map(|()| Some(grad(t, elements, "gradient of a mixed input")));
        of_inputs.into_iter().chain(weight_grads(t, &sizes)).collect()
    });
    outs
}

/// A constant times a tensor: keeps nothing.
fn scaled(c: &Rank, x: &Tensor) -> Tensor {
    let out = c.act(x.elements(), "scaled");
    makes(c, x, &out, Vec::new(), x.elements(), BF16);
    out
}

/// A tensor times a vector: keeps the tensor.
fn times(c: &Rank, x: &Tensor, by: &Rc<Param>) -> Tensor {
    let (elements, size) = (x.elements(), by.elements());
    let out = c.act(elements, "scaled keys");
    c.tape.record(vec![x.edge(), by.edge()], &[&out], vec![x.clone()], move |t, _, _saved| {
        let dx = grad(t, elements, "key gradient");
        drop(grad(t, elements, "product before its sum"));
        vec![Some(dx), Some(weight_grad(t, size))]
    });
    out
}

/// `torch.lerp` towards the first layer's values: keeps both and the weight.
fn drawn(c: &Rank, v: &Tensor, weight: &Tensor) -> Tensor {
    let first = c.first.borrow().clone().unwrap_or_else(|| v.clone());
    let elements = v.elements();
    let out = c.act(elements, "values drawn to the first layer's");
    let saved = vec![v.clone(), first.clone(), weight.clone()];
    c.tape.record(vec![v.edge(), first.edge(), weight.edge()], &[&out], saved, move |t, _, _saved| {
        [(); 3].map(|()| Some(grad(t, elements, "gradient of drawn values"))).to_vec()
    });
    out
}

/// `l2_norm`: keeps its output and a factor a head.
fn unit(c: &Rank, x: &Tensor, m: &Rwkv7) -> Tensor {
    let out = c.act(x.elements(), "unit keys");
    let factors = c.act_of(x.elements() / m.head_dim, FP32, "norms of keys");
    makes(c, x, &out, vec![out.alias(), factors], x.elements(), BF16);
    out
}

/// `fused_k_rwkv7`: keeps keys and rates.
fn raised(c: &Rank, k: &Tensor, rate: &Tensor, by: &Rc<Param>) -> Tensor {
    let (elements, size) = (k.elements(), by.elements());
    let out = c.act(elements, "keys of the scan");
    c.tape.record(
        vec![k.edge(), rate.edge(), by.edge()],
        &[&out],
        vec![k.clone(), rate.clone()],
        move |t, _, _saved| {
            let both = [(); 2].map(|()| Some(grad(t, elements, "key and rate gradients")));
            both.into_iter().chain([Some(weight_grad(t, size))]).collect()
        },
    );
    out
}

/// What the chunked scan makes and gives back: sums of decays in fp32, triangles of a chunk, decayed inputs, states.
#[derive(Clone, Copy)]
struct Sizes {
    keys: u64,
    values: u64,
    triangles: u64,
    states: u64,
}

impl Sizes {
    /// Allocates it all by a function of elements and width; what lives together is returned together.
    fn all(self, make: &dyn Fn(u64, u64, &'static str) -> Tensor) -> Vec<Tensor> {
        let mut live: Vec<Tensor> = (0..2).map(|_| make(self.keys, FP32, "summed decays")).collect();
        live.extend((0..2).map(|_| make(self.triangles, FP32, "triangles")));
        live.extend((0..2).map(|_| make(self.triangles, BF16, "triangles")));
        live.extend((0..4).map(|_| make(self.keys, BF16, "decayed inputs")));
        live.extend([make(self.keys, BF16, "w"), make(self.values, BF16, "u")]);
        live.push(make(self.triangles, BF16, "inverted triangles"));
        live.extend([make(self.states, BF16, "chunk states"), make(self.values, BF16, "new values")]);
        live
    }
}

/// `chunk_dplr_delta_rule`: keeps its inputs; backward makes what forward gave back again, and gradients beside it.
fn scan(c: &Rank, m: &Rwkv7, inputs: [&Tensor; 6]) -> Tensor {
    let tokens = c.config.tokens;
    let chunks = c.config.micro_batch * c.config.sequence.div_ceil(CHUNK);
    let (keys, values) = (tokens * m.keys(), tokens * m.values());
    let sizes = Sizes { keys, values, triangles: tokens * m.heads * CHUNK, states: chunks * m.values() * m.head_dim };
    let given_back = sizes.all(&|elements, width, name| c.act_of(elements, width, name));
    let out = c.act(values, "scan output");
    drop(given_back);
    let edges = inputs.map(Tensor::edge).to_vec();
    c.tape.record(edges, &[&out], inputs.map(Tensor::clone).to_vec(), move |t, _, _saved| {
        let _again = sizes.all(&|elements, width, name| grad_of(t, elements, width, name));
        let _states = grad(t, sizes.states, "state gradients");
        let _triangles = [(); 4].map(|()| grad_of(t, sizes.triangles, FP32, "triangle gradients"));
        let of_key = || Some(grad(t, sizes.keys, "gradient of a scan's input"));
        let decay = Some(grad_of(t, sizes.keys, FP32, "decay gradient"));
        vec![of_key(), of_key(), Some(grad(t, sizes.values, "value gradient")), of_key(), of_key(), decay]
    });
    out
}

/// `gate_output_correction`: the bonus of a token for itself, and the gate; keeps all it reads.
fn corrected(c: &Rank, inputs: [&Tensor; 5], bonus: &Rc<Param>) -> Tensor {
    let out = c.act(inputs[0].elements(), "gated output");
    let (each, size) = (inputs.map(Tensor::elements), bonus.elements());
    let edges = inputs.map(Tensor::edge).into_iter().chain([bonus.edge()]).collect();
    c.tape.record(edges, &[&out], inputs.map(Tensor::clone).to_vec(), move |t, _, _saved| {
        let of_inputs = each.map(|elements| Some(grad(t, elements, "gradient of a gated part")));
        of_inputs.into_iter().chain([Some(weight_grad(t, size))]).collect()
    });
    out
}
