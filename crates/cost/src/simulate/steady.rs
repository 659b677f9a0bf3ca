//! Steps of many microbatches, from fewer.
//!
//! More microbatches lengthen the main loop of every stage and nothing else, so a long step begins
//! like a short one, event for event. Once all events of enough rounds of the main loop come exactly
//! one shift after those some periods earlier, on every stage at once, everything behind them does
//! too: an event depends on events of these rounds or later ones, and on nothing else. The long step
//! is then a short one that has these rounds, with so many shifts put in. Where no such shift turns
//! up in the first half (an order without a main loop, or stages so nearly alike that the slowest
//! takes long to show), the step is simulated whole.

use super::Times;
use super::engine::{Observe, Simulator};
use super::timeline::{Event, Timeline, idle};
use diag::Finding;
use layout::Schedule;
use layout::order::Pipeline;
use std::ops::ControlFlow;

/// The most periods after which times repeat that are looked for: a cycle through several stages
/// may take several microbatches.
const MOST_PERIODS: usize = 12;
/// Periods of the main loop that must repeat, and rounds besides. A block needs what another stage
/// made at most a period of rounds before.
const WINDOW: (usize, usize) = (2, 4);
/// Rounding, against the length of the step so far.
const ROUNDING: f64 = 1e-13;

/// Times repeat `shift` later after so many periods, by so many rounds of the main loop.
#[derive(Clone, Copy, Debug)]
struct Steady {
    periods: u32,
    shift: f64,
    rounds: u32,
}

impl Simulator {
    /// As [`Simulator::run`], but simulates no more microbatches than it needs.
    pub fn run_steady(&mut self, pipeline: &Pipeline, times: &Times) -> Result<Timeline, Finding> {
        times.check(pipeline)?;
        let rounds = (0..pipeline.stages()).filter_map(|stage| main_rounds(pipeline, stage)).min().unwrap_or(0);
        let mut ends = Ends::new(std::mem::take(&mut self.ends), pipeline, rounds);
        let whole = self.observed(pipeline, times, &mut ends);
        let found = ends.found;
        self.ends = ends.ends;
        let Some(steady) = found else { return Ok(whole) };
        let shifts = (rounds - steady.rounds) / (pipeline.rounds_per_period() * steady.periods);
        let left_out = shifts * steady.periods * pipeline.period();
        let short = pipeline.with_microbatches(u64::from(pipeline.microbatches() - left_out))?;
        let timeline = self.run(&short, times)?;
        Ok(self.later(timeline, shifts, steady, pipeline))
    }

    /// The timeline with so many shifts of the steady state put in.
    fn later(&self, mut timeline: Timeline, shifts: u32, steady: Steady, pipeline: &Pipeline) -> Timeline {
        let delay = f64::from(shifts) * steady.shift;
        let each = f64::from(shifts * steady.periods * pipeline.period() / pipeline.directions());
        for lane in &self.lanes {
            let stage = &mut timeline.stages[lane.stage as usize];
            stage.busy += each * self.steady_share(pipeline) * (lane.forward + lane.input + lane.weight);
            stage.sending += each * self.serial * (lane.onward + lane.back);
        }
        timeline.makespan += delay;
        for stage in &mut timeline.stages {
            stage.last_end += delay;
            stage.idle = idle(timeline.makespan, stage.busy, stage.sending);
        }
        timeline
    }

    /// What a pass of the main loop takes, as a share of what it takes alone.
    fn steady_share(&self, pipeline: &Pipeline) -> f64 {
        match pipeline.schedule() {
            Schedule::DualPipe | Schedule::DualPipeV => self.overlapped,
            _ => 1.0,
        }
    }
}

/// Rounds of a stage's main loop.
fn main_rounds(pipeline: &Pipeline, stage: u32) -> Option<u32> {
    let program = pipeline.program(stage);
    program.main().map(|main| program.loops()[main].times)
}

