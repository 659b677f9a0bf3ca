//! A whole step: the pipeline over each stage's own times, then what happens once a step; with a
//! breakdown that sums to the total.

use crate::Unpriced;
use crate::data::{OnceAStep, once_a_step, sharded_weights};
use crate::flops::{self, Convention};
use crate::part::{Part, Times};
use crate::prices::{Counts, Prices};
use crate::simulate::{self, Bound, ChunkTimes, Simulator, StageTimeline};
use crate::traffic::Collective;
use layout::order::Pipeline;
use layout::{Layout, StagePlan};
use serde::Serialize;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Curves read off this device.
    Measured,
    /// Curves or rates with a named source, or a device's that borrows another's curves.
    Modelled,
}

/// One line of the breakdown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Which part.
    pub name: &'static str,
    /// Seconds of the step.
    pub seconds: f64,
    /// Of the whole step.
    pub share: f64,
    /// Where the figure comes from.
    pub basis: Basis,
    /// What it is.
    pub what: &'static str,
}

/// One stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StageTime {
    /// Seconds it computes or waits for collectives of its own.
    pub busy: f64,
    /// Seconds it waits for other stages.
    pub idle: f64,
    /// Seconds it does nothing but send to them.
    pub sending: f64,
}

/// What a step takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// All of it.
    pub seconds: f64,
    /// The breakdown, on the stage that bounds the pipeline.
    pub parts: Vec<Line>,
    /// Idle over busy seconds, all stages together.
    pub bubble: f64,
    /// Every stage.
    pub stages: Vec<StageTime>,
    /// Tokens a second on one device.
    pub tokens_per_second_per_device: f64,
    /// Operations of the model.
    pub model_flops: f64,
    /// How they are counted.
    pub convention: Convention,
    /// In 10^12 a second on one device.
    pub tflops_per_device: f64,
    /// Against the device's stated peak in bf16.
    pub mfu: f64,
    /// What bounds it, in words.
    pub bound: String,
}

/// Data, logging and the slowest of many ranks, as a share of the step: a stated reserve.
const RESERVE: f64 = 0.02;

/// Memory of estimates: use one for many.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    transfers: Vec<f64>,
    bound: Bound,
}

impl Prices {
    /// The step of a layout whose degrees inside a layer are those of these prices.
    pub fn step(&self, layout: &Layout, plan: &StagePlan) -> Result<Step, Unpriced> {
        let counted = self.counted(plan);
        let chunks: Vec<ChunkTimes> = counted.chunks.iter().map(|c| self.chunk(layout, c.counts())).collect();
        let stages: Vec<Counts> = counted.stages.iter().map(Counted::counts).collect();
        let transfers = vec![self.transfer(layout); chunks.len().saturating_sub(1)];
        let pipeline = Pipeline::of(layout)?;
        let timeline = Simulator::default().run_steady(&pipeline, &self.times(&chunks, &transfers))?;
        let once = self.once(layout, &stages);
        let seconds = self.with_reserve(timeline.makespan + once.exposed());
        let stage_time = |s: &StageTimeline| StageTime { busy: s.busy, idle: s.idle, sending: s.sending };
        let times: Vec<StageTime> = timeline.stages.iter().map(stage_time).collect();
        let slow = (0..times.len()).max_by(|a, b| times[*a].busy.total_cmp(&times[*b].busy)).unwrap_or(0);
        let parts = self.lines(layout, stages[slow], times[slow], &once, seconds);
        let convention = Convention::MaskedScores;
        let model_flops = flops::of_step(&self.recipe, layout, &self.options, convention);
        let each = model_flops / seconds / layout.world as f64;
        let tokens = (layout.global_batch * layout.sequence) as f64;
        Ok(Step {
            seconds,
            bound: bound(&parts),
            parts,
            bubble: timeline.bubble_over_ideal(),
            stages: times,
            tokens_per_second_per_device: tokens / seconds / layout.world as f64,
            model_flops,
            convention,
            tflops_per_device: each / 1e12,
            mfu: each / self.cluster.device.peak("bf16")?.flops,
        })
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
        scratch.transfers.clear();
        scratch.transfers.resize(chunks.len().saturating_sub(1), self.transfer(layout));
        let pipeline = Pipeline::of(layout)?;
        let makespan = scratch.bound.lower(&pipeline, &self.times(chunks, &scratch.transfers))?;
        Ok(self.with_reserve(makespan + self.once(layout, stages).exposed()))
    }

    /// Data, logging, the optimizer's host loops and the slowest of many ranks.
    fn with_reserve(&self, seconds: f64) -> f64 {
        seconds * (1.0 + RESERVE) + self.meter.profile().launch.step_seconds
    }

