//! Single operations of torch that the blocks are written with: what each makes, what it saves and
//! what its backward makes. Widths are the first input's unless said otherwise.

use super::super::Param;
use super::super::ops::{cast, grad, grad_of, passes, pointwise, product, weight_grad};
use super::super::rank::Rank;
use replay::tape::{BF16, FP32, Tensor};
use std::rc::Rc;

/// Views of one tensor along a dim; their gradients are joined in a new tensor.
pub(super) fn split<const N: usize>(c: &Rank, x: &Tensor, sizes: [u64; N]) -> [Tensor; N] {
    let parts = sizes.map(|elements| x.part(elements));
    let (elements, width) = (x.elements(), x.width());
    let outputs: Vec<&Tensor> = parts.iter().collect();
    c.tape.record(vec![x.edge()], &outputs, Vec::new(), move |t, _, _| {
        vec![Some(grad_of(t, elements, width, "joined gradient"))]
    });
    parts
}

/// A copy in the same format; its gradient passes.
pub(super) fn copied(c: &Rank, x: &Tensor, name: &'static str) -> Tensor {
    let out = c.act_of(x.elements(), x.width(), name);
    passes(c, &[x], &out);
    out
}

/// A constant of the recipe; one is none.
pub(in super::super) fn by(c: &Rank, x: Tensor, factor: f64) -> Tensor {
    if factor == 1.0 { x } else { map(c, &x, Saves::Nothing, "multiplied") }
}

/// What a pointwise function saves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Saves {
    Nothing,
    Input,
    Output,
}

/// A function of one tensor, element by element.
pub(super) fn map(c: &Rank, x: &Tensor, saves: Saves, name: &'static str) -> Tensor {
    let (elements, width) = (x.elements(), x.width());
    let out = c.act_of(elements, width, name);
    let saved = match saves {
        Saves::Nothing => Vec::new(),
        Saves::Input => vec![x.clone()],
        Saves::Output => vec![out.alias()],
    };
    c.tape.record(vec![x.edge()], &[&out], saved, move |t, _, _saved| {
        vec![Some(grad_of(t, elements, width, "gradient"))]
    });
    out
}

/// A product of two tensors, of which the smaller is broadcast: saves what the other's gradient
/// needs. The smaller one's gradient is a product summed down.
pub(super) fn times(c: &Rank, x: &Tensor, y: &Tensor, name: &'static str) -> Tensor {
    let (elements, width) = (x.elements().max(y.elements()), x.width().max(y.width()));
    let out = c.act_of(elements, width, name);
    let sizes = [x, y].map(|side| (side.elements(), side.width()));
    let asks = [x, y].map(|side| side.edge().is_some());
    // A tensor is saved for the gradient of the other.
    let kept = [(x, asks[1]), (y, asks[0])].into_iter().filter(|(_, is_needed)| *is_needed);
    let saved = kept.map(|(side, _)| side.clone()).collect();
    c.tape.record(vec![x.edge(), y.edge()], &[&out], saved, move |t, _, _saved| {
        let gradient = |(size, own): (u64, u64)| {
            let product = grad_of(t, elements, width, "product gradient");
            if (size, own) == (elements, width) { product } else { grad_of(t, size, own, "summed gradient") }
        };
        [0, 1].map(|side| asks[side].then(|| gradient(sizes[side]))).to_vec()
    });
    out
}

/// How the gradient of a product lies in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Incoming {
    Dense,
    /// By position rather than by head: it is copied before the two products of backward.
    Strided,
}

/// A product over a width, batch by batch: [.., m, k] by [.., k, n]. Saves both.
pub(super) fn matmul(c: &Rc<Rank>, [x, y]: [&Tensor; 2], elements: u64, incoming: Incoming) -> Tensor {
    c.product();
    let out = c.act_of(elements, x.width(), "batched product");
    let (sizes, width, rank) = ([x.elements(), y.elements()], x.width(), c.clone());
    c.tape.record(vec![x.edge(), y.edge()], &[&out], vec![x.clone(), y.clone()], move |t, _, _saved| {
        rank.product();
        let _copy = (incoming == Incoming::Strided).then(|| grad_of(t, elements, width, "gradient by head"));
        sizes.map(|size| Some(grad_of(t, size, width, "matrix gradient"))).to_vec()
    });
    out
}

/// Each element copied to several heads of a group; backward sums.
pub(super) fn repeated(c: &Rank, x: &Tensor, times: u64, name: &'static str) -> Tensor {
    let (elements, width) = (x.elements(), x.width());
    let out = c.act_of(elements * times, width, name);
    c.tape.record(vec![x.edge()], &[&out], Vec::new(), move |t, _, _| {
        vec![Some(grad_of(t, elements, width, "sum over heads"))]
    });
    out
}

/// A parameter in fp32, of a few elements; its gradient is cast back.
pub(super) fn wide(c: &Rank, param: &Param) -> Tensor {
    let out = c.act_of(param.elements(), FP32, "fp32 parameter");
    let elements = param.elements();
    c.tape.record(vec![param.edge()], &[&out], Vec::new(), move |t, _, _| vec![Some(weight_grad(t, elements))]);
    out
}

/// A tensor times a weight of its last dim: saves the tensor for the weight's gradient, a product
/// summed down.
fn scaled(c: &Rank, x: &Tensor, weight: &Param, name: &'static str) -> Tensor {
    let (elements, width) = (x.elements(), x.width());
    let weights = weight.edge().map(|_| weight.elements());
    let out = c.act_of(elements, width, name);
    let saved = weights.iter().map(|_| x.clone()).collect();
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], saved, move |t, _, _saved| {
        let dx = grad_of(t, elements, width, "scaled gradient");
        let _product = weights.map(|_| grad_of(t, elements, width, "scale product"));
        vec![Some(dx), weights.map(|weights| weight_grad(t, weights))]
    });
    out
}

/// `softplus(wide(x) + bias)`: saves the sum.
pub(super) fn softplus(c: &Rank, x: &Tensor, bias: &Param) -> Tensor {
    let raw = cast(c, x, FP32, "fp32 steps");
    let (elements, heads) = (raw.elements(), bias.edge().map(|_| bias.elements()));
    let sum = c.act_of(elements, FP32, "biased steps");
    c.tape.record(vec![raw.edge(), bias.edge()], &[&sum], Vec::new(), move |t, grads, _| {
        vec![grads[0].clone(), heads.map(|heads| weight_grad(t, heads))]
    });
    drop(raw);
    map(c, &sum, Saves::Input, "steps")
}

/// `y.to(bf16) * silu(z)`.
pub(super) fn gated(c: &Rank, y: Tensor, z: Tensor) -> Tensor {
    let narrow = cast(c, &y, BF16, "mixer output");
    drop(y);
    let gate = pointwise(c, z, "gate");
    product(c, &narrow, &gate)
}

/// `GateNorm`: `rms_norm` over groups without a weight, then the weight.
pub(super) fn group_norm(c: &Rank, y: Tensor, groups: u64, weight: &Param) -> Tensor {
    let elements = y.elements();
    let normed = c.act(elements, "group norm");
    let statistics = c.act_of(groups, FP32, "group norm rsigma");
    c.tape.record(vec![y.edge()], &[&normed], vec![y.clone(), statistics], move |t, _, _saved| {
        vec![Some(grad(t, elements, "group norm gradient"))]
    });
    drop(y);
    scaled(c, &normed, weight, "gated norm output")
}
