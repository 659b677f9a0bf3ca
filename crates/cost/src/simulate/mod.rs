//! Pipeline schedules simulated event by event: every block of every stage's order
//! ([`layout::order`]) runs once what it needs has arrived and the stage is free.
//!
//! What a chunk's passes take, compute and the communication inside the stage together, is given.
//! So is the time an activation takes to the next stage: it arrives that long after the pass that
//! made it ended, and keeps the sender for a stated share of it. Links do not contend, receivers
//! are never kept, and nothing happens behind the last backward (no gradient reduction, no
//! optimizer step).

mod bound;
mod engine;
mod marks;
mod steady;
mod timeline;

pub use bound::Bound;
pub(crate) use engine::Observe;
pub use engine::Simulator;
pub use timeline::{Event, StageTimeline, Timeline};

use diag::{Blame, Finding};
use layout::Schedule;
use layout::order::Pipeline;

/// Seconds that passes over one chunk take for one microbatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChunkTimes {
    /// Forward.
    pub forward: f64,
    /// Backward for gradients of inputs, recomputed forward included.
    pub backward_input: f64,
    /// Backward for gradients of weights.
    pub backward_weight: f64,
}

impl ChunkTimes {
    /// Backward as a whole.
    pub fn backward(&self) -> f64 {
        self.backward_input + self.backward_weight
    }
}

/// All the times a simulation needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times<'a> {
    /// For every chunk, along the depth.
    pub chunks: &'a [ChunkTimes],
    /// Seconds from the end of a pass until its output is at the next chunk: one for every cut,
    /// the same forward and backward. A cut inside a stage costs nothing whatever is said here.
    pub transfers: &'a [f64],
    /// Share of a transfer that keeps the sender from its next pass: 0 where sends overlap with
    /// compute, 1 where they do not.
    pub serial: f64,
    /// What an overlapped forward and backward take, as a share of both run one after the other.
    pub overlapped: f64,
}

impl Times<'_> {
    /// Whether there is a time for everything the pipeline does, and each is one.
    pub fn check(&self, pipeline: &Pipeline) -> Result<(), Finding> {
        let refuse = |object: &str, message: String| Err(Finding::error("cost/times", Blame::Layout, object, message));
        let chunks = pipeline.chunks() as usize;
        if self.chunks.len() != chunks || self.transfers.len() + 1 != chunks {
            let message = format!(
                "{chunks} chunks have {chunks} times and {} cuts, and there are {} and {}",
                chunks - 1,
                self.chunks.len(),
                self.transfers.len()
            );
            return refuse("chunks", message);
        }
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        let all = |c: &ChunkTimes| [c.forward, c.backward_input, c.backward_weight].into_iter().all(is_time);
        if !self.chunks.iter().all(all) || !self.transfers.iter().copied().all(is_time) {
            return refuse("times", "a time is negative or not a number".to_string());
        }
        if !(0.0..=1.0).contains(&self.serial) || !is_time(self.overlapped) {
            return refuse("shares", format!("serial {} or overlapped {} is no share", self.serial, self.overlapped));
        }
        Ok(())
    }

    /// The transfer between a chunk and the next, which is nothing inside a stage.
    pub(crate) fn transfer(&self, pipeline: &Pipeline, cut: u32) -> f64 {
        if pipeline.stays(cut) { 0.0 } else { self.transfers[cut as usize] }
    }
}

/// Simulates all microbatches of a step.
pub fn simulate(pipeline: &Pipeline, times: &Times) -> Result<Timeline, Finding> {
    Simulator::default().run(pipeline, times)
}

/// Simulates all microbatches of a step and keeps every block, for drawing.
pub fn trace(pipeline: &Pipeline, times: &Times) -> Result<(Timeline, Vec<Event>), Finding> {
    Simulator::default().trace(pipeline, times)
}

/// Seconds that no simulation of these times comes below.
pub fn lower_bound(pipeline: &Pipeline, times: &Times) -> Result<f64, Finding> {
    Bound::default().lower(pipeline, times)
}

/// Microbatches that one chunk may have in flight, at most.
fn most_in_flight(pipeline: &Pipeline) -> u32 {
    let all = pipeline.microbatches_per_direction();
    match pipeline.schedule() {
        Schedule::GPipe => all,
        // Every other order keeps at most a pass a chunk, and as many more as there are stages.
        _ => all.min(pipeline.chunks() + pipeline.stages() + 1),
    }
}
