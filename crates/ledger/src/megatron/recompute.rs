//! What is computed again in backward (`megatron/core/transformer/transformer_block.py`,
//! `transformer_layer.py`).

use super::model::Layer;
use super::ops;
use super::params::Norm;
use super::rank::Rank;
use layout::request::RecomputeModule;
use replay::tape::{Tensor, WithoutOutput, checkpoint};
use std::rc::Rc;

/// Full recompute: a layer keeps its input only.
pub(super) fn whole_layer(c: &Rc<Rank>, layer: &Rc<Layer>, x: &Tensor) -> Tensor {
    let (rank, layer) = (c.clone(), layer.clone());
    let pass = c.pass.get();
    checkpoint(&c.tape, &[x], move |inputs| again(&rank, pass, || layer.forward(&rank, &inputs[0])))
}

/// Runs as pass `pass`: recompute restores the random state, so routing falls as the first time.
pub(super) fn again(c: &Rank, pass: u64, run: impl FnOnce() -> Tensor) -> Tensor {
    let now = c.pass.replace(pass);
    let out = run();
    c.pass.set(now);
    out
}

/// A block behind a norm of its own. Recomputing `layernorm` discards the norm's output once the
/// block has run; norms fused into a projection are not touched by it.
pub(super) fn behind_norm(c: &Rc<Rank>, norm: &Rc<Norm>, x: &Tensor, block: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    let hidden = c.config.hidden;
    if !c.config.recomputes(RecomputeModule::Layernorm) {
        return block(&ops::norm(c, x, hidden, norm));
    }
    let (rank, norm) = (c.clone(), norm.clone());
    let run = move |inputs: &[Tensor]| vec![ops::norm(&rank, &inputs[0], hidden, &norm)];
    let (kept, outputs) = WithoutOutput::new(&c.tape, &[x], run);
    let out = block(&outputs[0]);
    kept.discard_until(&out);
    out
}
