//! The event loop. Times of arrival lie in flat rings, one a lane (a chunk in a direction): as
//! microbatches pass a lane in order, a count says which have arrived. A stage runs until something
//! is missing, and is woken by whoever delivers it, so every event is looked at once or twice.

use super::timeline::{Event, StageTimeline, Timeline, idle};
use super::{Times, most_in_flight};
use diag::{Blame, Finding};
use layout::Schedule;
use layout::order::{Action, Block, Pass, Pipeline, StageOrder};
use std::ops::ControlFlow;

/// Sees every block as it is run, and may stop there.
pub(crate) trait Observe {
    fn block(&mut self, at_loop: usize, event: Event) -> ControlFlow<()>;
}

/// Sees nothing.
struct Nobody;

impl Observe for Nobody {
    fn block(&mut self, _: usize, _: Event) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl Observe for Vec<Event> {
    fn block(&mut self, _: usize, event: Event) -> ControlFlow<()> {
        self.push(event);
        ControlFlow::Continue(())
    }
}

/// What a pass needs: the input of a forward, or the output gradient of a backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Input(u32),
    Gradient(u32),
}

/// A chunk in a direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub stage: u32,
    pub forward: f64,
    pub input: f64,
    pub weight: f64,
    /// To the next chunk, and to the one before.
    pub onward: f64,
    pub back: f64,
    is_last: bool,
    is_first: bool,
    /// Microbatches whose input, and whose output gradient, has arrived.
    inputs: u32,
    gradients: u32,
}

#[derive(Clone, Debug)]
struct Stage {
    order: StageOrder,
    /// The block that could not start.
    held: Option<(usize, Block)>,
    waits_for: Option<Need>,
    clock: f64,
    busy: f64,
    sending: f64,
    first_start: f64,
    flying: u32,
    peak: u32,
}

/// A simulator, with its memory: use one for many runs.
#[derive(Clone, Debug, Default)]
pub struct Simulator {
    pub(super) lanes: Vec<Lane>,
    /// Arrival of inputs, then of gradients, a ring a lane each.
    arrivals: Vec<[f64; 2]>,
    stages: Vec<Stage>,
    ready: Vec<u32>,
    /// Ring length less one; a power of two less one.
    mask: u32,
    ring: u32,
    per_direction: u32,
    chunks: u32,
    pub(super) serial: f64,
    pub(super) overlapped: f64,
    /// Main-loop ends of every stage, where the steady state is looked for.
    pub(super) ends: Vec<Vec<f64>>,
    /// Forward and backward of every microbatch on every chunk, where each has its own times.
    passes: Vec<Vec<[f64; 2]>>,
}

impl Simulator {
    /// Simulates all microbatches of a step.
    pub fn run(&mut self, pipeline: &Pipeline, times: &Times) -> Result<Timeline, Finding> {
        times.check(pipeline)?;
        Ok(self.observed(pipeline, times, &mut Nobody))
    }

    /// The same, and every block in an order in which each follows what it needs.
    pub fn trace(&mut self, pipeline: &Pipeline, times: &Times) -> Result<(Timeline, Vec<Event>), Finding> {
        times.check(pipeline)?;
        let mut events = Vec::new();
        let timeline = self.observed(pipeline, times, &mut events);
        Ok((timeline, events))
    }

    /// The same where every pass has its own time, as a job was seen to take: `passes[chunk][microbatch]` is forward
    /// and backward. Of `times` only transfers count. For orders of one direction whose backward is one pass.
    pub fn replay(
        &mut self,
        pipeline: &Pipeline,
        times: &Times,
        passes: &[Vec<[f64; 2]>],
    ) -> Result<Timeline, Finding> {
        times.check(pipeline)?;
        let is_whole = passes.len() == pipeline.chunks() as usize
            && passes.iter().all(|chunk| chunk.len() == pipeline.microbatches() as usize)
            && passes.iter().flatten().flatten().all(|seconds| seconds.is_finite() && *seconds >= 0.0);
        let is_plain = matches!(pipeline.schedule(), Schedule::GPipe | Schedule::OneF1b | Schedule::Interleaved);
        if !is_whole || !is_plain {
            let message = format!(
                "{} chunks of {} microbatches have a forward and a backward time each, and backward is one pass",
                pipeline.chunks(),
                pipeline.microbatches()
            );
            return Err(Finding::error("cost/times", Blame::Layout, "passes", message));
        }
        self.passes = passes.to_vec();
        let timeline = self.observed(pipeline, times, &mut Nobody);
        self.passes.clear();
        Ok(timeline)
    }

