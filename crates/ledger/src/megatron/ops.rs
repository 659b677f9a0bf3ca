//! Small operations of torch and Transformer Engine: what each allocates and saves.

use crate::grads::MULTIPROCESSORS;
pub(super) use crate::grads::{grad, grad_of, weight_grad};

use super::params::{Norm, Param};
use super::rank::{Rank, Tuned};
use recipe::kinds::Activation;
use replay::line::Line;
use replay::tape::{BF16, FP32, Tape, Tensor};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The product of a backward that makes gradients of weights.
pub(super) struct WeightProduct {
    /// Rows and elements of each weight.
    weights: Vec<(u64, u64)>,
    fusion: Option<Rc<Dummies>>,
}

/// Stand-ins for gradients that products added to the buffer themselves: one of each shape, made at
/// first use and kept (`transformer_engine/pytorch/module/base.py` `get_dummy_wgrad`).
#[derive(Default)]
pub(super) struct Dummies(RefCell<BTreeMap<(u64, u64), Tensor>>);

impl WeightProduct {
    /// A product of torch's, which makes the gradient itself.
    pub fn plain(weight: &Param) -> WeightProduct {
        WeightProduct { weights: vec![(weight.rows, weight.elements)], fusion: None }
    }

    /// A product that adds the gradient to the buffer where it is told to.
    pub fn of(c: &Rank, weight: &Param) -> WeightProduct {
        WeightProduct { fusion: c.dummies.clone(), ..WeightProduct::plain(weight) }
    }

    /// The same of several weights.
    pub fn of_all(c: &Rank, weights: &[Rc<Param>]) -> WeightProduct {
        let weights = weights.iter().map(|weight| (weight.rows, weight.elements)).collect();
        WeightProduct { weights, fusion: c.dummies.clone() }
    }

    /// The gradients from their operands, or nothing yet when backward is split and the product has to
    /// wait for its turn.
    pub fn grads(&self, t: &Tape, operands: Vec<Tensor>) -> Vec<Option<Tensor>> {
        if t.is_deferring() {
            t.defer(operands, self.weights.iter().map(|weight| weight.1).collect());
            return vec![None; self.weights.len()];
        }
        self.weights.iter().map(|&weight| Some(self.made(t, weight))).collect()
    }

    /// The same of one weight.
    pub fn grad(&self, t: &Tape, operands: Vec<Tensor>) -> Option<Tensor> {
        self.grads(t, operands).pop().flatten()
    }

    fn made(&self, t: &Tape, weight: (u64, u64)) -> Tensor {
        let Some(dummies) = &self.fusion else { return weight_grad(t, weight.1) };
        let make = || t.tensor(Line::Gradients, weight.1, BF16, "dummy weight gradient");
        dummies.0.borrow_mut().entry(weight).or_insert_with(make).clone()
    }
}

/// Records an operation whose backward makes one new gradient of the given size.
pub(super) fn makes(c: &Rank, x: &Tensor, out: &Tensor, saved: Vec<Tensor>, elements: u64, width: u64) {
    c.tape.record(vec![x.edge()], &[out], saved, move |t, _, _| vec![Some(grad_of(t, elements, width, "gradient"))]);
}

/// Records an operation whose backward hands the same gradient to every input.
pub(super) fn passes(c: &Rank, inputs: &[&Tensor], out: &Tensor) {
    let count = inputs.len();
    let edges = inputs.iter().map(|x| x.edge()).collect();
    c.tape.record(edges, &[out], Vec::new(), move |_, grads, _| vec![grads[0].clone(); count]);
}

/// Adds the residual (`megatron/core/fusions/fused_bias_dropout.py`, compiled, no dropout): saves
/// nothing.
pub(super) fn add(c: &Rank, x: &Tensor, residual: &Tensor) -> Tensor {
    let out = c.act_of(x.elements(), x.width(), "residual stream");
    if c.config.fuses_residual() {
        c.tunes(Tuned::Residual);
    }
    passes(c, &[x, residual], &out);
    out
}

/// The same where a projection left its bias to be added here.
pub(super) fn add_with_bias(c: &Rank, x: &Tensor, residual: &Tensor, bias: &Param) -> Tensor {
    let biased = (!c.config.fuses_residual()).then(|| c.act_of(x.elements(), x.width(), "biased output"));
    let out = c.act_of(x.elements(), x.width(), "residual stream");
    drop(biased);
    if c.config.fuses_residual() {
        c.tunes(Tuned::Residual);
    }
    let (edges, elements) = (vec![x.edge(), residual.edge(), bias.edge()], bias.elements);
    c.tape.record(edges, &[&out], Vec::new(), move |t, grads, _| {
        vec![grads[0].clone(), grads[0].clone(), Some(weight_grad(t, elements))]
    });
    out
}

