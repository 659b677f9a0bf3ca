//! Residual streams around a block and behind the last layer, as `crates/launch/assets/fsdp2/mhc.py` mixes them.
//! Models of one's own are taken to mix them alike.

use super::super::Config;
use super::super::ops::{cast, grad, grad_of, linear};
use super::super::params::{Linear, Param, Step, Unit};
use super::super::rank::Rank;
use super::steps::{Incoming, Saves, map, matmul, repeated, split, times, wide};
use recipe::kinds::mhc::Mhc;
use replay::line::Line;
use replay::tape::{BF16, FP32, Tensor};
use std::rc::Rc;

/// `Weights`: a projection of all streams, and a scale for each set of what it gives.
pub(in super::super) struct Weights {
    sizes: Mhc,
    projection: Linear,
    bias: Rc<Param>,
    scale: Rc<Param>,
}

/// What a block is handed, and what its output is added by.
pub(in super::super) struct Entered {
    pub inner: Tensor,
    post: Tensor,
    mix: Tensor,
}

impl Weights {
    /// Around a block.
    pub fn around(c: &Config, unit: &mut Unit) -> Option<Weights> {
        c.mhc.as_ref().map(|mhc| Weights::new(c, mhc, mhc.weights(), 3, unit))
    }

    /// Behind the last layer.
    pub fn collapse(c: &Config, unit: &mut Unit) -> Option<Weights> {
        c.mhc.as_ref().map(|mhc| Weights::new(c, mhc, mhc.streams, 1, unit))
    }

    fn new(c: &Config, sizes: &Mhc, rows: u64, scales: u64, unit: &mut Unit) -> Weights {
        let (line, columns) = (Line::ReplicatedParams, sizes.streams * c.hidden);
        let weight = unit.add_stepped(line, (rows, columns), Step::of(c.matrix_optimizer, (1, rows, columns)));
        let bias = unit.add(line, rows, 1);
        let scale = unit.add(line, scales, 1);
        Weights { sizes: sizes.clone(), projection: Linear { weight, bias: None, adapter: None }, bias, scale }
    }

    /// `logits`: the norm of all streams, the product, its quotient, scale and bias.
    fn logits(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let (elements, tokens) = (x.elements(), self.tokens(c, x));
        let norm = c.act(tokens, "norm of streams");
        c.tape.record(vec![x.edge()], &[&norm], vec![x.clone(), norm.alias()], move |t, _, _saved| {
            // `grad * (self / norm).masked_fill_(norm == 0, 0)` (`FunctionsManual.cpp` linalg_vector_norm_backward).
            let _quotient = grad(t, elements, "streams over their norm");
            vec![Some(grad(t, elements, "norm input gradient"))]
        });
        let root = map(c, &norm, Saves::Nothing, "root of streams");
        drop(norm);
        let root = cast(c, &map(c, &root, Saves::Nothing, "root of streams"), FP32, "fp32 root");
        let projected = cast(c, &linear(c, x, &self.projection), FP32, "fp32 stream weights");
        let normed = times(c, &projected, &root, "normed stream weights");
        drop((projected, root));
        let scale = self.scales(c);
        let scaled = times(c, &normed, &scale, "scaled stream weights");
        drop((normed, scale));
        let (rows, bias) = (self.bias.elements(), wide(c, &self.bias));
        let out = c.act_of(scaled.elements(), FP32, "stream logits");
        c.tape.record(vec![scaled.edge(), bias.edge()], &[&out], Vec::new(), move |t, grads, _| {
            vec![grads[0].clone(), Some(grad_of(t, rows, FP32, "stream bias gradient"))]
        });
        out
    }

    /// One number a set, repeated for its weights.
    fn scales(&self, c: &Rank) -> Tensor {
        let scale = wide(c, &self.scale);
        let (rows, sets) = (self.bias.elements(), scale.elements());
        let out = c.act_of(rows, FP32, "scales of stream weights");
        c.tape.record(vec![scale.edge()], &[&out], Vec::new(), move |t, _, _| {
            vec![Some(grad_of(t, sets, FP32, "scale gradient"))]
        });
        out
    }

