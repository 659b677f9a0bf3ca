//! Dense feed-forward blocks and shared experts (`megatron/core/transformer/mlp.py`,
//! `moe/shared_experts.py`).

use super::config::Feed;
use super::linear::{Keeps, Mode, linear, norm_linear};
use super::ops::activate;
use super::params::{MlpParams, Param, rows_in};
use super::rank::Rank;
use crate::tape::{Tensor, checkpoint};
use layout::request::RecomputeModule;
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
    out_of(c, wide, feed, &params.fc2)
}

/// The activation and the projection out. The activation keeps the wide tensor where it needs
/// it; nobody else does.
fn out_of(c: &Rank, wide: Tensor, feed: Feed, weight: &Param) -> Tensor {
    let width = feed.ffn / c.config.tp;
    let narrow = activate(c, &wide, c.config.tokens * width, feed.is_gated);
    drop(wide);
    linear(c, &narrow, Mode::Row, (width, c.config.hidden), weight, Keeps::Quantized)
}

/// The expert every token passes through.
pub(super) fn shared_expert(c: &Rank, weights: &(Rc<Param>, Rc<Param>), feed: Feed, x: &Tensor) -> Tensor {
    let sizes = (c.config.hidden, rows_in(feed) / c.config.tp);
    let wide = linear(c, x, Mode::Column, sizes, &weights.0, Keeps::Original);
    out_of(c, wide, feed, &weights.1)
}
