//! One step: microbatches one after another, or one forward, one backward over pipeline stages
//! (`torch/distributed/pipelining/{schedules,stage}.py`).

use super::engine::Fsdp;
use super::plain::{Model, Rank};
use replay::line::{Line, Origin};
use replay::tape::{BF16, FP32, Microbatches, Tensor, backward};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// What a stage receives into: a buffer for the input and one for the output's gradient of every
/// microbatch, made at the first step and kept (`_prepare_forward_infra`, `_prepare_backward_infra`).
#[derive(Default)]
pub(super) struct Buffers {
    inputs: Vec<Tensor>,
    grads: Vec<Tensor>,
}

impl Buffers {
    pub fn new(c: &Rank) -> Buffers {
        let config = &c.config;
        let elements = config.local_tokens * config.residual_width();
        c.tape.enter(Origin::Pipeline);
        let make = |is_received: bool, name| -> Vec<Tensor> {
            let count = if is_received && config.pp > 1 { config.microbatches } else { 0 };
            (0..count).map(|_| c.tape.tensor(Line::Workspaces, elements, BF16, name)).collect()
        };
        Buffers { inputs: make(!config.is_first, "received input"), grads: make(!config.is_last, "received gradient") }
    }
}

/// All microbatches forward and backward.
pub(super) fn run_step(c: &Rc<Rank>, model: &Model, engine: &Fsdp, buffers: &Buffers, which: Microbatches) {
    if c.config.pp > 1 {
        one_forward_one_backward(c, model, engine, buffers, which);
        return;
    }
    c.tape.rounds(
        c.config.microbatches,
        which,
        || engine.standing(),
        || {
            let (loss, logits) = forward(c, model, None);
            drop(logits);
            backward_of(c, &loss, None);
            engine.end_of_backward();
        },
    );
}

/// What backward starts from, and what the stage gave.
fn forward(c: &Rc<Rank>, model: &Model, input: Option<&Tensor>) -> (Tensor, Tensor) {
    c.tape.set_recording(true);
    let out = model.forward_with_output(c, input);
    c.tape.enter(Origin::Pipeline);
    out
}

pub(super) fn backward_of(c: &Rank, output: &Tensor, grad: Option<Tensor>) {
    c.is_backward.set(true);
    let grad = grad.unwrap_or_else(|| c.tape.tensor(Line::Loss, 1, FP32, "loss gradient"));
    backward(&c.tape, output, grad);
    c.is_backward.set(false);
}

/// A microbatch in flight with its input, its graph, and what the stage gave, which `fwd_cache` keeps
/// until its backward has run: on the last stage logits.
type Flight = (Option<Tensor>, Tensor, Tensor);

/// Every microbatch has buffers of its own to receive into, which are alike: it does not matter whose
/// a pass reads.
fn one_forward_one_backward(c: &Rc<Rank>, model: &Model, engine: &Fsdp, buffers: &Buffers, which: Microbatches) {
    let config = &c.config;
    let flight: RefCell<VecDeque<Flight>> = RefCell::default();
    let ahead = (config.pp - config.stage).min(config.microbatches) - 1;
    let run_forward = || {
        let input = buffers.inputs.first().map(|buffer| buffer.alias().requiring_grad());
        let (graph, output) = forward(c, model, input.as_ref());
        flight.borrow_mut().push_back((input, graph, output));
    };
    let run_backward = || {
        let Some((input, graph, output)) = flight.borrow_mut().pop_front() else { return };
        backward_of(c, &graph, buffers.grads.first().map(Tensor::alias));
        drop((input, graph, output));
        engine.end_of_backward();
    };
    for _ in 0..ahead {
        if c.tape.is_above() {
            return;
        }
        run_forward();
    }
    c.tape.rounds(
        config.microbatches - ahead,
        which,
        || engine.standing(),
        || {
            run_forward();
            run_backward();
        },
    );
    if c.tape.is_above() {
        return;
    }
    (0..ahead).for_each(|_| run_backward());
    engine.reduce_all();
}
