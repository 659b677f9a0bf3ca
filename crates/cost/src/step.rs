//! A whole step: the pipeline over each stage's own times, then what happens once a step; with a
//! breakdown that sums to the total.

use crate::Unpriced;
use crate::data::{OnceAStep, Placed, once_a_step, replicas, sharded_weights, widths};
use crate::flops::{self, Convention};
use crate::prices::{Counts, Load, Prices};
use crate::report::{Slowest, StageTime, Step, bound};
use crate::simulate::{self, Bound, ChunkTimes, Simulator, StageTimeline, Timeline};
use crate::traffic::{Collective, Moved, Spread};
use case::PerKind;
use layout::order::Pipeline;
use layout::{Layout, StagePlan};

/// Memory of estimates: use one for many.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    transfers: Vec<f64>,
    bound: Bound,
    simulator: Simulator,
}

impl Prices {
    /// Refuses stages and replicas that have no way to one another over the network.
    pub(crate) fn reaches(&self, layout: &Layout) -> Result<(), Unpriced> {
        let fabric = &self.setting.fabric;
        if !fabric.has_gaps() {
            return Ok(());
        }
        fabric.reaches("pp", Collective::Send, self.neighbours(layout))?;
        for (axis, of) in ["dp", "edp"].into_iter().zip(replicas(self, layout)) {
            fabric.reaches(axis, Collective::AllReduce, of.sharing)?;
            fabric.reaches(axis, Collective::AllReduce, of.copies)?;
        }
        Ok(())
    }

    /// The step of a layout whose degrees inside a layer are those of these prices.
    pub fn step(&self, layout: &Layout, plan: &StagePlan) -> Result<Step, Unpriced> {
        self.reaches(layout)?;
        let counted = self.counted(plan);
        let placed = self.placed(layout);
        let chunks: Vec<ChunkTimes> = counted.chunks.iter().map(|c| self.chunk(&placed, c.counts())).collect();
        let stages: Vec<Counts> = counted.stages.iter().map(Counted::counts).collect();
        let simulated = self.simulated(layout, &chunks, &stages)?;
        let peak = self.setting.cluster.device.peak("bf16")?.flops;
        Ok(told(|_| self, layout, plan, &counted, simulated, peak))
    }

