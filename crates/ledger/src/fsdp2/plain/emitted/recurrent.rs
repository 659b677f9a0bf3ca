//! The recurrent block: a short convolution, then a walk over the sequence that keeps the state of
//! every position, in fp32 (`model.py` Recurrent, `walk.py`). Not replayed under tensor
//! parallelism, where its norm spans ranks.

use super::super::Config;
use super::super::ops::{add, cast, grad_of, linear};
use super::super::params::{Linear, Param, Unit};
use super::super::rank::Rank;
use super::conv::Conv;
use super::steps::{Saves, gated, group_norm, map, repeated, softplus, split, times, wide};
use super::{projection, vector};
use recipe::kinds::m2rnn::M2rnn;
use replay::line::Line;
use replay::tape::{FP32, Tensor};
use std::rc::Rc;

pub(crate) struct Recurrent {
    sizes: M2rnn,
    in_proj: Linear,
    conv: Conv,
    a_log: Rc<Param>,
    dt_bias: Rc<Param>,
    state_weight: Rc<Param>,
    d: Rc<Param>,
    norm: Rc<Param>,
    out_proj: Linear,
}

impl Recurrent {
    pub(super) fn new(c: &Config, unit: &mut Unit) -> Recurrent {
        let sizes = c.recurrent().clone();
        let (shared, inner) = (sizes.qk_heads * sizes.key_dim, sizes.heads * sizes.value_dim);
        let in_proj = projection(c, unit, "recurrent.in_proj", (2 * shared + 2 * inner + sizes.heads, c.hidden));
        let conv = Conv::new(unit, 2 * shared + inner, sizes.conv, sizes.conv_bias);
        let [a_log, dt_bias] = [(); 2].map(|()| vector(unit, sizes.heads));
        let state_weight = unit.add(Line::TpParams, sizes.heads, sizes.value_dim * sizes.value_dim);
        let d = unit.add(Line::TpParams, sizes.heads, sizes.value_dim);
        let norm = vector(unit, inner);
        let out_proj = projection(c, unit, "recurrent.out_proj", (c.hidden, inner));
        Recurrent { sizes, in_proj, conv, a_log, dt_bias, state_weight, d, norm, out_proj }
    }

    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let (tokens, s) = (c.config.tokens, &self.sizes);
        let (shared, inner) = (tokens * s.qk_heads * s.key_dim, tokens * s.heads * s.value_dim);
        let packed = linear(c, x, &self.in_proj);
        let [qkv, forget, gate] = split(c, &packed, [2 * shared + inner, tokens * s.heads, inner]);
        let mixed = cast(c, &self.conv.forward(c, &qkv), FP32, "fp32 queries, keys and values");
        let [q, k, v] = split(c, &mixed, [shared, shared, inner]);
        let by_head = |x: &Tensor| repeated(c, x, s.heads / s.qk_heads, "queries or keys by head");
        let (q, k) = (by_head(&q), by_head(&k));
        let keep = self.kept(c, &forget);
        let y = self.walked(c, [&keep, &q, &k, &v]);
        drop((keep, q, k));
        let y = add(c, &y, &times(c, &wide(c, &self.d), &v, "skip"));
        drop((v, mixed));
        let y = gated(c, y, gate);
        let y = group_norm(c, y, tokens, &self.norm);
        drop(packed);
        linear(c, &y, &self.out_proj)
    }

    /// What a step keeps of the state.
    fn kept(&self, c: &Rc<Rank>, forget: &Tensor) -> Tensor {
        let steps = softplus(c, forget, &self.dt_bias);
        let negative = map(c, &steps, Saves::Nothing, "negative steps");
        let rate = map(c, &wide(c, &self.a_log), Saves::Output, "decay rates");
        map(c, &times(c, &negative, &rate, "log decays"), Saves::Output, "kept shares")
    }

    /// The walk: what it saves, and the gradients its backward fills in.
    fn walked(&self, c: &Rc<Rank>, inputs: [&Tensor; 4]) -> Tensor {
        c.product();
        let (s, config) = (&self.sizes, &c.config);
        let state = config.micro_batch * s.heads * s.key_dim * s.value_dim;
        let weight = wide(c, &self.state_weight);
        let states = c.act_of((config.sequence + 1) * state, FP32, "states");
        let out = c.act_of(inputs[3].elements(), FP32, "recurrent output");
        let mut edges: Vec<_> = inputs.iter().map(|x| x.edge()).collect();
        edges.push(weight.edge());
        let mut saved: Vec<Tensor> = inputs.map(Tensor::clone).to_vec();
        let (sizes, weights, batch) = (inputs.map(Tensor::elements), weight.elements(), config.micro_batch);
        saved.extend([weight, states]);
        let rank = c.clone();
        c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
            rank.product();
            let made = |size| Some(grad_of(t, size, FP32, "recurrent gradient"));
            let mut made: Vec<_> = sizes.iter().copied().map(made).collect();
            let apart = grad_of(t, batch * weights, FP32, "weight gradients by sequence");
            made.push(Some(grad_of(t, weights, FP32, "recurrent gradient")));
            drop(apart);
            made
        });
        out
    }
}
