//! Steps of many microbatches, from fewer.
//!
//! More microbatches lengthen the main loop of every stage and nothing else, so a long step begins
//! like a short one, event for event. Once all events of enough rounds of the main loop come exactly
//! one shift after those a period earlier, on every stage at once, everything behind them does too:
//! an event depends on events of these rounds or later ones, and on nothing else. What is left of
//! the long step is then so many shifts, and the same drain. Where no such shift is found (an order
//! without a main loop, or stages so nearly alike that the slowest takes long to show), the step is
//! simulated whole.

use super::Times;
use super::engine::{Observe, Simulator};
use super::timeline::{Event, Timeline};
use diag::Finding;
use layout::order::{Kind, Pipeline};

/// The most periods after which times repeat that are looked for: a cycle through several stages
/// may take several microbatches.
const MOST_PERIODS: usize = 12;
/// Periods of the main loop that must repeat, and rounds besides. A block needs what another stage
/// made at most a period of rounds before.
const WINDOW: (usize, usize) = (2, 4);
/// Rounding, against the length of the step.
const ROUNDING: f64 = 1e-13;

/// Times repeat `shift` later after so many periods.
#[derive(Clone, Copy, Debug)]
struct Steady {
    periods: u32,
    shift: f64,
}

impl Simulator {
    /// As [`Simulator::run`], but simulates no more microbatches than it needs.
    pub fn run_steady(&mut self, pipeline: &Pipeline, times: &Times) -> Result<Timeline, Finding> {
        times.check(pipeline)?;
        let (all, period) = (pipeline.microbatches(), pipeline.period());
        let mut few = 4 * pipeline.stages().next_multiple_of(2) + 2 * WINDOW.1 as u32;
        while pipeline.program(0).main().is_some() && few < all / 2 {
            let short = pipeline.with_microbatches(u64::from(few + (all - few) % period))?;
            if let Some((steady, timeline)) = self.find_steady(&short, times) {
                let periods = (all - short.microbatches()) / period;
                let odd = periods % steady.periods;
                let timeline = match odd {
                    0 => timeline,
                    _ => {
                        let longer = short.with_microbatches(u64::from(short.microbatches() + odd * period))?;
                        self.run(&longer, times)?
                    }
                };
                let shifts = periods / steady.periods;
                return Ok(self.later(timeline, shifts, steady, pipeline));
            }
            few *= 2;
        }
        self.run(pipeline, times)
    }

    fn find_steady(&mut self, pipeline: &Pipeline, times: &Times) -> Option<(Steady, Timeline)> {
        let mut ends = std::mem::take(&mut self.ends);
        ends.iter_mut().for_each(Vec::clear);
        ends.resize_with(pipeline.stages() as usize, Vec::new);
        let main = pipeline.program(0).main();
        let timeline = self.observed(pipeline, times, &mut Ends { main, ends: &mut ends });
        let steady = repeats(pipeline, &ends, ROUNDING * timeline.makespan);
        self.ends = ends;
        steady.map(|steady| (steady, timeline))
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
            stage.idle = timeline.makespan - stage.busy - stage.sending;
        }
        timeline
    }

    /// What a pass of the main loop takes, as a share of what it takes alone.
    fn steady_share(&self, pipeline: &Pipeline) -> f64 {
        match pipeline.kind() {
            Kind::DualPipe | Kind::DualPipeV => self.overlapped,
            _ => 1.0,
        }
    }
}

/// Writes down when each block of the main loop ends.
struct Ends<'a> {
    main: Option<usize>,
    ends: &'a mut [Vec<f64>],
}

impl Observe for Ends<'_> {
    fn block(&mut self, at_loop: usize, event: Event) {
        if self.main == Some(at_loop) {
            self.ends[event.stage as usize].push(event.end);
        }
    }
}

/// Whether the last rounds that every stage has are those some periods before, one shift later.
fn repeats(pipeline: &Pipeline, ends: &[Vec<f64>], rounding: f64) -> Option<Steady> {
    let per_period = pipeline.rounds_per_period() as usize;
    let program = pipeline.program(0);
    let body = program.loops()[program.main()?].body.len();
    let rounds = ends.iter().map(|e| e.len() / body).min()?;
    let window = WINDOW.0 * per_period + WINDOW.1;
    (1..=MOST_PERIODS).take_while(|periods| window + periods * per_period <= rounds).find_map(|periods| {
        let back = periods * per_period * body;
        let (from, to) = ((rounds - window) * body, rounds * body);
        let shift = ends[0][to - 1] - ends[0][to - 1 - back];
        let same = |e: &Vec<f64>| (from..to).all(|i| (e[i] - e[i - back] - shift).abs() <= rounding);
        ends.iter().all(same).then_some(Steady { periods: periods as u32, shift })
    })
}