    /// Seconds of [`Prices::step`] without its breakdown, simulated unless `wants` turns its estimate down.
    /// `chunks` are [`Prices::chunk`]'s of every chunk along the depth, `stages` what each stage holds.
    pub fn seconds(
        &self,
        scratch: &mut Scratch,
        layout: &Layout,
        (chunks, stages): (&[ChunkTimes], &[Counts]),
        wants: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, Unpriced> {
        self.reaches(layout)?;
        let once = self.once(layout, stages).exposed();
        let least = self.least_makespan(scratch, layout, chunks)?;
        if !wants(self.with_reserve(least + once)) {
            return Ok(None);
        }
        let Scratch { transfers, simulator, .. } = scratch;
        let makespan = simulator.run_steady(&Pipeline::of(layout)?, &self.times(layout, chunks, transfers))?.makespan;
        Ok(Some(self.with_reserve(makespan + once)))
    }

    fn simulated(
        &self,
        layout: &Layout,
        chunks: &[ChunkTimes],
        stages: &[Counts],
    ) -> Result<(Timeline, OnceAStep, f64), Unpriced> {
        let transfers = vec![self.transfer(layout); chunks.len().saturating_sub(1)];
        let pipeline = Pipeline::of(layout)?;
        let timeline = Simulator::default().run_steady(&pipeline, &self.times(layout, chunks, &transfers))?;
        let once = self.once(layout, stages);
        let seconds = self.with_reserve(timeline.makespan + once.exposed());
        Ok((timeline, once, seconds))
    }

    /// Seconds of a step without a breakdown and without allocating; never above [`Prices::step`].
    /// `chunks` are [`Prices::chunk`]'s of every chunk along the depth, `stages` what each stage
    /// holds.
    pub fn estimate(
        &self,
        scratch: &mut Scratch,
        layout: &Layout,
        chunks: &[ChunkTimes],
        stages: &[Counts],
    ) -> Result<f64, Unpriced> {
        self.reaches(layout)?;
        let makespan = self.least_makespan(scratch, layout, chunks)?;
        Ok(self.with_reserve(makespan + self.once(layout, stages).exposed()))
    }

    /// Seconds that the pipeline of a step does not come below: the part of an estimate that does
    /// not depend on the optimizer, nor on ZeRO below 3.
    pub fn least_makespan(
        &self,
        scratch: &mut Scratch,
        layout: &Layout,
        chunks: &[ChunkTimes],
    ) -> Result<f64, Unpriced> {
        scratch.transfers.clear();
        scratch.transfers.resize(chunks.len().saturating_sub(1), self.transfer(layout));
        let pipeline = Pipeline::of(layout)?;
        Ok(scratch.bound.lower(&pipeline, &self.times(layout, chunks, &scratch.transfers))?)
    }

    /// An estimate whose pipeline takes so long, were this the stage that waits longest at its end;
    /// `slack` is that of the stages before it ([`Prices::slack`]). The estimate is the largest over
    /// the stages; of stages that hold the same the first is enough, since a later one hides more.
    pub fn around(&self, placed: &Placed, makespan: f64, stage: &Load, slack: f64) -> f64 {
        self.with_reserve(makespan + once_a_step(self, placed, stage, slack).exposed())
    }

    /// How much later the stage behind one that takes so long starts, at least, and ends sooner.
    pub fn slack(&self, layout: &Layout, times: ChunkTimes) -> f64 {
        times.forward.min(times.backward()) / layout.vpp.get() as f64
    }

    /// With a step's own: data, logging, the norm of gradients.
    pub(crate) fn with_reserve(&self, seconds: f64) -> f64 {
        seconds + self.setting.meter.profile().host.step_seconds
    }

    pub(crate) fn times<'a>(
        &self,
        layout: &Layout,
        chunks: &'a [ChunkTimes],
        transfers: &'a [f64],
    ) -> simulate::Times<'a> {
        // Every chunk but the last of a stage leaves another one to run meanwhile.
        let is_hidden = self.setting.options.overlap.p2p && layout.vpp.splits();
        let serial = if is_hidden { self.setting.meter.profile().collectives.occupied } else { 1.0 };
        simulate::Times { chunks, transfers, serial, overlapped: 1.0 }
    }

    /// Seconds an activation takes to the next stage. Stages lie outermost, so neighbours are a
    /// whole replica's ranks apart.
    pub(crate) fn transfer(&self, layout: &Layout) -> f64 {
        self.sent(layout).seconds
    }

    /// An activation on its way to the next stage.
    pub(crate) fn sent(&self, layout: &Layout) -> Moved {
        self.setting.fabric.time(Collective::Send, self.transfer_bytes(layout), self.neighbours(layout))
    }

    /// Two stages that follow each other.
    pub(crate) fn neighbours(&self, layout: &Layout) -> Spread {
        self.setting.fabric.spread(2.min(layout.pp.get()), layout.world / layout.pp.get())
    }

    /// Bytes of an activation on its way there.
    pub(crate) fn transfer_bytes(&self, layout: &Layout) -> f64 {
        2.0 * (layout.tokens_per_microbatch_per_rank() * self.setting.recipe.residual_width()) as f64
    }

    /// What the stage that waits longest does once a step. A stage further down the pipeline
    /// starts later and ends sooner, by at least a pass over each stage before it.
    pub(crate) fn once(&self, layout: &Layout, stages: &[Counts]) -> OnceAStep {
        let placed = self.placed(layout);
        let mut once = OnceAStep::default();
        let (mut slack, mut pass) = (0.0, 0.0);
        for (index, stage) in stages.iter().enumerate() {
            // A stage like the one before it holds as much, and has more slack.
            if index == 0 || stages[index - 1] != *stage {
                let load = self.load(&placed, *stage);
                pass = self.slack(layout, load.times);
                let here = once_a_step(self, &placed, &load, slack);
                if here.exposed() > once.exposed() {
                    once = here;
                }
            }
            slack += pass;
        }
        let tied = self.tied_tables(layout);
        once.gradients[0] += tied;
        once.gradients[1] += tied;
        once
    }

    /// Gradients of the token table's copies on first and last stage.
    pub(crate) fn tied_tables(&self, layout: &Layout) -> f64 {
        let ends = self.setting.fabric.spread(2.min(layout.pp.get()), layout.world / layout.pp.get());
        self.setting.fabric.time(Collective::AllReduce, self.tied_bytes(), ends).seconds
    }

    pub(crate) fn tied_bytes(&self) -> f64 {
        self.tied_held.trained[0] * widths(self).0
    }

    /// Seconds of a chunk or stage for one microbatch, with the gathers of ZeRO-3 that show.
    pub fn chunk(&self, placed: &Placed, counts: Counts) -> ChunkTimes {
        if placed.moves_inside() { self.load(placed, counts).times } else { self.stage(counts) }
    }

    /// What a chunk or stage takes and holds.
    pub fn load(&self, placed: &Placed, counts: Counts) -> Load {
        let port = placed.with_sends(self.port(counts), counts);
        let mut load = Load { times: self.stage(counts), held: self.held(counts), port };
        let shown = sharded_weights(self, placed, &load);
        load.times.forward += shown[0];
        load.times.backward_input += shown[1];
        load
    }

    pub(crate) fn counted(&self, plan: &StagePlan) -> CountedPlan {
        let last = plan.chunks.len() - 1;
        let count = |chunks: &[usize]| Counted {
            layers: self.kinds().count(chunks.iter().flat_map(|chunk| plan.chunks[*chunk].layers.clone())),
            is_first: chunks.contains(&0),
            is_last: chunks.contains(&last),
        };
        CountedPlan {
            chunks: (0..plan.chunks.len()).map(|chunk| count(&[chunk])).collect(),
            stages: plan.by_stage.iter().map(|held| count(held)).collect(),
        }
    }
}

