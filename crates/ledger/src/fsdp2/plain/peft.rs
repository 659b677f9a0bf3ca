//! A projection inside peft's own layer (peft 0.21, `tuners/lora/layer.py` Linear.forward, `tuners/lora/bnb.py`
//! Linear4bit.forward): the input is cast to the factors' fp32 and kept so, and the sum is taken in fp32 beside a bf16
//! base, or in bf16 beside a copy of what a quantised base gave.

use super::ops::{add, cast, grad_of, makes};
use super::params::{Adapter, Param};
use super::rank::Rank;
use replay::line::Line;
use replay::tape::{BF16, FP32, Tensor};
use std::rc::Rc;

pub(super) fn adapted(c: &Rc<Rank>, x: &Tensor, out: Tensor, adapter: &Adapter) -> Tensor {
    let elements = out.elements();
    let is_quantised = c.config.ways.base.is_quantised();
    let out = if is_quantised { cloned(c, out) } else { out };
    let wide = cast(c, x, FP32, "fp32 input");
    let rows = wide.elements() / adapter.down.columns;
    let low = product(c, &wide, &adapter.down, rows * adapter.rank);
    let high = product(c, &low, &adapter.up, elements);
    drop(low);
    let scaled = c.act_of(elements, FP32, "scaled adapter output");
    makes(c, &high, &scaled, Vec::new(), elements, FP32);
    drop(high);
    if is_quantised {
        let narrow = cast(c, &scaled, BF16, "adapter output");
        drop(scaled);
        return add(c, &out, &narrow);
    }
    let sum = c.act_of(elements, FP32, "projection with its adapter");
    c.tape.record(vec![out.edge(), scaled.edge()], &[&sum], Vec::new(), move |t, grads, _| {
        vec![Some(grad_of(t, elements, BF16, "projection gradient")), grads[0].clone()]
    });
    drop((out, scaled));
    cast(c, &sum, BF16, "projection with its adapter")
}

/// A copy, whose gradient is handed on.
fn cloned(c: &Rank, x: Tensor) -> Tensor {
    let out = c.act(x.elements(), "copy of the projection");
    super::ops::passes(c, &[&x], &out);
    out
}

/// A product with an fp32 factor.
fn product(c: &Rc<Rank>, x: &Tensor, factor: &Rc<Param>, elements: u64) -> Tensor {
    c.product();
    let out = c.act_of(elements, FP32, "adapter product");
    let (rank, inputs, weights, needs_grad) = (c.clone(), x.elements(), factor.elements(), x.edge().is_some());
    c.tape.record(vec![x.edge(), factor.edge()], &[&out], vec![x.clone()], move |t, _, _saved| {
        rank.product();
        let dx = needs_grad.then(|| grad_of(t, inputs, FP32, "adapter input gradient"));
        vec![dx, Some(t.tensor(Line::Gradients, weights, FP32, "adapter gradient"))]
    });
    out
}
