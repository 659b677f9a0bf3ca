//! A step laid out in time: what [`crate::step`] sums up, slice by slice on every stage.
//!
//! The pipeline's blocks are the simulation's own; inside a block only sums are known and stand one
//! after another ([`pieces`]). The schedule track of a stage has no gap: passes, waits and sends up to
//! the end of the last pass of any stage, then what happens once a step, then the reserve. Slices carry
//! the names of the step's lines, and sum to them.

mod kept;
mod pieces;
mod tail;

pub use kept::Folded;

use crate::Unpriced;
use crate::layer::LayerPrice;
use crate::part::Part;
use crate::prices::{Counts, Prices};
use crate::report::{Spent, StageTime};
use crate::simulate::{Event, Simulator, Times};
use kept::{Keeper, Kept};
use layout::order::{Action, Block, Pass, Pipeline};
use layout::{Layout, Schedule, StagePlan};
use pieces::{Passes, Sharded};
use units::Basis;

/// A row of a stage on which slices do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// Passes, waits and sends, without a gap.
    Schedule,
    /// Kernels of the device.
    Compute,
    /// What waits for the host.
    Host,
    /// Collectives over an axis.
    Axis(&'static str),
    /// Activations and gradients on their way to other stages; several rows where several are.
    Sends(u32),
}

/// What a slice is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// A pass, or two that overlap.
    Block(Block),
    /// Waiting for another stage; which, where one is missing. This is the bubble.
    Wait(Option<u32>),
    /// Waiting for what another stage does once a step.
    WaitForUpdate,
    /// Nothing but sending.
    Sending,
    /// Passes that are not drawn one by one.
    Folded(Folded),
    /// A part of a pass.
    Part(Part),
    /// The same, run again by recompute.
    Again(Part),
    /// A collective that compute hides.
    Hidden(Part),
    /// What a pass made, on its way to a stage.
    Transfer {
        /// The pass that made it.
        action: Action,
        /// Where it goes.
        to: u32,
    },
    /// Another line of the step, by its name.
    Line(&'static str),
    /// The same, while compute hides it.
    HiddenLine(&'static str),
    /// All that happens once a step behind the passes.
    Update,
}

impl What {
    /// Whether its seconds are those of kernels.
    fn is_compute(self) -> bool {
        match self {
            What::Part(part) | What::Again(part) => part.spent() == Spent::Compute,
            What::Line(name) => name == tail::OPTIMIZER,
            What::Block(_) | What::Folded(_) => true,
            _ => false,
        }
    }
}

/// A run of time on a stage.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// The stage.
    pub stage: u32,
    /// On which of its rows.
    pub track: Track,
    /// What runs.
    pub what: What,
    /// Seconds from the start of the step.
    pub start: f64,
    /// How long.
    pub seconds: f64,
    /// Bytes a rank sends in it, where it moves any.
    pub bytes: Option<f64>,
}

/// How much of a step is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Every part of every pass.
    Whole,
    /// Every pass; the parts of the first and last `edge` of a stage.
    Plain {
        /// Passes in parts at either end of a stage.
        edge: u32,
    },
    /// The first and last `edge` passes of a stage; those between are one slice.
    Folded {
        /// Passes at either end of a stage.
        edge: u32,
    },
}

/// A step laid out in time.
#[derive(Clone, Debug)]
pub struct Trace {
    /// All of it.
    pub seconds: f64,
    /// Every stage, as the step has them.
    pub stages: Vec<StageTime>,
    /// Slices, in no order.
    pub slices: Vec<Slice>,
    /// How much is drawn.
    pub detail: Detail,
    /// Where seconds of kernels come from, and all others.
    basis: [Basis; 2],
}

impl Trace {
    /// Where a slice's seconds come from. A pass has kernels in it and takes their word.
    pub fn basis(&self, slice: &Slice) -> &Basis {
        &self.basis[usize::from(!slice.what.is_compute())]
    }
}

/// Blocks that a trace of a job simulates, one after another.
pub fn blocks(layout: &Layout) -> Result<u64, Unpriced> {
    let pipeline = Pipeline::of(layout)?;
    Ok((0..pipeline.stages()).map(|stage| u64::from(blocks_of(&pipeline, stage))).sum())
}

fn blocks_of(pipeline: &Pipeline, stage: u32) -> u32 {
    pipeline.program(stage).loops().iter().map(|run| run.times * run.body.len() as u32).sum()
}

