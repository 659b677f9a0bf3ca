//! How long layouts take at least, a few sums each: what the search orders and leaves out by.

use crate::point::Key;
use crate::price::{Mesh, Pricer};
use crate::shape::{Shape, Stage};
use cost::simulate::ChunkTimes;
use cost::{Prices, Unpriced};
use layout::{Layout, Schedule, ZeroStage};

/// The times of all layouts of one key and policy, in the order they are judged in.
#[derive(Default)]
pub(crate) struct Clock {
    /// Seconds a sequence takes, at least.
    pub seconds: Vec<f64>,
    /// What distinct chunks take, and distinct stages.
    chunks: Vec<ChunkTimes>,
    stages: Vec<ChunkTimes>,
    along: Vec<ChunkTimes>,
    scratch: cost::Scratch,
}

impl Clock {
    /// The least of them.
    pub fn least(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Reads every layout's time.
    pub fn read(
        &mut self,
        pricer: &Pricer,
        key: &Key,
        meshes: &[Mesh],
        prices: &mut Prices,
        layout: &mut Layout,
    ) -> Result<(), Unpriced> {
        self.seconds.clear();
        for &mesh in meshes {
            for (_, shape) in pricer.shapes(mesh) {
                pricer.space.set_pipeline(layout, key, mesh.pp, shape.order);
                let mut known: Option<(ZeroStage, f64)> = None;
                for zero in pricer.states(key, mesh.pp) {
                    layout.zero = zero;
                    // Below ZeRO 2 nothing of it happens inside a microbatch.
                    let inside = zero.max(ZeroStage::One);
                    let makespan = match known {
                        Some((same, makespan)) if same == inside => makespan,
                        _ => self.makespan(prices, layout, shape)?,
                    };
                    known = Some((inside, makespan));
                    for &offload in &pricer.space.offload {
                        prices.set_offload(pricer.space.question.offload.share(offload));
                        let seconds = self.step(prices, layout, shape, makespan);
                        self.seconds.push(seconds / layout.global_batch as f64);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads what chunks and stages take.
    fn pass(&mut self, prices: &Prices, layout: &Layout, shape: &Shape) {
        self.chunks.clear();
        self.chunks.extend(shape.chunks.iter().map(|chunk| prices.chunk(layout, chunk.counts())));
        self.stages.clear();
        self.stages.extend(shape.stages.iter().map(|stage| prices.chunk(layout, stage.counts())));
    }

    /// What the pipeline takes at least, in a few sums: a stage does all its own work, and before
    /// it the first microbatch passed every chunk in front, behind it the last one passes them
    /// back. A schedule that splits backward does not wait for the way back; for one that folds the
    /// depth `cost` has the bound.
    fn makespan(&mut self, prices: &Prices, layout: &Layout, shape: &Shape) -> Result<f64, Unpriced> {
        self.pass(prices, layout, shape);
        if matches!(shape.order.schedule, Schedule::DualPipe | Schedule::DualPipeV) {
            return self.tight(prices, layout, shape);
        }
        let way = |times: &ChunkTimes| match shape.order.schedule {
            Schedule::GPipe | Schedule::OneF1b | Schedule::Interleaved => times.forward + times.backward(),
            _ => times.forward,
        };
        let of_stage = |(stage, times): (&Stage, &ChunkTimes)| {
            let fill: f64 = stage.chunks_before.iter().zip(&self.chunks).map(|(n, chunk)| *n as f64 * way(chunk)).sum();
            fill + layout.microbatches as f64 * (times.forward + times.backward())
        };
        Ok(shape.stages.iter().zip(&self.stages).map(of_stage).fold(0.0, f64::max))
    }

    /// The tightest bound on the pipeline there is.
    fn tight(&mut self, prices: &Prices, layout: &Layout, shape: &Shape) -> Result<f64, Unpriced> {
        self.along.clear();
        self.along.extend(shape.chunk_of.iter().map(|chunk| self.chunks[*chunk]));
        prices.least_makespan(&mut self.scratch, layout, &self.along)
    }

    fn step(&self, prices: &Prices, layout: &Layout, shape: &Shape, makespan: f64) -> f64 {
        let waits = shape.stages.iter().map(|stage| {
            let before = stage.before.iter().zip(&self.stages);
            let slack: f64 = before.map(|(count, times)| *count as f64 * prices.slack(layout, *times)).sum();
            prices.around(layout, makespan, stage.counts(), slack)
        });
        waits.fold(0.0, f64::max)
    }
}

/// Seconds of a step, by the tightest bound that needs no simulation.
pub(crate) fn tight(prices: &Prices, layout: &Layout, shape: &Shape) -> Result<f64, Unpriced> {
    let mut clock = Clock::default();
    clock.pass(prices, layout, shape);
    let makespan = clock.tight(prices, layout, shape)?;
    Ok(clock.step(prices, layout, shape, makespan))
}