    /// Runs until all is done or the observer has seen enough.
    pub(crate) fn observed(&mut self, pipeline: &Pipeline, times: &Times, observer: &mut impl Observe) -> Timeline {
        self.set_up(pipeline, times);
        self.ready.extend((0..pipeline.stages()).rev());
        while let Some(stage) = self.ready.pop() {
            if self.run_stage(stage, observer).is_break() {
                return self.timeline();
            }
        }
        debug_assert!(self.stages.iter().all(|s| s.held.is_none()), "{pipeline:?} waits for ever");
        self.timeline()
    }

    fn set_up(&mut self, pipeline: &Pipeline, times: &Times) {
        self.chunks = pipeline.chunks();
        self.per_direction = pipeline.microbatches_per_direction();
        (self.serial, self.overlapped) = (times.serial, times.overlapped);
        // An arrival is overwritten a ring later, which is when more than a ring would be in flight
        // had it not been used.
        self.ring = most_in_flight(pipeline).next_power_of_two();
        self.mask = self.ring - 1;
        let lanes = (0..pipeline.directions()).flat_map(|d| (0..self.chunks).map(move |c| (d, c)));
        self.lanes.clear();
        self.lanes.extend(lanes.map(|(direction, chunk)| lane(pipeline, times, direction, chunk)));
        self.arrivals.clear();
        self.arrivals.resize(self.lanes.len() * self.ring as usize, [0.0; 2]);
        self.stages.clear();
        self.stages.extend((0..pipeline.stages()).map(|stage| Stage {
            order: pipeline.stage(stage),
            held: None,
            waits_for: None,
            clock: 0.0,
            busy: 0.0,
            sending: 0.0,
            first_start: f64::INFINITY,
            flying: 0,
            peak: 0,
        }));
        self.ready.clear();
    }

    /// Runs a stage until something is missing or it is done.
    fn run_stage(&mut self, stage: u32, observer: &mut impl Observe) -> ControlFlow<()> {
        let index = stage as usize;
        let mut next = self.stages[index].held.take();
        loop {
            let here = &mut self.stages[index];
            let Some((at_loop, block)) = next.take().or_else(|| here.order.next().map(|b| (here.order.at_loop(), b)))
            else {
                return ControlFlow::Continue(());
            };
            let clock = here.clock;
            let started = match block {
                Block::Alone(action) => self.arrived(action),
                Block::Overlapped { forward, backward } => {
                    self.arrived(forward).and_then(|a| self.arrived(backward).map(|b| a.max(b)))
                }
            };
            match started {
                Ok(arrived) => {
                    let start = clock.max(arrived);
                    let end = self.execute(index, block, start);
                    observer.block(at_loop, Event { stage, block, start, end })?;
                }
                Err(need) => {
                    let here = &mut self.stages[index];
                    (here.held, here.waits_for) = (Some((at_loop, block)), Some(need));
                    return ControlFlow::Continue(());
                }
            }
        }
    }

    /// The lane of an action and its microbatch's number there.
    fn place(&self, action: Action) -> (u32, u32) {
        if action.microbatch < self.per_direction {
            (action.chunk, action.microbatch)
        } else {
            (self.chunks + action.chunk, action.microbatch - self.per_direction)
        }
    }

    fn slot(&self, lane: u32, microbatch: u32) -> usize {
        (lane * self.ring + (microbatch & self.mask)) as usize
    }

    /// When what an action needs has arrived, or what is missing.
    fn arrived(&self, action: Action) -> Result<f64, Need> {
        let (lane, microbatch) = self.place(action);
        let held = &self.lanes[lane as usize];
        match action.pass {
            Pass::Forward if held.inputs <= microbatch => Err(Need::Input(lane)),
            Pass::Forward => Ok(self.arrivals[self.slot(lane, microbatch)][0]),
            Pass::BackwardWeight => Ok(0.0),
            _ if held.gradients <= microbatch => Err(Need::Gradient(lane)),
            _ => Ok(self.arrivals[self.slot(lane, microbatch)][1]),
        }
    }

