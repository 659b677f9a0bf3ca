//! A step whose stages run on pools of unlike devices: every chunk takes what its own pool's devices take, and what is
//! sent from pool to pool takes the slower of the two networks.

use crate::data::{OnceAStep, once_a_step};
use crate::prices::{Counts, Prices};
use crate::report::Step;
use crate::simulate::{ChunkTimes, Simulator};
use crate::step::{Counted, told};
use crate::traffic::{Collective, Spread};
use crate::{Setting, Unpriced};
use case::Pooled;
use layout::order::Pipeline;
use layout::{Layout, StagePlan};

/// One layout's prices on the devices of every pool.
#[derive(Clone, Debug)]
pub struct PooledPrices {
    prices: Vec<Prices>,
    /// The pool of every stage.
    pool_of: Vec<usize>,
}

/// What a stage does with a microbatch, and where.
struct Timed {
    chunks: Vec<ChunkTimes>,
    transfers: Vec<f64>,
}

/// The step of a job over pools. It has no interval: nobody has published runs on unlike devices.
pub fn pooled_step(job: &Pooled) -> Result<Step, Unpriced> {
    let of = |case: &case::Case| {
        let setting = Setting::new(&case.recipe, &case.kinds, case.on(), &case.options)?;
        Ok(setting.split(&case.layout)?.prices(&case.layout.recompute, case.options.offload))
    };
    let prices = job.cases.iter().map(of).collect::<Result<_, Unpriced>>()?;
    let peaks = job.pools.iter().map(|pool| Ok(pool.device.peak("bf16")?.flops * pool.devices() as f64));
    let peak = peaks.sum::<Result<f64, Unpriced>>()?;
    PooledPrices::new(prices, job.pool_of.clone()).step(&job.first().layout, &job.first().stages, peak)
}

impl PooledPrices {
    /// Prices under one layout on every pool's devices, and the pool of every stage.
    pub fn new(prices: Vec<Prices>, pool_of: Vec<usize>) -> PooledPrices {
        PooledPrices { prices, pool_of }
    }

    /// Prices on the devices that a stage runs on.
    pub fn of_stage(&self, stage: usize) -> &Prices {
        &self.prices[self.pool_of[stage]]
    }

    /// Seconds of a step, simulated.
    pub fn seconds(&self, layout: &Layout, plan: &StagePlan) -> Result<f64, Unpriced> {
        self.prices.iter().try_for_each(|prices| prices.reaches(layout))?;
        let counted = self.prices[0].counted(plan);
        let timed = self.timed(layout, plan, &counted.chunks);
        let stages: Vec<Counts> = counted.stages.iter().map(Counted::counts).collect();
        let times = self.prices[0].times(layout, &timed.chunks, &timed.transfers);
        let makespan = Simulator::default().run_steady(&Pipeline::of(layout)?, &times)?.makespan;
        Ok(self.with_reserve(makespan + self.once(layout, &stages).0.exposed()))
    }

    /// The step with its breakdown, on the stage that is busiest; `peak` is what all devices multiply together.
    pub fn step(&self, layout: &Layout, plan: &StagePlan, peak: f64) -> Result<Step, Unpriced> {
        self.prices.iter().try_for_each(|prices| prices.reaches(layout))?;
        let counted = self.prices[0].counted(plan);
        let timed = self.timed(layout, plan, &counted.chunks);
        let stages: Vec<Counts> = counted.stages.iter().map(Counted::counts).collect();
        let times = self.prices[0].times(layout, &timed.chunks, &timed.transfers);
        let timeline = Simulator::default().run_steady(&Pipeline::of(layout)?, &times)?;
        let (once, _) = self.once(layout, &stages);
        let seconds = self.with_reserve(timeline.makespan + once.exposed());
        let simulated = (timeline, once, seconds);
        Ok(told(|stage| self.of_stage(stage), layout, plan, &counted, simulated, peak / layout.world as f64))
    }

    /// Seconds an activation takes from one pool to the next, over the slower of their networks.
    pub fn between(&self, layout: &Layout, pools: [usize; 2]) -> f64 {
        self.across(layout, pools, Collective::Send, self.prices[0].transfer_bytes(layout))
    }

    fn across(&self, layout: &Layout, pools: [usize; 2], collective: Collective, bytes: f64) -> f64 {
        let apart = |pool: usize| {
            // No island holds devices of two pools.
            let spread = Spread { members: 2, per_island: 1, stride: layout.world / layout.pp.get() };
            self.prices[pool].setting.fabric.time(collective, bytes, spread).seconds
        };
        apart(pools[0]).max(apart(pools[1]))
    }

    fn timed(&self, layout: &Layout, plan: &StagePlan, counted: &[Counted]) -> Timed {
        let mut stage_of = vec![0; plan.chunks.len()];
        for (stage, chunks) in plan.by_stage.iter().enumerate() {
            chunks.iter().for_each(|chunk| stage_of[*chunk] = stage);
        }
        let placed: Vec<_> = self.prices.iter().map(|prices| prices.placed(layout)).collect();
        let chunk = |(index, counted): (usize, &Counted)| {
            let pool = self.pool_of[stage_of[index]];
            self.prices[pool].chunk(&placed[pool], counted.counts())
        };
        let transfer = |pair: &[usize]| match [self.pool_of[pair[0]], self.pool_of[pair[1]]] {
            [one, other] if one == other => self.prices[one].transfer(layout),
            pools => self.between(layout, pools),
        };
        Timed {
            chunks: counted.iter().enumerate().map(chunk).collect(),
            transfers: stage_of.windows(2).map(transfer).collect(),
        }
    }

    /// What the stage that waits longest does once a step, and which stage that is.
    fn once(&self, layout: &Layout, stages: &[Counts]) -> (OnceAStep, usize) {
        let placed: Vec<_> = self.prices.iter().map(|prices| prices.placed(layout)).collect();
        let (mut once, mut longest, mut slack) = (OnceAStep::default(), 0, 0.0);
        for (index, stage) in stages.iter().enumerate() {
            let (pool, prices) = (self.pool_of[index], self.of_stage(index));
            let load = prices.load(&placed[pool], *stage);
            let here = once_a_step(prices, &placed[pool], &load, slack);
            if here.exposed() > once.exposed() {
                (once, longest) = (here, index);
            }
            slack += prices.slack(layout, load.times);
        }
        let ends = [self.pool_of[0], self.pool_of[stages.len() - 1]];
        let tied = match ends {
            [one, other] if one == other => self.prices[one].tied_tables(layout),
            ends => self.across(layout, ends, Collective::AllReduce, self.prices[0].tied_bytes()),
        };
        once.gradients[0] += tied;
        once.gradients[1] += tied;
        (once, longest)
    }

    /// With the step's own, on the slower host.
    fn with_reserve(&self, seconds: f64) -> f64 {
        self.prices.iter().map(|prices| prices.with_reserve(seconds)).fold(0.0, f64::max)
    }
}
