//! The gated feed-forward block (`models/llama.py` MLP, GLUActivation).

use super::linear::{self, Input};
use super::model::LayerWeights;
use super::ops::{grad, makes};
use super::rank::Rank;
use replay::line::Line;
use replay::tape::Tensor;
use std::rc::Rc;

/// Gate and up are views of one product, kept by SiLU and by the multiplication, which keeps the
/// activated gate too; its result is kept by the projection down.
pub(super) fn forward(c: &Rc<Rank>, weights: &LayerWeights, x: &Tensor) -> Tensor {
    let n = c.config.tokens * c.config.ffn;
    // A local of the forward until it returns.
    let merged = linear::column(c, x, &weights.gate_up.leaf(), 2 * c.config.ffn, Line::Activations);
    let (gate, up) = (merged.part(n), merged.part(n));
    makes(c, &merged, &[&gate, &up], Vec::new(), 2 * n);
    let activated = c.act(n, "activated gate");
    makes(c, &gate, &[&activated], vec![gate.clone()], n);
    let product = c.act(n, "gated product");
    let edges = vec![activated.edge(), up.edge()];
    c.tape.record(edges, &[&product], vec![activated, up], move |t, _, _saved| {
        ["gate gradient", "up gradient"].map(|name| Some(grad(t, n, name))).to_vec()
    });
    drop(gate);
    linear::row(c, &product, &weights.down.leaf(), Input::Contiguous)
}
