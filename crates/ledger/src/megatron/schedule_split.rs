//! Schedules that split backward. Megatron-Core has none of them, so each follows its order in
//! [`layout::order`] around Megatron's blocks: backward makes gradients of activations and puts
//! weight gradients off, which keeps each product's operands, as Transformer Engine's
//! `delay_wgrad_compute` does (`module/_common.py` WeightGradStore); a weight pass makes them later.
//!
//! Where forward and backward overlap, both inputs are there before either runs, and forward is
//! replayed first. An output is freed once sent; at the fold of a V it is handed on, which is booked
//! as if it were received.

use super::model::Chunk;
use super::ops::weight_grad;
use super::rank::Rank;
use super::schedule::{InFlight, backward_step, forward, receive, release};
use layout::order::{Action, Block, Pass};
use replay::line::Origin;
use replay::tape::{Deferred, Tensor};
use std::collections::VecDeque;
use std::rc::Rc;

/// Whether a backward makes weight gradients too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backward {
    Whole,
    Split,
}

/// Chunks of one rank, what is in flight on each, and the weight passes that wait.
pub(super) struct Split<'a> {
    c: &'a Rc<Rank>,
    chunks: &'a [Chunk],
    flights: Vec<InFlight>,
    waiting: VecDeque<Vec<Deferred>>,
}

impl<'a> Split<'a> {
    pub fn new(c: &'a Rc<Rank>, chunks: &'a [Chunk]) -> Split<'a> {
        let flights = chunks.iter().map(|_| InFlight::default()).collect();
        Split { c, chunks, flights, waiting: VecDeque::new() }
    }

    fn input(&self, chunk: usize) -> Option<Tensor> {
        (!self.c.config.chunks[chunk].is_first).then(|| receive(self.c, "received input"))
    }

    fn grad(&self, chunk: usize) -> Option<Tensor> {
        (!self.c.config.chunks[chunk].is_last).then(|| receive(self.c, "received gradient"))
    }

    fn forward(&mut self, chunk: usize) {
        let input = self.input(chunk);
        self.forward_from(chunk, input);
    }

    fn forward_from(&mut self, chunk: usize, input: Option<Tensor>) {
        let output = forward(self.c, &self.chunks[chunk], input.clone());
        if !self.c.config.chunks[chunk].is_last {
            release(self.c, &output);
        }
        self.flights[chunk].inputs.push_back(input);
        self.flights[chunk].outputs.push_back(output);
    }

    fn backward(&mut self, chunk: usize, how: Backward) {
        let grad = self.grad(chunk);
        self.backward_from(chunk, grad, how);
    }

    fn backward_from(&mut self, chunk: usize, grad: Option<Tensor>, how: Backward) {
        let flight = &mut self.flights[chunk];
        let (input, output) = (flight.inputs.pop_front().flatten(), flight.outputs.pop_front());
        let Some(output) = output else { return };
        self.c.tape.set_deferring(how == Backward::Split);
        let _sent = backward_step(self.c, input.as_ref(), &output, grad.as_ref());
        self.c.tape.set_deferring(false);
        if how == Backward::Split {
            self.waiting.push_back(self.c.tape.take_deferred());
        }
    }

    /// Forward of one chunk beside backward of another.
    fn both(&mut self, ahead: usize, back: usize) {
        let (input, grad) = (self.input(ahead), self.grad(back));
        self.forward_from(ahead, input);
        self.backward_from(back, grad, Backward::Whole);
    }

    /// The weight pass of the oldest backward that waits.
    fn weights(&mut self) {
        for Deferred { operands, elements, origin } in self.waiting.pop_front().into_iter().flatten() {
            self.c.tape.enter(origin);
            let grads: Vec<_> = elements.iter().map(|&elements| weight_grad(&self.c.tape, elements)).collect();
            drop((grads, operands));
        }
        self.c.tape.enter(Origin::Pipeline);
    }

    /// Walks the order of the stage.
    pub fn run(mut self) {
        let order = self.c.config.order;
        let mut blocks = order.stage(self.c.config.stage as u32).peekable();
        while let Some(block) = blocks.next().filter(|_| !self.c.is_over()) {
            match block {
                Block::Overlapped { forward, backward } => {
                    self.both(order.local(forward.chunk), order.local(backward.chunk));
                }
                Block::Alone(action) => {
                    // The one pair that DualPipe keeps apart, where its directions meet, is booked
                    // like the others: its gradient is there a forward early.
                    let pair = blocks.next_if(|next| action.pass == Pass::Forward && is_whole_backward(next));
                    match pair.and_then(|pair| pair.actions().next()) {
                        Some(back) => self.both(order.local(action.chunk), order.local(back.chunk)),
                        None => self.pass(action.pass, order.local(action.chunk)),
                    }
                }
            }
        }
    }

    fn pass(&mut self, pass: Pass, chunk: usize) {
        match pass {
            Pass::Forward => self.forward(chunk),
            Pass::Backward => self.backward(chunk, Backward::Whole),
            Pass::BackwardInput => self.backward(chunk, Backward::Split),
            Pass::BackwardWeight => self.weights(),
        }
    }
}

fn is_whole_backward(block: &Block) -> bool {
    matches!(block, Block::Alone(Action { pass: Pass::Backward, .. }))
}