pub(crate) struct Counted {
    layers: PerKind<u64>,
    is_first: bool,
    is_last: bool,
}

impl Counted {
    pub(crate) fn counts(&self) -> Counts<'_> {
        Counts { layers: &self.layers, is_first: self.is_first, is_last: self.is_last }
    }
}

/// What a simulated step comes to, with the breakdown of the stage that is busiest by that stage's prices. `peak` is a
/// device's, the mean of all where they are not alike.
pub(crate) fn told<'p>(
    of_stage: impl FnOnce(usize) -> &'p Prices,
    layout: &Layout,
    plan: &StagePlan,
    counted: &CountedPlan,
    (timeline, once, seconds): (Timeline, OnceAStep, f64),
    peak: f64,
) -> Step {
    let stage_time = |s: &StageTimeline| StageTime { busy: s.busy, idle: s.idle, sending: s.sending };
    let times: Vec<StageTime> = timeline.stages.iter().map(stage_time).collect();
    let slow = (0..times.len()).max_by(|a, b| times[*a].busy.total_cmp(&times[*b].busy)).unwrap_or(0);
    let prices = of_stage(slow);
    let late = plan.by_stage[slow].iter().map(|chunk| prices.late(counted.chunks[*chunk].counts())).sum();
    let owner = |chunk: usize| plan.by_stage.iter().position(|chunks| chunks.contains(&chunk));
    let leaves = |chunk: Option<usize>| chunk.and_then(owner).is_some_and(|stage| stage != slow);
    let neighbours = |chunk: &usize| [chunk.checked_sub(1), Some(chunk + 1)];
    let sends = plan.by_stage[slow].iter().flat_map(neighbours).filter(|chunk| leaves(*chunk)).count();
    let slow = Slowest { counts: counted.stages[slow].counts(), time: times[slow], once, late, sends };
    let parts = prices.lines(layout, &slow, seconds);
    let convention = Convention::MaskedScores;
    let model_flops = flops::of_step(&prices.setting.recipe, layout, &prices.setting.options, convention);
    let each = model_flops / seconds / layout.world as f64;
    let tokens = (layout.global_batch * layout.sequence) as f64;
    Step {
        seconds,
        interval: None,
        bound: bound(&parts),
        parts,
        bubble: slow.time.idle / seconds,
        traffic: prices.traffic(layout, &slow),
        stages: times,
        tokens_per_second_per_device: tokens / seconds / layout.world as f64,
        model_flops,
        convention,
        tflops_per_device: each / 1e12,
        mfu: each / peak,
    }
}

pub(crate) struct CountedPlan {
    pub(crate) chunks: Vec<Counted>,
    pub(crate) stages: Vec<Counted>,
}
