//! Pipeline schedules as objects: what every stage runs, in which order. Memory counts what an
//! order keeps in flight, cost simulates how long it takes, a runtime executes it; the order itself
//! is said once, here, one schedule a file.
//!
//! A stage's order is a [`Program`]: a few numbered loops over tiny verbs. Nothing is unrolled until
//! it is walked, so an order of any number of microbatches costs a few hundred bytes a stage.
//!
//! An order says nothing of how long a pass takes, of what it sends, or of which layers a chunk
//! holds (that is [`crate::StagePlan`]); it does not say when gradients are reduced.

mod dualpipe;
mod dualpipev;
mod gpipe;
mod interleaved;
mod one_f1b;
mod program;
mod stage;
mod zb_h1;

pub use program::{LONGEST_BODY, Loop, Program, Slot, Verb};
pub use stage::StageOrder;

use crate::layout::Layout;
use crate::request::Schedule;
use diag::{Blame, Finding};

/// One pass over one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Keeps what backward needs.
    Forward,
    /// Backward as a whole: gradients of inputs and of weights.
    Backward,
    /// Backward for gradients of inputs; those of weights wait.
    BackwardInput,
    /// Backward for the gradients of weights that waited.
    BackwardWeight,
}

/// A pass of one microbatch over one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    /// Forward, or which half of backward.
    pub pass: Pass,
    /// Of which microbatch of the step. Under DualPipe the first half enters at the first stage,
    /// the second half at the last.
    pub microbatch: u32,
    /// Over which chunk, counted along the depth as in [`crate::StagePlan::by_stage`].
    pub chunk: u32,
}

/// What a stage runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Nothing overlaps it.
    Alone(Action),
    /// A forward and a whole backward interleaved kernel by kernel, so that the one computes while
    /// the other communicates. Both inputs are there before the block starts.
    Overlapped {
        /// Of one microbatch.
        forward: Action,
        /// Of another, whole.
        backward: Action,
    },
}

impl Block {
    /// Its passes, forward first.
    pub fn actions(self) -> impl Iterator<Item = Action> {
        let (first, second) = match self {
            Block::Alone(action) => (action, None),
            Block::Overlapped { forward, backward } => (forward, Some(backward)),
        };
        std::iter::once(first).chain(second)
    }
}

/// The most passes of a stage: positions are counted in 32 bits.
const MOST_PASSES: u64 = 1 << 30;

/// The order of a whole pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pipeline {
    schedule: Schedule,
    pp: u32,
    vpp: u32,
    microbatches: u32,
}

impl Pipeline {
    /// The order of a schedule over `pp` stages of `vpp` chunks, or why there is none.
    pub fn new(schedule: Schedule, pp: u64, vpp: u64, microbatches: u64) -> Result<Pipeline, Finding> {
        let refuse = |message: String, hint: &str| {
            Err(Finding::error("order/shape", Blame::Layout, "schedule", message).hint(hint.to_string()))
        };
        if [pp, vpp, microbatches].contains(&0) {
            return refuse("an order needs a stage, a chunk and a microbatch".into(), "each is at least 1");
        }
        if pp.saturating_mul(vpp).saturating_mul(microbatches) > MOST_PASSES {
            let message = format!("{pp} stages of {vpp} chunks run {microbatches} microbatches");
            return refuse(message, "at most 2^30 passes over chunks can be ordered");
        }
        let chunks = match schedule {
            Schedule::Interleaved => vpp,
            Schedule::DualPipeV => 2,
            _ => 1,
        };
        if vpp != chunks {
            return refuse(format!("`{schedule}` does not run {vpp} chunks a stage"), &format!("vpp may be {chunks}"));
        }
        let least = match schedule {
            Schedule::DualPipe | Schedule::DualPipeV => 2 * pp,
            _ => 1,
        };
        let multiple = match schedule {
            Schedule::Interleaved => pp,
            Schedule::DualPipe => 2,
            _ => 1,
        };
        if microbatches < least || !microbatches.is_multiple_of(multiple) {
            let hint = format!("it takes a multiple of {multiple}, at least {least}");
            return refuse(format!("`{schedule}` over {pp} stages does not run {microbatches} microbatches"), &hint);
        }
        if schedule == Schedule::DualPipe && !pp.is_multiple_of(2) {
            return refuse(format!("DualPipe mirrors stages in pairs, and pp {pp} is odd"), "pp may be even");
        }
        Ok(Pipeline { schedule, pp: pp as u32, vpp: vpp as u32, microbatches: microbatches as u32 })
    }

    /// The order of a layout's schedule.
    pub fn of(layout: &Layout) -> Result<Pipeline, Finding> {
        Pipeline::new(layout.schedule, layout.pp.get(), layout.vpp.get(), layout.microbatches)
    }

