//! Seconds that no simulation comes below, without simulating.
//!
//! Every bound is the length of a path that the simulation must follow too: along the depth from
//! one chunk to the next, or down the order of one stage, whose work between two actions is known
//! ([`super::marks`]). Followed are the first forward and the first backward of every chunk from the
//! start of the step, and the last forward and the last backward back from its end; the bound joins
//! the longest of the former with the longest of the latter on every stage. Where one forward and
//! one backward alternate, it also goes round between a stage and the end of the depth as often as
//! the order makes it, which is what bounds a pipeline of slow links.

use super::Times;
use super::marks::{Mark, Marks, Work, of_stage};
use diag::Finding;
use layout::Schedule;
use layout::order::Pipeline;

/// Paths through one stage.
#[derive(Clone, Copy, Debug, Default)]
struct Paths {
    /// Work of a round of its main loop.
    round: f64,
    /// The longest way to a first action, less the stage's work before it: of the stage's very
    /// first, and of any.
    to_start: f64,
    to_any: f64,
    /// The longest way from a last action to the end, and the stage's work up to it: from the
    /// stage's very last actions, and from any.
    from_end: f64,
    from_any: f64,
    /// The most blocks before a first action, and the fewest up to a last one.
    first_until: u32,
    last_from: u32,
}

/// Lower bounds, with their memory: use one for many.
#[derive(Clone, Debug, Default)]
pub struct Bound {
    marks: Vec<Marks>,
    stages: Vec<Paths>,
}

/// The way along the depth to a pass of each direction's current chunk.
type Along = [f64; 2];

impl Bound {
    /// Seconds that no simulation of these times comes below.
    pub fn lower(&mut self, pipeline: &Pipeline, times: &Times) -> Result<f64, Finding> {
        times.check(pipeline)?;
        self.set_up(pipeline, times);
        self.first_actions(pipeline, times);
        self.last_actions(pipeline, times);
        let joined = self.stages.iter().map(Paths::joined).fold(0.0, f64::max);
        Ok(joined.max(self.round_trips(pipeline, times)))
    }

    fn set_up(&mut self, pipeline: &Pipeline, times: &Times) {
        self.marks.clear();
        self.marks.resize((pipeline.directions() * pipeline.chunks()) as usize, Marks::default());
        self.stages.clear();
        for stage in 0..pipeline.stages() {
            let Work { work, round } = of_stage(pipeline, times, stage, &mut self.marks);
            self.stages.push(Paths { round, from_end: work, from_any: work, last_from: u32::MAX, ..Paths::default() });
        }
    }

    fn place(&self, pipeline: &Pipeline, direction: u32, chunk: u32) -> (Marks, usize) {
        let marks = self.marks[(direction * pipeline.chunks() + chunk) as usize];
        (marks, pipeline.stage_of(direction, chunk) as usize)
    }

    /// Down the depth by first forwards, and up again by first backwards.
    fn first_actions(&mut self, pipeline: &Pipeline, times: &Times) {
        let chunks = pipeline.chunks();
        let mut along: Along = [0.0; 2];
        for chunk in 0..chunks {
            for direction in 0..pipeline.directions() {
                let (Marks { first_forward, .. }, stage) = self.place(pipeline, direction, chunk);
                let way = &mut along[direction as usize];
                *way = self.stages[stage].reach(first_forward, *way) + first_forward.takes;
                if pipeline.local(chunk) == 0 {
                    self.stages[stage].to_start = self.stages[stage].to_any;
                }
                *way += if chunk + 1 < chunks { times.transfer(pipeline, chunk) } else { 0.0 };
            }
        }
        for chunk in (0..chunks).rev() {
            for direction in 0..pipeline.directions() {
                let (Marks { first_backward, .. }, stage) = self.place(pipeline, direction, chunk);
                let way = &mut along[direction as usize];
                *way = self.stages[stage].reach(first_backward, *way) + first_backward.takes;
                *way += if chunk > 0 { times.transfer(pipeline, chunk - 1) } else { 0.0 };
            }
        }
    }

    /// Back in time: down the depth by last backwards, and up again by last forwards.
    fn last_actions(&mut self, pipeline: &Pipeline, times: &Times) {
        let chunks = pipeline.chunks();
        let mut along: Along = [0.0; 2];
        for chunk in 0..chunks {
            for direction in 0..pipeline.directions() {
                let (Marks { last_backward, .. }, stage) = self.place(pipeline, direction, chunk);
                let way = &mut along[direction as usize];
                *way = self.stages[stage].leave(last_backward, *way) + last_backward.takes;
                *way += if chunk + 1 < chunks { times.transfer(pipeline, chunk) } else { 0.0 };
                if pipeline.local(chunk) == 0 {
                    self.stages[stage].from_end = self.stages[stage].from_any;
                }
            }
        }
        for chunk in (0..chunks).rev() {
            for direction in 0..pipeline.directions() {
                let (Marks { last_forward, .. }, stage) = self.place(pipeline, direction, chunk);
                let way = &mut along[direction as usize];
                *way = self.stages[stage].leave(last_forward, *way) + last_forward.takes;
                *way += if chunk > 0 { times.transfer(pipeline, chunk - 1) } else { 0.0 };
            }
        }
    }

