//! Dense feed-forward blocks and shared experts: gate and up are one projection, cut in two views.

use super::super::Config;
use super::super::config::Feed as Sizes;
use super::super::ops::{activate, linear, pointwise, product};
use super::super::params::{Linear, Unit};
use super::super::rank::Rank;
use super::borders::{enter, leave};
use super::projection;
use super::steps::{by, split};
use recipe::kinds::Activation;
use replay::tape::Tensor;
use std::rc::Rc;

pub(crate) struct Feed {
    function: Activation,
    fc1: Linear,
    pub(super) fc2: Linear,
    /// On the gate and on the output.
    factors: [f64; 2],
}

/// Rows of the projection in front of an activation, for one of its outputs.
pub(super) fn packed_rows(sizes: Sizes) -> u64 {
    if sizes.is_gated() { 2 } else { 1 }
}

impl Feed {
    /// `block` is the path of the module that holds both projections, behind the layer.
    pub(super) fn new(c: &Config, sizes: Sizes, block: &str, unit: &mut Unit) -> Feed {
        let width = sizes.ffn / c.tp;
        let fc1 = projection(c, unit, &format!("{block}.fc1"), (packed_rows(sizes) * width, c.hidden));
        let fc2 = projection(c, unit, &format!("{block}.fc2"), (c.hidden, width));
        let factors = if block == "mlp" { c.multipliers.mlp } else { [1.0; 2] };
        Feed { function: sizes.function, fc1, fc2, factors }
    }

    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let wide = linear(c, &enter(c, x), &self.fc1);
        let narrow = activated(c, wide, self.function, self.factors[0]);
        by(c, leave(c, linear(c, &narrow, &self.fc2)), self.factors[1])
    }
}

/// `activate`, with a constant on the gate.
pub(in super::super) fn activated(c: &Rank, x: Tensor, function: Activation, factor: f64) -> Tensor {
    if !function.is_gated() {
        return activate(c, x, || None, function);
    }
    let half = x.elements() / 2;
    let [gate, up] = split(c, &x, [half, half]);
    drop(x);
    let gate = pointwise(c, by(c, gate, factor), "activation");
    product(c, &gate, &up)
}