/// A contiguous copy of `elements`.
pub(super) fn copy(c: &Rank, x: &Tensor, elements: u64, name: &'static str) -> Tensor {
    let out = c.act_of(elements, x.width(), name);
    passes(c, &[x], &out);
    out
}

/// Partial sums of a norm's weight gradient (`transformer_engine/common/normalization`).
pub(super) fn norm_partials(t: &Tape, width: u64) -> Tensor {
    grad_of(t, MULTIPROCESSORS * width, FP32, "norm partials")
}

/// An RMSNorm of rows of `width`; saves its input and one fp32 a row
/// (`transformer_engine/pytorch/ops/basic/rmsnorm.py`).
pub(super) fn rmsnorm(c: &Rank, x: &Tensor, width: u64, weight: &Param) -> Tensor {
    let elements = x.elements();
    let out = c.act(elements, "norm output");
    let inverse = c.act_of(elements / width, FP32, "norm rsigma");
    let weight_elements = weight.elements;
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], vec![x.clone(), inverse], move |t, _, _saved| {
        let dx = grad(t, elements, "norm input gradient");
        let _partials = norm_partials(t, width);
        vec![Some(dx), Some(weight_grad(t, weight_elements))]
    });
    out
}

/// A norm of the model's kind. A LayerNorm saves the mean besides, and sums its shift's gradient
/// in partials of its own (`transformer_engine/common/normalization/layernorm`).
pub(super) fn norm(c: &Rank, x: &Tensor, width: u64, norm: &Norm) -> Tensor {
    let Some(bias) = &norm.bias else { return rmsnorm(c, x, width, &norm.weight) };
    let elements = x.elements();
    let out = c.act(elements, "norm output");
    let (mean, inverse) =
        (c.act_of(elements / width, FP32, "norm mean"), c.act_of(elements / width, FP32, "norm rsigma"));
    let edges = vec![x.edge(), norm.weight.edge(), bias.edge()];
    c.tape.record(edges, &[&out], vec![x.clone(), mean, inverse], move |t, _, _saved| {
        let dx = grad(t, elements, "norm input gradient");
        let _partials = (norm_partials(t, width), norm_partials(t, width));
        vec![Some(dx), Some(weight_grad(t, width)), Some(weight_grad(t, width))]
    });
    out
}

/// An activation in one kernel that saves its input of `input` elements, and makes a gradient of
/// that size: SwiGLU and GeGLU over packed gate and up, GELU, SiLU
/// (`megatron/core/fusions/fused_bias_swiglu.py`, `fused_bias_geglu.py`, `fused_bias_gelu.py`).
fn in_one_kernel(c: &Rank, x: &Tensor, elements: u64, input: u64) -> Tensor {
    let out = c.act(elements, "activation output");
    c.tunes(Tuned::Activation);
    makes(c, x, &out, vec![x.clone()], input, BF16);
    out
}

/// The same with a bias that the projection before left to it (`fused_bias_gelu.py` GeLUFunction).
pub(super) fn activate_with_bias(c: &Rank, x: &Tensor, elements: u64, bias: &Param) -> Tensor {
    let out = c.act(elements, "activation output");
    let (input, bias_elements) = (x.elements(), bias.elements);
    c.tape.record(vec![x.edge(), bias.edge()], &[&out], vec![x.clone()], move |t, _, _saved| {
        vec![Some(grad(t, input, "gradient")), Some(weight_grad(t, bias_elements))]
    });
    out
}

/// Squared ReLU as torch does it: `relu` saves its result, `pow` its input, which is the same.
pub(super) fn relu2(c: &Rank, x: &Tensor, elements: u64) -> Tensor {
    let relu = c.act(elements, "relu output");
    makes(c, x, &relu, vec![relu.alias()], elements, BF16);
    let out = c.act(elements, "activation output");
    c.tape.record(vec![relu.edge()], &[&out], vec![relu.clone()], move |t, _, _saved| {
        // grad · (2 · x): the factor, its product with two, then the result.
        let factor = grad(t, elements, "pow temporary");
        let _scaled = grad(t, elements, "pow temporary");
        drop(factor);
        vec![Some(grad(t, elements, "pow input gradient"))]
    });
    out
}

/// The function between the projections of a feed-forward block.
pub(super) fn activate(c: &Rank, x: &Tensor, elements: u64, activation: Activation) -> Tensor {
    match activation {
        // Dense blocks with gpt-oss' unit are refused (`layout/src/engines`).
        Activation::SwiGlu | Activation::GeGlu | Activation::SwiGluOai => in_one_kernel(c, x, elements, 2 * elements),
        // Megatron has no ReLU (`supported.rs`).
        Activation::Gelu | Activation::Silu | Activation::Relu => in_one_kernel(c, x, elements, elements),
        // `megatron/core/activations.py` compiles it, which rows of Megatron-Core by itself do without.
        Activation::Relu2 if c.config.is_trained() => in_one_kernel(c, x, elements, elements),
        Activation::Relu2 => relu2(c, x, elements),
    }
}
