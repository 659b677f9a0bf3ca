//! A whole step: the pipeline over each stage's own times, then what happens once a step; with a
//! breakdown that sums to the total.

use crate::Unpriced;
use crate::data::{OnceAStep, once_a_step, sharded_weights};
use crate::flops::{self, Convention};
use crate::part::{Part, Times};
use crate::prices::{ChunkTimes, Counts, Prices};
use layout::{Layout, Schedule, StagePlan};
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

impl Prices {
    /// The step of a layout whose degrees inside a layer are those of these prices.
    pub fn step(&self, layout: &Layout, plan: &StagePlan) -> Result<Step, Unpriced> {
        let counted = self.counted(plan);
        let chunks: Vec<ChunkTimes> = counted.chunks.iter().map(|c| self.chunk(layout, c.counts())).collect();
        let stages: Vec<Counts> = counted.stages.iter().map(Counted::counts).collect();
        let (seconds, once) = self.total(layout, &chunks, &stages);
        let slow = slowest(&stages, |s| self.chunk(layout, s).forward + self.chunk(layout, s).backward());
        let count = layout.microbatches as f64;
        let makespan = seconds / (1.0 + RESERVE) - once.exposed();
        let busy = |s: Counts| count * (self.chunk(layout, s).forward + self.chunk(layout, s).backward());
        let times: Vec<StageTime> =
            stages.iter().map(|s| StageTime { busy: busy(*s), idle: (makespan - busy(*s)).max(0.0) }).collect();
        let parts = self.lines(layout, stages[slow], times[slow].idle, &once, seconds);
        let idle: f64 = times.iter().map(|t| t.idle).sum();
        let convention = Convention::MaskedScores;
        let model_flops = flops::of_step(&self.recipe, layout, &self.options, convention);
        let each = model_flops / seconds / layout.world as f64;
        let peak = self.cluster.device.peaks.iter().find(|p| p.format == "bf16").map_or(f64::NAN, |p| p.flops);
        Ok(Step {
            seconds,
            bound: bound(&parts),
            parts,
            bubble: idle / times.iter().map(|t| t.busy).sum::<f64>(),
            stages: times,
            tokens_per_second_per_device: (layout.global_batch * layout.sequence) as f64
                / seconds
                / layout.world as f64,
            model_flops,
            convention,
            tflops_per_device: each / 1e12,
            mfu: each / peak,
        })
    }

    /// Seconds of a step without a breakdown and without allocating; never above [`Prices::step`].
    pub fn estimate(&self, layout: &Layout, chunks: &[ChunkTimes], stages: &[Counts]) -> f64 {
        self.total(layout, chunks, stages).0
    }

    /// Seconds of a chunk, with the gathers of ZeRO-3 that show.
    pub fn chunk(&self, layout: &Layout, counts: Counts) -> ChunkTimes {
        let mut times = self.stage(counts);
        let shown = sharded_weights(self, layout, &self.held(counts), times);
        times.forward += shown[0];
        times.backward_input += shown[1];
        times
    }

    /// Crude: the slowest stage's work, and a fill and drain of one microbatch over the others.
    fn total(&self, layout: &Layout, chunks: &[ChunkTimes], stages: &[Counts]) -> (f64, OnceAStep) {
        let count = layout.microbatches as f64;
        let of = |c: &ChunkTimes| c.forward + c.backward();
        let all: f64 = chunks.iter().map(of).sum();
        let mut slow: f64 = 0.0;
        let mut once = OnceAStep::default();
        for stage in stages {
            let times = self.chunk(layout, *stage);
            slow = slow.max(of(&times));
            let here = once_a_step(self, layout, &self.held(*stage), times);
            if here.exposed() > once.exposed() {
                once = here;
            }
        }
        let chunked = match layout.schedule {
            Schedule::OneF1b => 1.0,
            Schedule::ZbH1 => 3.0,
            _ => layout.vpp.get() as f64 * 2.0,
        };
        let makespan = count * slow + (all - slow).max(0.0) / chunked;
        ((makespan + once.exposed()) * (1.0 + RESERVE), once)
    }

    fn lines(&self, layout: &Layout, stage: Counts, idle: f64, once: &OnceAStep, seconds: f64) -> Vec<Line> {
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
        parts.push(("bubble", idle, "waiting for other stages"));
        parts.push(("gradients exposed", once.gradients[1], "gradients over replicas, beyond what backward hides"));
        parts.push(("weights exposed", once.weights[1], "weights over replicas, beyond what forward hides"));
        parts.push(("optimizer", once.optimizer, "reading and writing optimizer state"));
        parts.push(("offload", once.offload, "state over the host link"));
        parts.push(("reserve", seconds - seconds / (1.0 + RESERVE), "data, logging, the slowest of many ranks"));
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

fn slowest(stages: &[Counts], of: impl Fn(Counts) -> f64) -> usize {
    (0..stages.len()).max_by(|a, b| of(stages[*a]).total_cmp(&of(stages[*b]))).unwrap_or(0)
}

fn bound(parts: &[Line]) -> String {
    let most = parts.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    most.map_or(String::new(), |line| format!("{}: {:.0}% of the step", line.name, 100.0 * line.share))
}
