//! Schedules that split backward. Megatron-Core has none of them, so each follows an order of its
//! own, said here, around Megatron's blocks: backward makes gradients of activations and puts
//! weight gradients off, which keeps each product's operands, as Transformer Engine's
//! `delay_wgrad_compute` does (`module/_common.py` WeightGradStore); a weight pass makes them later.
//!
//! **zb-h1** (Qi et al., arXiv 2401.10241; torch's `ScheduleInterleavedZeroBubble` holds weight
//! passes back by the same count): stage *s* of *p* runs `p − s − 1` forwards, then one forward and
//! one backward in turn, then the backwards left. A weight pass follows each backward once *s* of
//! them are waiting, so late stages fill the bubble at the end, and no stage holds more than the
//! first does.
//!
//! **dualpipe** and **dualpipev** (deepseek-ai/DualPipe, `dualpipe.py` and `dualpipev.py`, `step`):
//! eight numbered loops over two chunks, which are the two directions of the one and the two arms
//! of the other. Where forward and backward overlap, both inputs are there before either runs, and
//! forward is replayed first. An output is freed once sent; at the fold of the V it is handed on,
//! which is booked as if it were received.

use super::model::Chunk;
use super::ops::weight_grad;
use super::rank::Rank;
use super::schedule::{InFlight, backward_step, forward, receive, release};
use crate::line::Stand;
use crate::tape::{Deferred, Tensor};
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
        for Deferred { operands, elements, stand } in self.waiting.pop_front().into_iter().flatten() {
            self.c.tape.stand_at(stand);
            let grads: Vec<_> = elements.iter().map(|&elements| weight_grad(&self.c.tape, elements)).collect();
            drop((grads, operands));
        }
        self.c.tape.stand_at(Stand::Pipeline);
    }

    pub fn zero_bubble(mut self) {
        let (pp, stage, microbatches) = (self.c.config.pp, self.c.config.stage, self.c.config.microbatches);
        let warmup = (pp - stage - 1).min(microbatches);
        let held_back = stage as usize;
        (0..warmup).for_each(|_| self.forward(0));
        for step in 0..microbatches {
            if warmup + step < microbatches {
                self.forward(0);
            }
            self.backward(0, Backward::Split);
            if self.waiting.len() > held_back {
                self.weights();
            }
        }
        while !self.waiting.is_empty() {
            self.weights();
        }
    }

    /// Over `ranks` that meet in the middle (or at the fold), of which this is the `rank`th, with
    /// `microbatches` for each chunk.
    pub fn dual(mut self, ranks: u64, rank: u64, microbatches: u64) {
        let (behind, held) = (ranks - rank - 1, rank + 1);
        // 1: forwards of the first chunk.
        (0..2 * behind).for_each(|_| self.forward(0));
        // 2: forwards of both.
        (0..held).for_each(|_| {
            self.forward(0);
            self.forward(1);
        });
        // 3: the second chunk turns, backward split.
        (0..behind).for_each(|_| {
            self.backward(1, Backward::Split);
            self.weights();
            self.forward(1);
        });
        // 4: the main loop.
        (0..(microbatches + held).saturating_sub(2 * ranks)).for_each(|_| {
            self.both(0, 1);
            self.both(1, 0);
        });
        // 5: forwards of the second chunk run out.
        (0..behind).for_each(|_| {
            self.backward(1, Backward::Whole);
            self.both(1, 0);
        });
        self.drain(behind, held, rank);
    }

    fn drain(&mut self, behind: u64, held: u64, rank: u64) {
        // 6: backwards of both, split from the middle on.
        let mut how = Backward::Whole;
        for step in 0..held {
            for (chunk, turns_on) in [(1, 1), (0, 0)] {
                if step == held / 2 && rank % 2 == turns_on {
                    how = Backward::Split;
                }
                self.backward(chunk, how);
            }
        }
        // 7: weight passes between the last backwards.
        (0..behind).for_each(|_| {
            self.weights();
            self.backward(0, Backward::Split);
        });
        // 8: weight passes.
        while !self.waiting.is_empty() {
            self.weights();
        }
    }
}
