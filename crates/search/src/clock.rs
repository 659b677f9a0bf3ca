//! How long layouts take at least, a few sums each: what the search orders and leaves out by.

use crate::point::Key;
use crate::price::{Mesh, Pricer};
use crate::shape::{Shape, Stage};
use crate::space::degrees;
use case::PerKind;
use cost::simulate::ChunkTimes;
use cost::{Counts, Load, Placed, Prices, Unpriced};
use layout::{Layout, Schedule, ZeroStage};

/// The times of all layouts of one key and policy, in the order they are judged in.
#[derive(Default)]
pub(crate) struct Clock {
    /// Seconds a sequence takes, at least.
    pub seconds: Vec<f64>,
    /// What distinct chunks take.
    chunks: Vec<ChunkTimes>,
    /// What distinct stages take, and how much later the stage behind each starts.
    stages: Vec<(Load, f64)>,
    along: Vec<ChunkTimes>,
    placed: Vec<(ZeroStage, Placed)>,
    scratch: cost::Scratch,
}

impl Clock {
    /// The least of them.
    pub fn least(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Seconds a sequence takes at least under a mesh, whatever its cut: some stage does its share of the work.
    pub fn floor(
        &mut self,
        pricer: &Pricer,
        key: &Key,
        (mesh, whole): (&Mesh, &PerKind<u64>),
        prices: &Prices,
        layout: &mut Layout,
    ) -> f64 {
        pricer.set_mesh(layout, key, mesh);
        let counts = Counts { layers: whole, is_first: true, is_last: true };
        let of_state = |&zero: &ZeroStage| {
            layout.zero = zero;
            let times = prices.chunk(&prices.placed(layout), counts);
            let work = layout.microbatches as f64 * (times.forward + times.backward());
            work / layout.pp.get() as f64 / layout.global_batch as f64
        };
        mesh.states.iter().map(of_state).fold(f64::INFINITY, f64::min)
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
        for mesh in meshes {
            pricer.set_mesh(layout, key, mesh);
            let mut placed = std::mem::take(&mut self.placed);
            placed.clear();
            for &zero in &mesh.states {
                layout.zero = zero;
                placed.push((zero, prices.placed(layout)));
            }
            for (_, shape) in pricer.shapes(mesh) {
                degrees(layout, mesh.pp, shape.order);
                let mut known: Option<(ZeroStage, f64)> = None;
                for (zero, placed) in &placed {
                    layout.zero = *zero;
                    // Below ZeRO 2 nothing of it happens inside a microbatch.
                    let inside = (*zero).max(ZeroStage::One);
                    let makespan = match known {
                        Some((same, makespan)) if same == inside => makespan,
                        _ => self.makespan(prices, placed, layout, shape)?,
                    };
                    known = Some((inside, makespan));
                    for &offload in pricer.space.offload_under(*zero) {
                        prices.set_offload(pricer.space.question.offload.share(offload));
                        let seconds = self.step(prices, placed, shape, makespan);
                        self.seconds.push(seconds / layout.global_batch as f64);
                    }
                }
            }
            self.placed = placed;
        }
        Ok(())
    }

    /// Reads what chunks and stages take.
    fn pass(&mut self, prices: &Prices, placed: &Placed, layout: &Layout, shape: &Shape) {
        self.chunks.clear();
        self.chunks.extend(shape.chunks.iter().map(|chunk| prices.chunk(placed, chunk.counts())));
        self.stages.clear();
        self.stages.extend(shape.stages.iter().map(|stage| {
            let load = prices.load(placed, stage.counts());
            (load, prices.slack(layout, load.times))
        }));
    }

    /// What the pipeline takes at least, in a few sums: a stage does all its own work, and before
    /// it the first microbatch passed every chunk in front, behind it the last one passes them
    /// back. A schedule that splits backward does not wait for the way back; for one that folds the
    /// depth `cost` has the bound.
    fn makespan(&mut self, prices: &Prices, placed: &Placed, layout: &Layout, shape: &Shape) -> Result<f64, Unpriced> {
        self.pass(prices, placed, layout, shape);
        if matches!(shape.order.schedule, Schedule::DualPipe | Schedule::DualPipeV) {
            return self.tight(prices, layout, shape);
        }
        let way = |times: &ChunkTimes| match shape.order.schedule {
            Schedule::GPipe | Schedule::OneF1b | Schedule::Interleaved => times.forward + times.backward(),
            _ => times.forward,
        };
        let of_stage = |(stage, (load, _)): (&Stage, &(Load, f64))| {
            let fill: f64 = stage.chunks_before.iter().zip(&self.chunks).map(|(n, chunk)| *n as f64 * way(chunk)).sum();
            fill + layout.microbatches as f64 * (load.times.forward + load.times.backward())
        };
        Ok(shape.stages.iter().zip(&self.stages).map(of_stage).fold(0.0, f64::max))
    }

    /// The tightest bound on the pipeline there is.
    fn tight(&mut self, prices: &Prices, layout: &Layout, shape: &Shape) -> Result<f64, Unpriced> {
        self.along.clear();
        self.along.extend(shape.chunk_of.iter().map(|chunk| self.chunks[*chunk]));
        prices.least_makespan(&mut self.scratch, layout, &self.along)
    }

    fn step(&self, prices: &Prices, placed: &Placed, shape: &Shape, makespan: f64) -> f64 {
        let waits = shape.stages.iter().zip(&self.stages).map(|(stage, (load, _))| {
            let slack: f64 = stage.before.iter().zip(&self.stages).map(|(count, (_, each))| *count as f64 * each).sum();
            prices.around(placed, makespan, load, slack)
        });
        waits.fold(0.0, f64::max)
    }
}

/// Seconds of a step, simulated unless `wants` turns the tightest bound down that needs no simulation.
pub(crate) fn simulated(
    prices: &Prices,
    layout: &Layout,
    shape: &Shape,
    wants: impl Fn(f64) -> bool,
) -> Result<Option<f64>, Unpriced> {
    let placed = prices.placed(layout);
    let distinct: Vec<ChunkTimes> = shape.chunks.iter().map(|chunk| prices.chunk(&placed, chunk.counts())).collect();
    let along: Vec<ChunkTimes> = shape.chunk_of.iter().map(|chunk| distinct[*chunk]).collect();
    let stages: Vec<Counts> = shape.stage_of.iter().map(|stage| shape.stages[*stage].counts()).collect();
    prices.seconds(&mut cost::Scratch::default(), layout, (&along, &stages), wants)
}
