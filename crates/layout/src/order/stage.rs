//! A stage's loops walked block by block: each verb is given its microbatch and chunk.

use super::program::{Program, Slot, Verb};
use super::{Action, Block, Pass, Pipeline};
use crate::request::Schedule;
use std::collections::VecDeque;

/// Which microbatch and chunk comes next: a group of microbatches of one chunk, the same group of
/// the next, and so on, then the next group.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    microbatch: u32,
    chunk: u32,
    group_start: u32,
    group_end: u32,
    group: u32,
    turn: u32,
    turns: u32,
    first_chunk: u32,
    /// From a chunk to the next of its turn.
    stride: i32,
}

impl Cursor {
    /// All microbatches of one chunk.
    fn over(chunk: u32, first: u32, microbatches: u32) -> Cursor {
        Cursor {
            microbatch: first,
            chunk,
            group_start: first,
            group_end: first + microbatches,
            group: microbatches,
            turn: 0,
            turns: 1,
            first_chunk: chunk,
            stride: 0,
        }
    }

    fn take(&mut self, pass: Pass) -> Action {
        let action = Action { pass, microbatch: self.microbatch, chunk: self.chunk };
        self.microbatch += 1;
        if self.microbatch == self.group_end {
            self.turn_over();
        }
        action
    }

    fn turn_over(&mut self) {
        self.turn += 1;
        if self.turn < self.turns {
            self.chunk = self.chunk.wrapping_add_signed(self.stride);
        } else {
            (self.turn, self.chunk) = (0, self.first_chunk);
            (self.group_start, self.group_end) = (self.group_end, self.group_end + self.group);
        }
        self.microbatch = self.group_start;
    }
}

/// What a stage runs, in order.
#[derive(Clone, Debug)]
pub struct StageOrder {
    program: Program,
    at_loop: usize,
    at_verb: usize,
    /// Rounds of the loop that are done.
    round: u32,
    forward: [Cursor; 2],
    backward: [Cursor; 2],
    /// Weight passes put off, oldest first.
    waiting: VecDeque<Action>,
}

impl StageOrder {
    pub(super) fn new(pipeline: &Pipeline, stage: u32) -> StageOrder {
        let forward = [0, 1].map(|slot| cursor(pipeline, stage, slot));
        let mut backward = forward;
        if pipeline.schedule == Schedule::Interleaved {
            let last = stage + (pipeline.vpp - 1) * pipeline.pp;
            backward[0] = Cursor { chunk: last, first_chunk: last, stride: -forward[0].stride, ..forward[0] };
        }
        let program = pipeline.program(stage);
        StageOrder { program, at_loop: 0, at_verb: 0, round: 0, forward, backward, waiting: VecDeque::new() }
    }

    /// Which loop the block last taken belongs to.
    pub fn at_loop(&self) -> usize {
        self.at_loop
    }

    /// Moves behind one verb.
    fn advance(&mut self) -> Option<Verb> {
        let loops = self.program.loops();
        let mut this = loops.get(self.at_loop)?;
        while self.round == this.times {
            (self.at_loop, self.round) = (self.at_loop + 1, 0);
            this = loops.get(self.at_loop)?;
        }
        let verb = this.body[self.at_verb];
        self.at_verb += 1;
        if self.at_verb == this.body.len() {
            (self.at_verb, self.round) = (0, self.round + 1);
        }
        Some(verb)
    }
}

impl Iterator for StageOrder {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        Some(match self.advance()? {
            Verb::Forward(slot) => Block::Alone(self.forward[slot].take(Pass::Forward)),
            Verb::Backward(slot) => Block::Alone(self.backward[slot].take(Pass::Backward)),
            Verb::Input(slot) => {
                let action = self.backward[slot].take(Pass::BackwardInput);
                self.waiting.push_back(Action { pass: Pass::BackwardWeight, ..action });
                Block::Alone(action)
            }
            Verb::Weight => Block::Alone(self.waiting.pop_front()?),
            Verb::Both { forward, backward } => Block::Overlapped {
                forward: self.forward[forward].take(Pass::Forward),
                backward: self.backward[backward].take(Pass::Backward),
            },
        })
    }
}

/// Where the forwards of a slot begin.
fn cursor(pipeline: &Pipeline, stage: u32, slot: Slot) -> Cursor {
    let (direction, chunk) = pipeline.slot(stage, slot);
    let microbatches = pipeline.microbatches_per_direction();
    let whole = Cursor::over(chunk, direction * microbatches, microbatches);
    match pipeline.schedule {
        Schedule::Interleaved => {
            let Pipeline { pp, vpp, .. } = *pipeline;
            Cursor { group_end: pp.min(microbatches), group: pp, turns: vpp, stride: pp as i32, ..whole }
        }
        _ => whole,
    }
}
