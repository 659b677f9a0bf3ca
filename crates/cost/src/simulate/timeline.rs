//! What a simulation comes to.

use layout::order::Block;

/// One stage over the whole step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageTimeline {
    /// Seconds it computes.
    pub busy: f64,
    /// Seconds it does nothing but send.
    pub sending: f64,
    /// Seconds of the step that it does neither: the bubble.
    pub idle: f64,
    /// The most passes over a chunk that it keeps saved tensors of.
    pub peak_in_flight: u32,
    /// When its first block starts.
    pub first_start: f64,
    /// When it is done.
    pub last_end: f64,
}

/// Seconds of a step that a stage neither computes nor sends. Sums of one step in different orders differ in
/// their last digits; nobody waits less than nothing.
pub(super) fn idle(makespan: f64, busy: f64, sending: f64) -> f64 {
    let left = makespan - busy - sending;
    if left > 0.0 { left } else { 0.0 }
}

/// A step of the pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Seconds from the first start to the last end.
    pub makespan: f64,
    /// Every stage.
    pub stages: Vec<StageTimeline>,
}

impl Timeline {
    /// Idle seconds over busy seconds, all stages together: the published "bubble over ideal".
    pub fn bubble_over_ideal(&self) -> f64 {
        let (idle, busy) = self.stages.iter().fold((0.0, 0.0), |(i, b), s| (i + s.idle, b + s.busy));
        idle / busy
    }

    /// The most idle seconds of any stage.
    pub fn worst_idle(&self) -> f64 {
        self.stages.iter().map(|stage| stage.idle).fold(0.0, f64::max)
    }
}

/// A block with its times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// On which stage.
    pub stage: u32,
    /// What runs.
    pub block: Block,
    /// Seconds from the start of the step.
    pub start: f64,
    /// Likewise, without the sending behind it.
    pub end: f64,
}
