//! Pipeline engines on the first stage (`parallel/pipeline_parallel/engine.py`).

use super::model::Model;
use super::rank::Rank;
use super::{PipelineEngine, edges};
use replay::line::{Line, Origin};
use replay::tape::{Tensor, backward};
use std::collections::VecDeque;
use std::rc::Rc;

/// One step: all microbatches forward and backward.
pub(super) fn run_step(c: &Rc<Rank>, model: &Model) {
    let warmup = match c.config.engine {
        PipelineEngine::OneForwardOneBackward => (c.config.pp - 1).min(c.config.microbatches),
        PipelineEngine::AllForwardAllBackward => c.config.microbatches,
    };
    let mut flight = VecDeque::new();
    for _ in 0..warmup {
        let out = model.forward(c);
        if !c.config.is_whole() {
            send(c, &out);
        }
        flight.push_back(out);
    }
    for _ in warmup..c.config.microbatches {
        flight.push_back(model.forward(c));
        let oldest = flight.pop_front();
        // The newest output is sent when the oldest one's gradient is awaited.
        flight.back().into_iter().for_each(|out| send(c, out));
        run_backward(c, oldest);
    }
    while let Some(oldest) = flight.pop_front() {
        run_backward(c, Some(oldest));
    }
}

/// Once sent, an output keeps its graph but not its bytes: what waits for backward is a scalar on
/// the host (`functional.py` SendTensorToPipelineBuffer).
fn send(c: &Rank, out: &Tensor) {
    out.set_storage(c.tape.storage(Line::Communication, 0, "sent output"));
}

/// Backward of one microbatch; its weight gradients die with its graph.
fn run_backward(c: &Rank, out: Option<Tensor>) {
    let Some(out) = out else { return };
    c.tape.enter(Origin::Pipeline);
    c.is_backward.set(true);
    backward(&c.tape, &out, edges::first_gradient(c));
    c.is_backward.set(false);
}