/// Slices of a stage behind its passes, and those drawn over the first and last.
const TAIL: usize = 12;

/// The most detail that keeps within so many slices; a pass has at most so many parts.
fn detail(pipeline: &Pipeline, parts: usize, most: usize) -> Result<Detail, Unpriced> {
    let stages = pipeline.stages() as usize;
    let longest = (0..pipeline.stages()).map(|stage| blocks_of(pipeline, stage)).max().unwrap_or(0) as usize;
    let passes = pipeline.directions().max(u32::from(pipeline.schedule() == Schedule::DualPipeV) * 2) as usize;
    let parts = passes * parts;
    // Itself and a wait; in a pipeline also a send, and what is sent.
    let around = 2 + if stages > 1 { 1 + passes } else { 0 };
    let each = parts + around;
    let budget = (most / stages).saturating_sub(TAIL);
    if longest.saturating_mul(each) <= budget {
        return Ok(Detail::Whole);
    }
    let plain = longest.saturating_mul(around);
    if plain <= budget / 4 * 3 {
        return Ok(Detail::Plain { edge: ((budget - plain) / 2 / parts.max(1)) as u32 });
    }
    match budget.saturating_sub(1) / (2 * each) {
        0 => {
            let why = format!("{stages} stages of {longest} passes are more than {most} slices can show");
            Err(Unpriced::new("a trace of this job", why))
        }
        edge => Ok(Detail::Folded { edge: edge as u32 }),
    }
}

impl Prices {
    /// The step of a layout laid out in time, in at most so many slices.
    pub fn trace(&self, layout: &Layout, plan: &StagePlan, most: usize) -> Result<Trace, Unpriced> {
        let (counted, placed) = (self.counted(plan), self.placed(layout));
        let chunks: Vec<_> = counted.chunks.iter().map(|chunk| self.chunk(&placed, chunk.counts())).collect();
        let stages: Vec<Counts> = counted.stages.iter().map(|stage| stage.counts()).collect();
        let passes: Vec<Passes> = counted.chunks.iter().map(|chunk| self.pieces_of(layout, chunk.counts())).collect();
        let transfers = vec![self.transfer(layout); chunks.len().saturating_sub(1)];
        let (pipeline, times) = (Pipeline::of(layout)?, self.times(layout, &chunks, &transfers));
        times.check(&pipeline)?;
        let parts = passes.iter().map(Passes::most).max().unwrap_or(0);
        let detail = detail(&pipeline, parts, most)?;
        let draw = Draw { pipeline, times, passes, transfer_bytes: self.transfer_bytes(layout) };
        let sending = |event: &Event| draw.sending(event);
        let blocks = (0..pipeline.stages()).map(|stage| blocks_of(&pipeline, stage));
        let mut keeper = Keeper::new(blocks, detail, &sending);
        let timeline = Simulator::default().observed(&pipeline, &times, &mut keeper);
        let mut slices = Vec::new();
        for (stage, seen) in keeper.stages.iter().enumerate() {
            draw.stage(stage as u32, &seen.kept, timeline.makespan, &mut slices);
        }
        let seconds = self.draw_tail(layout, &stages, &timeline, &mut slices);
        let (compute, modelled) = self.bases();
        let stage_time =
            |s: &crate::simulate::StageTimeline| StageTime { busy: s.busy, idle: s.idle, sending: s.sending };
        let stages = timeline.stages.iter().map(stage_time).collect();
        Ok(Trace { seconds, stages, slices, detail, basis: [compute, modelled] })
    }

    fn pieces_of(&self, layout: &Layout, counts: Counts) -> Passes {
        let price: LayerPrice = self.of_chunk(counts);
        let (with, without) = (self.chunk(&self.placed(layout), counts), self.stage(counts));
        let shown = [with.forward - without.forward, with.backward_input - without.backward_input];
        let moved = self.state_moved(layout, counts);
        // What a chunk takes beyond its layers is the device waiting for the host.
        let passes = price.passes(self.setting.slowest);
        let late = [without.forward - passes[0], without.backward() - passes[1] - passes[2]];
        let more = |seconds: f64| if seconds > ROUNDING * without.backward() { seconds } else { 0.0 };
        let sharded = Sharded { seconds: shown.map(more), bytes: moved.inside };
        Passes::new(&price, sharded, late.map(more), self.setting.slowest - 1.0)
    }
}

/// Differences of sums, against what is summed, that are none.
const ROUNDING: f64 = 1e-12;

