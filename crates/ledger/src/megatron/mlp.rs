//! Dense feed-forward blocks and shared experts (`megatron/core/transformer/mlp.py`,
//! `moe/shared_experts.py`).

use super::blocks::{MlpParams, SharedParams, rows_in};
use super::config::Feed;
use super::linear::{Keeps, Mode, linear, norm_linear};
use super::ops::{activate, activate_with_bias, grad, makes, weight_grad};
use super::params::Param;
use super::rank::Rank;
use layout::request::RecomputeModule;
use replay::tape::{BF16, Tensor, checkpoint};
use std::rc::Rc;

pub(super) fn forward(c: &Rc<Rank>, params: &Rc<MlpParams>, x: &Tensor) -> Tensor {
    if !c.config.recomputes(RecomputeModule::Mlp) {
        return dense(c, params, x);
    }
    let (rank, params) = (c.clone(), params.clone());
    checkpoint(&c.tape, &[x], move |inputs| dense(&rank, &params, &inputs[0]))
}

fn dense(c: &Rank, params: &MlpParams, x: &Tensor) -> Tensor {
    let feed = c.config.mlp();
    let wide = norm_linear(c, x, c.config.hidden, rows_in(feed) / c.config.tp, &params.fc1);
    out_of(c, wide, feed, params.fc1_bias.as_deref(), &params.fc2.weight)
}

/// The activation and the projection out. The activation keeps the wide tensor where it needs
/// it; nobody else does.
fn out_of(c: &Rank, wide: Tensor, feed: Feed, bias: Option<&Param>, weight: &Param) -> Tensor {
    let width = feed.ffn / c.config.tp;
    let narrow = match bias {
        Some(bias) => activate_with_bias(c, &wide, c.config.tokens * width, bias),
        None => activate(c, &wide, c.config.tokens * width, feed.activation),
    };
    drop(wide);
    linear(c, &narrow, Mode::Row, (width, c.config.hidden), weight, Keeps::Quantized)
}

/// The expert every token passes through, weighed by a scalar gate a token where there is one.
pub(super) fn shared_expert(c: &Rank, weights: &SharedParams, feed: Feed, x: &Tensor) -> Tensor {
    let sizes = (c.config.hidden, rows_in(feed) / c.config.tp);
    let wide = linear(c, x, Mode::Column, sizes, &weights.fc1, Keeps::Original);
    let out = out_of(c, wide, feed, None, &weights.fc2);
    match &weights.gate {
        Some(gate) => gated(c, x, out, gate),
        None => out,
    }
}

/// `output * sigmoid(x · gate)`: the product keeps both factors.
fn gated(c: &Rank, x: &Tensor, out: Tensor, gate: &Param) -> Tensor {
    c.torch_product();
    let (tokens, elements, input, weight) = (c.config.local_tokens, out.elements(), x.elements(), gate.elements);
    let logits = c.act(tokens, "shared gate logits");
    c.tape.record(vec![x.edge(), gate.edge()], &[&logits], vec![x.clone()], move |t, _, _saved| {
        vec![Some(grad(t, input, "shared gate input gradient")), Some(weight_grad(t, weight))]
    });
    let score = c.act(tokens, "shared gate");
    makes(c, &logits, &score, vec![score.alias()], tokens, BF16);
    let weighed = c.act(elements, "gated shared output");
    let saved = vec![out.clone(), score.clone()];
    c.tape.record(vec![out.edge(), score.edge()], &[&weighed], saved, move |t, _, _saved| {
        let dx = grad(t, elements, "gated shared gradient");
        let _product = grad(t, elements, "gated shared product");
        vec![Some(dx), Some(grad(t, tokens, "shared gate gradient"))]
    });
    weighed
}