    /// The same pipeline over another number of microbatches.
    pub fn with_microbatches(self, microbatches: u64) -> Result<Pipeline, Finding> {
        Pipeline::new(self.schedule, u64::from(self.pp), u64::from(self.vpp), microbatches)
    }

    /// As it was asked for: orders of equal loops stay apart.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// The pipeline-parallel degree.
    pub fn stages(&self) -> u32 {
        self.pp
    }

    /// Microbatches of a step, both directions together.
    pub fn microbatches(&self) -> u32 {
        self.microbatches
    }

    /// Chunks along the depth.
    pub fn chunks(&self) -> u32 {
        self.pp * self.vpp
    }

    /// Directions the depth is run through: two under DualPipe.
    pub fn directions(&self) -> u32 {
        if self.schedule == Schedule::DualPipe { 2 } else { 1 }
    }

    /// Microbatches of one direction, which are all that one held chunk sees.
    pub fn microbatches_per_direction(&self) -> u32 {
        self.microbatches / self.directions()
    }

    /// The direction a microbatch runs in.
    pub fn direction(&self, microbatch: u32) -> u32 {
        u32::from(microbatch >= self.microbatches_per_direction())
    }

    /// The stage that runs a chunk in a direction.
    pub fn stage_of(&self, direction: u32, chunk: u32) -> u32 {
        match self.schedule {
            Schedule::DualPipe if direction == 1 => self.pp - 1 - chunk,
            Schedule::DualPipeV if chunk >= self.pp => self.chunks() - 1 - chunk,
            Schedule::Interleaved => chunk % self.pp,
            _ => chunk,
        }
    }

    /// Whether a chunk and the next one are on the same stage.
    pub fn stays(&self, chunk: u32) -> bool {
        self.pp == 1 || (self.schedule == Schedule::DualPipeV && chunk + 1 == self.pp)
    }

    /// The direction and the (first) chunk of a slot of a stage.
    pub fn slot(&self, stage: u32, slot: Slot) -> (u32, u32) {
        match self.schedule {
            Schedule::DualPipe => {
                // Slot 0 of the second half of the stages is the direction that enters at the last.
                let direction = u32::from(stage >= self.pp / 2) ^ slot as u32;
                (direction, if direction == 0 { stage } else { self.pp - 1 - stage })
            }
            Schedule::DualPipeV if slot == 1 => (0, self.chunks() - 1 - stage),
            _ => (0, stage),
        }
    }

    /// The position of a chunk among those its stage holds, in the order of depth.
    pub fn local(&self, chunk: u32) -> usize {
        let local = match self.schedule {
            Schedule::DualPipe => u32::from(chunk >= self.pp / 2),
            _ => chunk / self.pp,
        };
        local as usize
    }

    /// Microbatches after which the steady state of the order repeats, chunk for chunk.
    pub fn period(&self) -> u32 {
        if self.schedule == Schedule::Interleaved { self.pp } else { self.directions() }
    }

    /// Rounds of the steady state that such a period takes.
    pub fn rounds_per_period(&self) -> u32 {
        if self.schedule == Schedule::Interleaved { self.chunks() } else { 1 }
    }

    /// The loops of a stage.
    pub fn program(&self, stage: u32) -> Program {
        match self.schedule {
            Schedule::GPipe => gpipe::program(self.microbatches),
            Schedule::OneF1b => one_f1b::program(self.pp, stage, self.microbatches),
            Schedule::Interleaved => interleaved::program(self.pp, self.vpp, stage, self.microbatches),
            Schedule::ZbH1 => zb_h1::program(self.pp, stage, self.microbatches),
            Schedule::DualPipe => dualpipe::program(self.pp, stage, self.microbatches),
            Schedule::DualPipeV => dualpipev::program(self.pp, stage, self.microbatches),
        }
    }

    /// What a stage runs, in order.
    pub fn stage(&self, stage: u32) -> StageOrder {
        StageOrder::new(self, stage)
    }

    /// The most passes over a chunk that a stage keeps saved tensors of: from the start of a
    /// forward to the end of its backward, or of its weight pass where backward is split. Walks the
    /// whole order.
    pub fn peak_in_flight(&self, stage: u32) -> u32 {
        let (mut flying, mut peak) = (0, 0);
        for action in self.stage(stage).flat_map(Block::actions) {
            match action.pass {
                Pass::Forward => flying += 1,
                Pass::BackwardInput => {}
                Pass::Backward | Pass::BackwardWeight => flying -= 1,
            }
            peak = peak.max(flying);
        }
        peak
    }
}