    /// From a forward in the main loop to the end of the depth and back takes so long, and the
    /// order lets only so many microbatches pass meanwhile: where their work is less, every such
    /// trip adds the difference.
    fn round_trips(&self, pipeline: &Pipeline, times: &Times) -> f64 {
        if !matches!(pipeline.schedule(), Schedule::OneF1b | Schedule::ZbH1 | Schedule::DualPipe | Schedule::DualPipeV)
        {
            return 0.0;
        }
        let chunks = pipeline.chunks();
        let (mut trip, mut bound) = (0.0, 0.0f64);
        for chunk in (0..chunks).rev() {
            trip += if chunk + 1 < chunks { 2.0 * times.transfer(pipeline, chunk) } else { 0.0 };
            trip += steady_passes(pipeline, times, chunk);
            let span = chunks - chunk;
            for direction in 0..pipeline.directions() {
                let stage = pipeline.stage_of(direction, chunk);
                let paths = &self.stages[stage as usize];
                let longer = trip - f64::from(span) * paths.round;
                if longer > 0.0 && paths.is_ordered() {
                    bound = bound.max(paths.joined() + f64::from(trips(pipeline, stage, chunk, span)) * longer);
                }
            }
        }
        bound
    }
}

/// What a forward and a backward of a chunk take in the main loop.
fn steady_passes(pipeline: &Pipeline, times: &Times, chunk: u32) -> f64 {
    let here = &times.chunks[chunk as usize];
    match pipeline.schedule() {
        Schedule::ZbH1 => here.forward + here.backward_input,
        Schedule::DualPipe | Schedule::DualPipeV => {
            let beside = &times.chunks[(pipeline.chunks() - 1 - chunk) as usize];
            times.overlapped * (here.forward + here.backward() + beside.forward + beside.backward())
        }
        _ => here.forward + here.backward(),
    }
}

/// How many trips of `span` microbatches follow each other on a chunk between the first backwards
/// of its stage and the last forwards, with every pass on the way in a main loop.
fn trips(pipeline: &Pipeline, stage: u32, chunk: u32, span: u32) -> u32 {
    let microbatches = pipeline.microbatches_per_direction();
    let fit = |from: u32, to: u32| if to < from { 0 } else { (to - from) / span };
    match pipeline.schedule() {
        // The first backward, or the last round without a weight pass, comes before forward `from`.
        Schedule::OneF1b => fit(span, microbatches - 1),
        Schedule::ZbH1 => fit(span - 1 + stage.max(1), microbatches - 1),
        _ => {
            let half = pipeline.chunks() / 2;
            let (from, to) = if chunk < half {
                // Of slot 0, after the first round of the main loop, to its last forward.
                (span, microbatches - 1)
            } else {
                // Of slot 1, likewise, to the last but one round of the main loop.
                (half + 1, (microbatches + span - 1).saturating_sub(half + 1))
            };
            // The last backwards that are overlapped on every stage are of this microbatch.
            let overlapped = microbatches.saturating_sub(half + 1);
            fit(from, to).min(if overlapped < from { 0 } else { fit(from, overlapped) + 1 })
        }
    }
}

impl Paths {
    /// A first action can be reached by `way` along the depth, or by the stage's own order: says
    /// when it starts at the earliest.
    fn reach(&mut self, mark: Mark, way: f64) -> f64 {
        let start = way.max(self.to_any + mark.work);
        self.to_any = self.to_any.max(start - mark.work);
        self.first_until = self.first_until.max(mark.blocks);
        start
    }

    /// The same of a last action and the end of the step: says how long that is after its end.
    fn leave(&mut self, mark: Mark, way: f64) -> f64 {
        let rest = way.max(self.from_any - mark.work);
        self.from_any = self.from_any.max(rest + mark.work);
        self.last_from = self.last_from.min(mark.blocks);
        rest
    }

    /// Whether all first actions come before all last ones.
    fn is_ordered(&self) -> bool {
        self.first_until < self.last_from
    }

    /// The longest path through the stage.
    fn joined(&self) -> f64 {
        if self.is_ordered() {
            return self.to_any + self.from_any;
        }
        (self.to_start + self.from_any).max(self.to_any + self.from_end)
    }
}
