//! Operations of torch: what each allocates and what it saves (`tools/autograd/derivatives.yaml`).

pub(super) use crate::grads::{grad, grad_of, weight_grad};

use super::params::{Adapter, Linear, NormParams, Param};
use super::rank::Rank;
use super::{peft, quantised};
use case::ways::AdapterLayers;
use recipe::kinds::{Activation, Norm};
use replay::line::Line;
use replay::tape::{BF16, FP32, Tape, Tensor};
use std::rc::Rc;

/// Records an operation whose backward makes one new gradient of the given size.
pub(super) fn makes(c: &Rank, x: &Tensor, out: &Tensor, saved: Vec<Tensor>, elements: u64, width: u64) {
    c.tape
        .record(vec![x.edge()], &[out], saved, move |t, _, _saved| vec![Some(grad_of(t, elements, width, "gradient"))]);
}

/// Records an operation whose backward hands the same gradient to every input.
pub(super) fn passes(c: &Rank, inputs: &[&Tensor], out: &Tensor) {
    let count = inputs.len();
    let edges = inputs.iter().map(|x| x.edge()).collect();
    c.tape.record(edges, &[out], Vec::new(), move |_, grads, _| vec![grads[0].clone(); count]);
}

/// A sum; saves nothing.
pub(super) fn add(c: &Rank, x: &Tensor, y: &Tensor) -> Tensor {
    let out = c.act_of(x.elements(), x.width(), "residual stream");
    passes(c, &[x, y], &out);
    out
}

/// A copy in another format; saves nothing, and its backward casts back.
pub(super) fn cast(c: &Rank, x: &Tensor, width: u64, name: &'static str) -> Tensor {
    let out = c.act_of(x.elements(), width, name);
    makes(c, x, &out, Vec::new(), x.elements(), x.width());
    out
}

/// `mm` over rows of `columns`: saves its input for the weight's gradient; backward makes the input's
/// gradient, then the weight's. The weight itself is the engine's to keep. An adapter adds its own.
pub(super) fn linear(c: &Rc<Rank>, x: &Tensor, params: &Linear) -> Tensor {
    if params.weight.format.is_quantised() {
        return quantised::linear(c, x, params);
    }
    c.product();
    let inputs = x.elements();
    let out = c.act(inputs / params.weight.columns * params.weight.rows, "projection");
    let mut edges = vec![x.edge(), params.weight.edge()];
    edges.extend(params.bias.iter().map(|bias| bias.edge()));
    let (rank, weight, bias) = (c.clone(), params.weight.clone(), params.bias.clone());
    let needs_grad = x.edge().is_some();
    let saved = if weight.edge().is_some() { vec![x.clone()] } else { Vec::new() };
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
        rank.product();
        let dx = needs_grad.then(|| grad(t, inputs, "projection input gradient"));
        let dw = weight.gradient(t);
        [dx, dw].into_iter().chain(bias.map(|bias| bias.gradient(t))).collect()
    });
    match &params.adapter {
        Some(adapter) => adapted(c, x, out, adapter),
        None => out,
    }
}

/// The forward hook of an adapter (`launch/assets/fsdp2/lora.py` adapt): both factors cast, two products, their
/// scale, and the sum with the projection's output.
pub(super) fn adapted(c: &Rc<Rank>, x: &Tensor, out: Tensor, adapter: &Adapter) -> Tensor {
    if c.config.ways.adapters == AdapterLayers::Peft {
        return peft::adapted(c, x, out, adapter);
    }
    let narrow = |factor: &Rc<Param>| {
        let cast = c.act(factor.elements(), "factor in bf16");
        let factor = factor.clone();
        c.tape.record(vec![factor.edge()], &[&cast], Vec::new(), move |t, _, _| {
            vec![Some(t.tensor(Line::Gradients, factor.elements(), FP32, "adapter gradient"))]
        });
        cast
    };
    let rows = x.elements() / adapter.down.columns;
    let low = factor_product(c, x, &narrow(&adapter.down), rows * adapter.rank);
    let high = factor_product(c, &low, &narrow(&adapter.up), out.elements());
    drop(low);
    let scaled = c.act(out.elements(), "scaled adapter output");
    makes(c, &high, &scaled, Vec::new(), out.elements(), BF16);
    drop(high);
    add(c, &out, &scaled)
}