/// Writes down when each block of the main loop ends, and stops once the ends repeat.
struct Ends {
    main: Option<usize>,
    /// Blocks of a round, and rounds of a period.
    body: usize,
    per_period: usize,
    ends: Vec<Vec<f64>>,
    /// Rounds after which it is looked next, the most after which it is, and stages that have them.
    look_at: usize,
    most: usize,
    reached: usize,
    found: Option<Steady>,
}

impl Ends {
    fn new(mut ends: Vec<Vec<f64>>, pipeline: &Pipeline, rounds: u32) -> Ends {
        ends.iter_mut().for_each(Vec::clear);
        ends.resize_with(pipeline.stages() as usize, Vec::new);
        let (program, per_period) = (pipeline.program(0), pipeline.rounds_per_period() as usize);
        let body = program.main().map_or(1, |main| program.loops()[main].body.len());
        let look_at = window(per_period) + per_period + ends.len();
        let most = rounds as usize / 2;
        // Nothing is written down where it would not be looked at.
        let main = program.main().filter(|_| look_at <= most);
        Ends { main, body, per_period, ends, look_at, most, reached: 0, found: None }
    }

    /// Whether the last rounds are those some periods before, one shift later.
    fn look(&self) -> Option<Steady> {
        let (rounds, window) = (self.look_at, window(self.per_period));
        let (from, to) = ((rounds - window) * self.body, rounds * self.body);
        let rounding = ROUNDING * self.ends[0][to - 1];
        let fits = |periods: &usize| window + periods * self.per_period <= rounds;
        (1..=MOST_PERIODS).take_while(fits).find_map(|periods| {
            let back = periods * self.per_period * self.body;
            let shift = self.ends[0][to - 1] - self.ends[0][to - 1 - back];
            let same = |e: &Vec<f64>| (from..to).all(|i| (e[i] - e[i - back] - shift).abs() <= rounding);
            let steady = Steady { periods: periods as u32, shift, rounds: rounds as u32 };
            self.ends.iter().all(same).then_some(steady)
        })
    }

    /// Looks, once every stage has the rounds.
    fn reach(&mut self) -> ControlFlow<()> {
        self.reached += 1;
        while self.reached == self.ends.len() {
            self.found = self.look();
            if self.found.is_some() {
                return ControlFlow::Break(());
            }
            self.look_at += self.look_at / 4 + 1;
            if self.look_at > self.most {
                self.main = None;
                return ControlFlow::Continue(());
            }
            self.reached = self.ends.iter().filter(|e| e.len() >= self.look_at * self.body).count();
        }
        ControlFlow::Continue(())
    }
}

fn window(per_period: usize) -> usize {
    WINDOW.0 * per_period + WINDOW.1
}

impl Observe for Ends {
    fn block(&mut self, at_loop: usize, event: Event) -> ControlFlow<()> {
        if self.main != Some(at_loop) {
            return ControlFlow::Continue(());
        }
        let ends = &mut self.ends[event.stage as usize];
        ends.push(event.end);
        if ends.len() == self.look_at * self.body { self.reach() } else { ControlFlow::Continue(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ChunkTimes;

    /// Stages alike, and one that is slower than the rest, settle at once.
    #[test]
    fn a_steady_state_is_found() {
        for (kind, vpp) in [
            (Schedule::OneF1b, 1),
            (Schedule::Interleaved, 3),
            (Schedule::ZbH1, 1),
            (Schedule::DualPipe, 1),
            (Schedule::DualPipeV, 2),
        ] {
            for slower in [1.0, 1.5] {
                let pipeline = Pipeline::new(kind, 6, vpp, 1200).unwrap();
                let each = ChunkTimes { forward: 1.0, backward_input: 1.0, backward_weight: 0.5 };
                let mut chunks = vec![each; pipeline.chunks() as usize];
                chunks[2].forward *= slower;
                let transfers = vec![0.125; chunks.len() - 1];
                let times = Times { chunks: &chunks, transfers: &transfers, serial: 0.0, overlapped: 1.0 };
                let mut ends = Ends::new(Vec::new(), &pipeline, main_rounds(&pipeline, 0).unwrap());
                Simulator::default().observed(&pipeline, &times, &mut ends);
                assert!(ends.found.is_some(), "{kind:?} {slower}");
            }
        }
    }
}