    /// Runs a block that can start, delivers what it makes, and says when it ends.
    fn execute(&mut self, stage: usize, block: Block, start: f64) -> f64 {
        let (took, sent, end);
        match block {
            Block::Alone(action) => {
                took = self.duration(action);
                end = start + took;
                sent = self.deliver(action, end);
            }
            Block::Overlapped { forward, backward } => {
                took = self.overlapped * (self.duration(forward) + self.duration(backward));
                end = start + took;
                sent = self.deliver(forward, end) + self.deliver(backward, end);
            }
        }
        let sending = sent * self.serial;
        let here = &mut self.stages[stage];
        if here.first_start == f64::INFINITY {
            here.first_start = start;
        }
        here.clock = end + sending;
        here.busy += took;
        here.sending += sending;
        here.count(block);
        end
    }

    fn duration(&self, action: Action) -> f64 {
        if let Some(chunk) = self.passes.get(action.chunk as usize) {
            let [forward, backward] = chunk[action.microbatch as usize];
            return if action.pass == Pass::Forward { forward } else { backward };
        }
        let lane = &self.lanes[self.place(action).0 as usize];
        match action.pass {
            Pass::Forward => lane.forward,
            Pass::Backward => lane.input + lane.weight,
            Pass::BackwardInput => lane.input,
            Pass::BackwardWeight => lane.weight,
        }
    }

    /// Hands what a pass made to the lane that needs it; says how long the transfer takes.
    fn deliver(&mut self, action: Action, end: f64) -> f64 {
        let (lane, microbatch) = self.place(action);
        let held = self.lanes[lane as usize];
        match action.pass {
            Pass::BackwardWeight => 0.0,
            // The loss is taken where the last chunk ends.
            Pass::Forward if held.is_last => self.gradient_arrives(lane, microbatch, end),
            Pass::Forward => {
                let slot = self.slot(lane + 1, microbatch);
                self.arrivals[slot][0] = end + held.onward;
                self.lanes[lane as usize + 1].inputs += 1;
                self.wake(Need::Input(lane + 1), lane + 1);
                held.onward
            }
            _ if held.is_first => 0.0,
            _ => {
                self.gradient_arrives(lane - 1, microbatch, end + held.back);
                held.back
            }
        }
    }

    fn gradient_arrives(&mut self, lane: u32, microbatch: u32, when: f64) -> f64 {
        let slot = self.slot(lane, microbatch);
        self.arrivals[slot][1] = when;
        self.lanes[lane as usize].gradients += 1;
        self.wake(Need::Gradient(lane), lane);
        0.0
    }

    fn wake(&mut self, need: Need, lane: u32) {
        let stage = self.lanes[lane as usize].stage;
        let waits_for = &mut self.stages[stage as usize].waits_for;
        if *waits_for == Some(need) {
            *waits_for = None;
            self.ready.push(stage);
        }
    }

    fn timeline(&self) -> Timeline {
        let makespan = self.stages.iter().map(|s| s.clock).fold(0.0, f64::max);
        let stage = |s: &Stage| StageTimeline {
            busy: s.busy,
            sending: s.sending,
            idle: idle(makespan, s.busy, s.sending),
            peak_in_flight: s.peak,
            first_start: s.first_start,
            last_end: s.clock,
        };
        Timeline { makespan, stages: self.stages.iter().map(stage).collect() }
    }
}

impl Stage {
    fn count(&mut self, block: Block) {
        match block {
            Block::Alone(Action { pass: Pass::Forward, .. }) => {
                self.flying += 1;
                self.peak = self.peak.max(self.flying);
            }
            Block::Alone(Action { pass: Pass::BackwardInput, .. }) => {}
            Block::Alone(_) => self.flying -= 1,
            // Both are there at once.
            Block::Overlapped { .. } => self.peak = self.peak.max(self.flying + 1),
        }
    }
}

fn lane(pipeline: &Pipeline, times: &Times, direction: u32, chunk: u32) -> Lane {
    let taken = times.chunks[chunk as usize];
    let (is_first, is_last) = (chunk == 0, chunk + 1 == pipeline.chunks());
    Lane {
        stage: pipeline.stage_of(direction, chunk),
        forward: taken.forward,
        input: taken.backward_input,
        weight: taken.backward_weight,
        onward: if is_last { 0.0 } else { times.transfer(pipeline, chunk) },
        back: if is_first { 0.0 } else { times.transfer(pipeline, chunk - 1) },
        is_last,
        is_first,
        // Data is there from the start.
        inputs: if is_first { u32::MAX } else { 0 },
        gradients: 0,
    }
}