/// A product with a factor: saves what the gradients of both sides ask for.
fn factor_product(c: &Rc<Rank>, x: &Tensor, factor: &Tensor, elements: u64) -> Tensor {
    c.product();
    let out = c.act(elements, "adapter product");
    let mut saved = vec![x.clone()];
    saved.extend(x.edge().map(|_| factor.clone()));
    let (rank, inputs, weights, needs_grad) = (c.clone(), x.elements(), factor.elements(), x.edge().is_some());
    c.tape.record(vec![x.edge(), factor.edge()], &[&out], saved, move |t, _, _saved| {
        rank.product();
        let dx = needs_grad.then(|| grad(t, inputs, "adapter input gradient"));
        vec![dx, Some(weight_grad(t, weights))]
    });
    out
}

/// `rms_norm` or `layer_norm` over rows of `width`: saves its input and fp32 statistics, one a row
/// or two (`aten/src/ATen/native/cuda/layer_norm_kernel.cu`).
pub(super) fn norm(c: &Rank, x: &Tensor, width: u64, params: &NormParams) -> Tensor {
    let elements = x.elements();
    let out = c.act(elements, "norm output");
    let statistics = |name| c.act_of(elements / width, FP32, name);
    let mut saved = vec![x.clone(), statistics("norm rsigma")];
    if !matches!(c.config.norm, Norm::RmsNorm | Norm::RmsNormBare) {
        saved.push(statistics("norm mean"));
    }
    let weights: Vec<_> = [params.weight.as_ref(), params.bias.as_ref()].into_iter().flatten().collect();
    let edges = [x.edge()].into_iter().chain(weights.iter().map(|w| w.edge())).collect();
    let weights: Vec<_> = weights.into_iter().cloned().collect();
    c.tape.record(edges, &[&out], saved, move |t, _, _saved| {
        let dx = grad(t, elements, "norm input gradient");
        [Some(dx)].into_iter().chain(weights.into_iter().map(|weight| weight.gradient(t))).collect()
    });
    out
}

/// The function between two projections, applied to `x` and multiplied by `up` when gated.
pub(super) fn activate(c: &Rank, x: Tensor, up: impl FnOnce() -> Option<Tensor>, function: Activation) -> Tensor {
    match function {
        Activation::SwiGlu | Activation::GeGlu | Activation::SwiGluOai if c.config.is_compiled => {
            let up = up().unwrap_or_else(|| x.clone());
            fused_gate(c, &x, &up)
        }
        Activation::SwiGlu | Activation::GeGlu => {
            let gate = pointwise(c, x, "activation");
            let up = up().unwrap_or_else(|| gate.clone());
            product(c, &gate, &up)
        }
        Activation::SwiGluOai => {
            // Operation by operation, as `GptOssExperts` has it: both clamped, `gate * sigmoid(1.702 * gate)`, one added.
            let gate = pointwise(c, x, "clamped gate");
            let score = {
                let scaled = c.act(gate.elements(), "scaled gate");
                makes(c, &gate, &scaled, Vec::new(), gate.elements(), BF16);
                let score = c.act(gate.elements(), "gate score");
                makes(c, &scaled, &score, vec![score.alias()], gate.elements(), BF16);
                score
            };
            let gate = product(c, &gate, &score);
            let clamped = pointwise(c, up().unwrap_or_else(|| gate.clone()), "clamped projection");
            let shifted = c.act(clamped.elements(), "shifted projection");
            makes(c, &clamped, &shifted, Vec::new(), clamped.elements(), BF16);
            drop(clamped);
            product(c, &gate, &shifted)
        }
        Activation::Gelu | Activation::Silu => pointwise(c, x, "activation output"),
        Activation::Relu2 => relu2(c, x),
        Activation::Relu => relu(c, x),
    }
}