    fn tokens(&self, c: &Rank, x: &Tensor) -> u64 {
        x.elements() / (self.sizes.streams * c.config.hidden)
    }

    /// `collapse`: one stream of several.
    fn one_of(&self, c: &Rc<Rank>, weights: Tensor, x: &Tensor) -> Tensor {
        let pre = map(c, &weights, Saves::Output, "collapsing weights");
        drop(weights);
        let pre = map(c, &pre, Saves::Nothing, "collapsing weights");
        let pre = cast(c, &pre, BF16, "collapsing weights in bf16");
        matmul(c, [&pre, x], x.elements() / self.sizes.streams, Incoming::Dense)
    }

    /// Streams collapsed behind the last layer.
    pub fn behind_all(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let logits = self.logits(c, x);
        self.one_of(c, logits, x)
    }

    /// Streams collapsed for a block, and the weights that its output is added by.
    pub fn enter(&self, c: &Rc<Rank>, x: &Tensor) -> Entered {
        let (tokens, n) = (self.tokens(c, x), self.sizes.streams);
        let logits = self.logits(c, x);
        let [pre, post, mix] = split(c, &logits, [tokens * n, tokens * n, tokens * n * n]);
        drop(logits);
        let mix = cast(c, &self.balanced(c, &mix), BF16, "mixing weights in bf16");
        let post = map(c, &post, Saves::Output, "expanding weights");
        let post = cast(c, &map(c, &post, Saves::Nothing, "expanding weights"), BF16, "expanding weights in bf16");
        let inner = self.one_of(c, pre, x);
        Entered { inner, post, mix }
    }

    /// `_Balanced`: keeps logits alone. Each quotient of backward's own pass keeps its numerator and its divisor.
    fn balanced(&self, c: &Rank, logits: &Tensor) -> Tensor {
        let (elements, n, quotients) = (logits.elements(), self.sizes.streams, 2 * self.sizes.sinkhorn - 1);
        let out = c.act_of(elements, FP32, "mixing weights");
        let divided = c.act_of(elements, FP32, "mixing weights of an iteration");
        drop(divided);
        c.tape.record(vec![logits.edge()], &[&out], vec![logits.clone()], move |t, _, _saved| {
            let kept = |_| [elements, elements / n].map(|size| grad_of(t, size, FP32, "iteration of a mixing"));
            let _again: Vec<_> = (0..quotients).map(kept).collect();
            let _passed = grad_of(t, elements, FP32, "gradient inside a mixing");
            vec![Some(grad_of(t, elements, FP32, "mixing gradient"))]
        });
        out
    }
}

impl Entered {
    /// Streams mixed, and a block's output added to each: `addcmul` keeps the output and its weights.
    pub fn leave(self, c: &Rc<Rank>, x: &Tensor, added: &Tensor) -> Tensor {
        let elements = x.elements();
        let mixed = matmul(c, [&self.mix, x], elements, Incoming::Dense);
        let out = c.act(elements, "residual streams");
        let sizes = [self.post.elements(), added.elements()];
        let edges = vec![mixed.edge(), self.post.edge(), added.edge()];
        c.tape.record(edges, &[&out], vec![self.post.clone(), added.clone()], move |t, grads, _saved| {
            // Both products are there before either is summed down to its size.
            let _products = [(); 2].map(|()| grad(t, elements, "product with streams' gradient"));
            let sums = sizes.map(|size| Some(grad(t, size, "sum over streams")));
            grads.into_iter().take(1).chain(sums).collect()
        });
        out
    }
}

/// `spread`: a copy of token embeddings for every stream.
pub(in super::super) fn spread(c: &Rank, x: Tensor) -> Tensor {
    match &c.config.mhc {
        Some(mhc) => repeated(c, &x, mhc.streams, "residual streams"),
        None => x,
    }
}
