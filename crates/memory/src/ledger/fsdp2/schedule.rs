//! One step: microbatches one after another, or one forward, one backward over pipeline stages
//! (`torch/distributed/pipelining/{schedules,stage}.py`).

use super::engine::Fsdp;
use super::plain::{Model, Rank};
use crate::line::{Line, Stand};
use crate::tape::{FP32, Tensor, backward};
use std::collections::VecDeque;
use std::rc::Rc;

/// All microbatches forward and backward.
pub(super) fn run_step(c: &Rc<Rank>, model: &Model, engine: &Fsdp) {
    if c.config.pp > 1 {
        one_forward_one_backward(c, model, engine);
        return;
    }
    for _ in 0..c.config.microbatches {
        let loss = forward(c, model, None);
        backward_of(c, &loss, None);
        engine.end_of_backward();
    }
}

fn forward(c: &Rc<Rank>, model: &Model, input: Option<&Tensor>) -> Tensor {
    c.tape.set_recording(true);
    let out = model.forward(c, input);
    c.tape.stand_at(Stand::Pipeline);
    out
}

fn backward_of(c: &Rank, output: &Tensor, grad: Option<Tensor>) {
    c.is_backward.set(true);
    let grad = grad.unwrap_or_else(|| c.tape.tensor(Line::Loss, 1, FP32, "loss gradient"));
    backward(&c.tape, output, grad);
    c.is_backward.set(false);
}

/// Inputs and output gradients of all microbatches are received into buffers of their own; a
/// microbatch in flight keeps its output with its graph.
fn one_forward_one_backward(c: &Rc<Rank>, model: &Model, engine: &Fsdp) {
    let config = &c.config;
    let elements = config.local_tokens * config.hidden;
    c.tape.stand_at(Stand::Pipeline);
    let buffers = |is_received: bool, name| -> VecDeque<Tensor> {
        let count = if is_received { config.microbatches } else { 0 };
        (0..count).map(|_| c.comm(elements, name).requiring_grad()).collect()
    };
    let (inputs, grads) = (buffers(!config.is_first, "received input"), buffers(!config.is_last, "received gradient"));
    let mut inputs = inputs.into_iter();
    let mut flight = VecDeque::new();
    let warmup = (config.pp - config.stage).min(config.microbatches);
    let run_backward = |flight: &mut VecDeque<(Option<Tensor>, Tensor)>, index: u64| {
        let Some((input, output)) = flight.pop_front() else { return };
        backward_of(c, &output, grads.get(index as usize).cloned());
        drop((input, output));
        engine.end_of_backward();
    };
    for index in 0..config.microbatches {
        let input = inputs.next();
        let output = forward(c, model, input.as_ref());
        flight.push_back((input, output));
        if index + 1 >= warmup {
            run_backward(&mut flight, index + 1 - warmup);
        }
    }
    for index in config.microbatches + 1 - warmup..config.microbatches {
        run_backward(&mut flight, index);
    }
    engine.reduce_all();
}