/// What blocks are drawn with.
struct Draw<'a> {
    pipeline: Pipeline,
    times: Times<'a>,
    passes: Vec<Passes>,
    transfer_bytes: f64,
}

impl Draw<'_> {
    /// Where an action's output goes and how long it takes there, unless it stays.
    fn transfer(&self, action: Action) -> Option<(u32, f64)> {
        let to = match action.pass {
            Pass::Forward => Some(action.chunk + 1).filter(|chunk| *chunk < self.pipeline.chunks())?,
            Pass::Backward | Pass::BackwardInput => action.chunk.checked_sub(1)?,
            Pass::BackwardWeight => return None,
        };
        let seconds = self.times.transfer(&self.pipeline, to.min(action.chunk));
        let stage = self.pipeline.stage_of(self.pipeline.direction(action.microbatch), to);
        (seconds > 0.0).then_some((stage, seconds))
    }

    fn sending(&self, event: &Event) -> f64 {
        let sent = event.block.actions().filter_map(|action| self.transfer(action)).map(|(_, seconds)| seconds);
        self.times.serial * sent.sum::<f64>()
    }

    /// Whom a block may have waited for: who made what its first pass needs.
    fn needs(&self, block: Block) -> Option<u32> {
        let action = block.actions().next()?;
        let from = match action.pass {
            Pass::Forward => action.chunk.checked_sub(1)?,
            Pass::Backward | Pass::BackwardInput => {
                Some(action.chunk + 1).filter(|chunk| *chunk < self.pipeline.chunks())?
            }
            Pass::BackwardWeight => return None,
        };
        Some(self.pipeline.stage_of(self.pipeline.direction(action.microbatch), from))
    }

    /// A stage up to the end of the last pass of any.
    fn stage(&self, stage: u32, kept: &[Kept], makespan: f64, slices: &mut Vec<Slice>) {
        let mut clock = 0.0;
        let mut lanes: Vec<f64> = Vec::new();
        let row = |what, start, end: f64| Slice {
            stage,
            track: Track::Schedule,
            what,
            start,
            seconds: end - start,
            bytes: None,
        };
        for kept in kept {
            match *kept {
                Kept::Folded { from, to, folded } => {
                    slices.push(row(What::Folded(folded), from, to));
                    clock = to;
                }
                Kept::Block { event, sending, in_parts } => {
                    if event.start > clock {
                        slices.push(row(What::Wait(self.needs(event.block)), clock, event.start));
                    }
                    slices.push(row(What::Block(event.block), event.start, event.end));
                    clock = event.end + sending;
                    if sending > 0.0 {
                        slices.push(row(What::Sending, event.end, clock));
                    }
                    self.transfers(&event, &mut lanes, slices);
                    if in_parts {
                        self.parts(&event, slices);
                    }
                }
            }
        }
        if makespan > clock {
            slices.push(row(What::Wait(None), clock, makespan));
        }
    }

    fn transfers(&self, event: &Event, lanes: &mut Vec<f64>, slices: &mut Vec<Slice>) {
        for action in event.block.actions() {
            let Some((to, seconds)) = self.transfer(action) else { continue };
            let free = lanes.iter().position(|end| *end <= event.end);
            let lane = free.unwrap_or(lanes.len());
            lanes.resize(lanes.len().max(lane + 1), 0.0);
            lanes[lane] = event.end + seconds;
            slices.push(Slice {
                stage: event.stage,
                track: Track::Sends(lane as u32),
                what: What::Transfer { action, to },
                start: event.end,
                seconds,
                bytes: Some(self.transfer_bytes),
            });
        }
    }

    /// Passes that overlap are drawn one after the other, each as long as its share of both.
    fn parts(&self, event: &Event, slices: &mut Vec<Slice>) {
        let by = if matches!(event.block, Block::Overlapped { .. }) { self.times.overlapped } else { 1.0 };
        let mut from = event.start;
        for action in event.block.actions() {
            let mut to = from;
            for piece in self.passes[action.chunk as usize].of(action.pass) {
                let start = (from + by * piece.at).min(event.end);
                let end = (start + by * piece.seconds).min(event.end);
                to = end.max(to);
                slices.push(Slice {
                    stage: event.stage,
                    track: piece.track,
                    what: piece.what,
                    start,
                    seconds: end - start,
                    bytes: piece.bytes,
                });
            }
            from = to;
        }
    }
}