/// ReLU: saves its result.
fn relu(c: &Rank, x: Tensor) -> Tensor {
    let out = c.act(x.elements(), "activation output");
    makes(c, &x, &out, vec![out.alias()], x.elements(), BF16);
    out
}

/// `silu` or `gelu`: saves its input.
pub(super) fn pointwise(c: &Rank, x: Tensor, name: &'static str) -> Tensor {
    let out = c.act(x.elements(), name);
    makes(c, &x, &out, vec![x.clone()], x.elements(), BF16);
    out
}

/// A product of two tensors of one size: saves both.
pub(super) fn product(c: &Rank, x: &Tensor, y: &Tensor) -> Tensor {
    let elements = x.elements();
    let out = c.act(elements, "activation output");
    c.tape.record(vec![x.edge(), y.edge()], &[&out], vec![x.clone(), y.clone()], move |t, _, _saved| {
        let dx = grad(t, elements, "gate gradient");
        vec![Some(dx), Some(grad(t, elements, "up gradient"))]
    });
    out
}

/// Gate and product as one compiled kernel: the partitioner keeps what products made and computes
/// the gate again (`torch/_functorch/partitioners.py`), so the gate's own output is not saved.
fn fused_gate(c: &Rank, x: &Tensor, y: &Tensor) -> Tensor {
    product(c, x, y)
}

/// Squared ReLU: `relu` saves its result, `pow` its input, which is the same.
fn relu2(c: &Rank, x: Tensor) -> Tensor {
    let elements = x.elements();
    let relu = c.act(elements, "relu output");
    makes(c, &x, &relu, vec![relu.alias()], elements, BF16);
    drop(x);
    let out = c.act(elements, "activation output");
    c.tape.record(vec![relu.edge()], &[&out], vec![relu.clone()], move |t, _, _saved| {
        // `grad * (exponent * self.pow(exponent - 1))`: one expression, whose temporaries end with it
        // (`torch/csrc/autograd/FunctionsManual.cpp` pow_backward).
        let _temporaries = (grad(t, elements, "pow temporary"), grad(t, elements, "pow temporary"));
        vec![Some(grad(t, elements, "pow input gradient"))]
    });
    out
}

/// Hidden states of this rank's part of the sequence, gathered for a tensor-parallel region; its
/// backward reduces and scatters (`torch/distributed/tensor/_redistribute.py`).
pub(super) fn enter(c: &Rank, x: &Tensor) -> Tensor {
    let config = &c.config;
    if config.tp == 1 {
        return x.clone();
    }
    let elements = x.elements();
    if !config.sp {
        // Nothing moves forward; backward sums the partial gradients into a copy.
        let out = x.alias();
        makes(c, x, &out, Vec::new(), elements, BF16);
        return out;
    }
    let out = c.comm(elements * config.tp, "gathered tokens");
    makes(c, x, &out, Vec::new(), elements, BF16);
    out
}

/// Partial sums of a row-parallel projection, reduced over tensor-parallel ranks and scattered
/// under sequence parallelism; its backward gathers, or hands on.
pub(super) fn leave(c: &Rank, x: Tensor) -> Tensor {
    let config = &c.config;
    if config.tp == 1 {
        return x;
    }
    let elements = x.elements();
    let kept = if config.sp { elements / config.tp } else { elements };
    let out = c.comm(kept, "reduced output");
    if config.sp {
        makes(c, &x, &out, Vec::new(), elements, BF16);
    } else {
        passes(c, &[&x], &out);
    }
    out
}

/// Gradients of parameters that a kernel makes together.
pub(super) fn weight_grads(t: &Tape, sizes: &[u64]) -> Vec<Option<Tensor>> {
    sizes.iter().map(|&elements| Some(weight_grad(t, elements))).collect()
}

/// Elements of some parameters.
pub(super) fn sizes_of(params: &[&Rc<Param>]) -> Vec<u64> {
    params.iter().map(|param| param.elements()).collect()
}