    fn times<'a>(&self, chunks: &'a [ChunkTimes], transfers: &'a [f64]) -> simulate::Times<'a> {
        let serial = if self.options.overlap.p2p { 0.0 } else { 1.0 };
        simulate::Times { chunks, transfers, serial, overlapped: 1.0 }
    }

    /// Seconds an activation takes to the next stage. Stages lie outermost, so neighbours are a
    /// whole replica's ranks apart.
    fn transfer(&self, layout: &Layout) -> f64 {
        let bytes = 2.0 * (layout.tokens_per_microbatch_per_rank() * self.recipe.hidden) as f64;
        let neighbours = self.fabric.spread(2.min(layout.pp.get()), layout.world / layout.pp.get());
        self.fabric.time(Collective::Send, bytes, neighbours).seconds
    }

    /// What the stage that waits longest does once a step. A stage further down the pipeline
    /// starts later and ends sooner, by at least a pass over each stage before it.
    fn once(&self, layout: &Layout, stages: &[Counts]) -> OnceAStep {
        let mut once = OnceAStep::default();
        let mut slack = 0.0;
        for stage in stages {
            let times = self.chunk(layout, *stage);
            let here = once_a_step(self, layout, &self.held(*stage), times, slack);
            if here.exposed() > once.exposed() {
                once = here;
            }
            slack += times.forward.min(times.backward()) / layout.vpp.get() as f64;
        }
        once
    }

    /// Seconds of a chunk, with the gathers of ZeRO-3 that show.
    pub fn chunk(&self, layout: &Layout, counts: Counts) -> ChunkTimes {
        let mut times = self.stage(counts);
        let shown = sharded_weights(self, layout, &self.held(counts), times);
        times.forward += shown[0];
        times.backward_input += shown[1];
        times
    }

    fn lines(&self, layout: &Layout, stage: Counts, time: StageTime, once: &OnceAStep, seconds: f64) -> Vec<Line> {
        let mut inside = Times::default();
        for (price, &count) in self.layers.iter().zip(stage.layers) {
            inside += price.all() * count as f64;
        }
        if stage.is_first {
            inside += self.front.all();
        }
        if stage.is_last {
            inside += self.back.all();
        }
        let count = layout.microbatches as f64;
        let mut parts: Vec<(&'static str, f64, &'static str)> =
            Part::ALL.iter().map(|(name, part)| (*name, count * inside.of(*part), "inside layers")).collect();
        let shown = self.chunk(layout, stage);
        let plain = self.stage(stage);
        let gathers = shown.forward + shown.backward() - plain.forward - plain.backward();
        parts.push(("zero-3 exposed", count * gathers, "gathers and reductions of sharded weights that show"));
        parts.push(("bubble", time.idle, "waiting for other stages"));
        parts.push(("pp exposed", time.sending, "sending activations and their gradients to other stages"));
        parts.push(("gradients exposed", once.gradients[1], "gradients over replicas, beyond what backward hides"));
        parts.push(("weights exposed", once.weights[1], "weights over replicas, beyond what forward hides"));
        parts.push(("optimizer", once.optimizer, "reading and writing optimizer state"));
        parts.push(("offload", once.offload, "state over the host link"));
        let rest = seconds - parts.iter().map(|(_, s, _)| s).sum::<f64>();
        parts.push(("reserve", rest, "data, logging, host loops of the optimizer, the slowest of many ranks"));
        let lines = parts.into_iter().filter(|(_, s, _)| *s > 0.0);
        let line = |(name, s, what)| Line { name, seconds: s, share: s / seconds, basis: Basis::Modelled, what };
        lines.map(line).collect()
    }

    fn counted(&self, plan: &StagePlan) -> CountedPlan {
        let count = |chunks: &[usize]| {
            let mut layers = vec![0; self.kinds.len()];
            for &chunk in chunks {
                plan.chunks[chunk].layers.clone().for_each(|layer| layers[self.kind_of_layer[layer]] += 1);
            }
            let last = plan.chunks.len() - 1;
            Counted { layers, is_first: chunks.contains(&0), is_last: chunks.contains(&last) }
        };
        CountedPlan {
            chunks: (0..plan.chunks.len()).map(|chunk| count(&[chunk])).collect(),
            stages: plan.by_stage.iter().map(|held| count(held)).collect(),
        }
    }
}

struct Counted {
    layers: Vec<u64>,
    is_first: bool,
    is_last: bool,
}

impl Counted {
    fn counts(&self) -> Counts<'_> {
        Counts { layers: &self.layers, is_first: self.is_first, is_last: self.is_last }
    }
}

struct CountedPlan {
    chunks: Vec<Counted>,
    stages: Vec<Counted>,
}

fn bound(parts: &[Line]) -> String {
    let most = parts.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    most.map_or(String::new(), |line| format!("{}: {:.0}% of the step", line.name, 100.0 * line.share))
}
