//! Where the depth is cut: for every number of chunks, the partitions worth pricing.

use crate::point::Order;
use crate::predicted::of_a_job;
use crate::space::degrees;
use crate::trials::Trials;
use case::{Case, LayerKinds, PerKind};
use cost::{Counts, Prices, Setting};
use diag::{Blame, Finding};
use layout::stages::{
    by_stage, climb, deal, even, every, lightest, one_layer_moved, param_weights, weighted, weighted_by,
};
use layout::{Balance, Layout};
use memory::estimate::{Estimator, KindWeights, Shards, in_flight_under};
use recipe::Recipe;
use units::named;
use work::Limit;

named! {
    /// What a partition is even in.
    pub enum Evenness {
        /// Layers.
        Layers = "layers",
        /// Layers, where embedding and head count as one each.
        LayersAndEdges = "layers and edges",
        /// Parameters.
        Params = "parameters",
        /// Time of a step.
        Time = "time",
        /// Memory at the peak.
        Memory = "memory",
        /// What was typed.
        Typed = "boundaries",
    }
}

/// One partition: the first layer of every chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// What it is even in; the first of several that come out the same.
    pub even: Evenness,
    /// First layers, zero included.
    pub starts: Vec<usize>,
}

/// What layers weigh, read off one set of degrees: partitions are compared with one another, so
/// what matters is how the kinds of layers stand to each other.
pub struct Weights {
    kinds: LayerKinds,
    /// Parameters by layer, of the front and of the back.
    params: (Vec<u64>, u64, u64),
    /// Nanoseconds of a microbatch by kind, and of the ends.
    time: PerKind<u64>,
    time_ends: [u64; 2],
    memory: KindWeights,
    /// What the weights were read off: steps of stages that hold several chunks are simulated there.
    prices: Prices,
    layout: Layout,
}

/// Bytes or nanoseconds of a layer above which one is as heavy as another: three days, or a thousand devices;
/// those of the deepest model together are still counted.
const HEAVIEST: u64 = 1 << 48;

/// Chunks up to which a layer may move from any one to any other; beyond, to the next.
const FREELY_MOVED: usize = 16;

/// How much may be simulated to find one cut even in time: passes of a microbatch over a chunk. A cut
/// that was not looked at is not taken.
#[derive(Clone, Copy, Debug)]
pub struct Passes {
    usual: u64,
    /// For pipelines of which the usual would simulate but a few cuts.
    most: u64,
}

impl Passes {
    /// For one job's cut.
    pub const OF_A_JOB: Passes = Passes { usual: 400_000, most: 4_000_000 };
    /// For each of a search's: a millisecond or two.
    pub const OF_A_SEARCH: Passes = Passes { usual: 20_000, most: 200_000 };

    /// For cuts of which one takes so many; none where that would be too few of them to choose from.
    pub(crate) fn for_cuts_of(self, one: u64) -> Option<u64> {
        let all = one.saturating_mul(FEW_CUTS).clamp(self.usual, self.most);
        (all >= one.saturating_mul(FEW_CUTS / 3)).then_some(all)
    }
}

/// Cuts that are simulated at least, where any is.
const FEW_CUTS: u64 = 24;

impl Weights {
    /// Weighs every kind under a layout whose degrees the prices are of.
    pub fn new(recipe: &Recipe, memory: KindWeights, prices: Prices, layout: Layout) -> Weights {
        let kinds = prices.kinds();
        let seconds = |layers: &PerKind<u64>, is_first: bool, is_last: bool| {
            let times = prices.stage(Counts { layers, is_first, is_last });
            (((times.forward + times.backward()) * 1e9) as u64).min(HEAVIEST)
        };
        let none = kinds.count([]);
        Weights {
            params: param_weights(recipe),
            time: PerKind::new(kinds, |layer| seconds(&kinds.count([layer]), false, false)),
            time_ends: [seconds(&none, true, false), seconds(&none, false, true)],
            kinds: kinds.clone(),
            memory,
            prices,
            layout,
        }
    }

    /// Bytes that a layer of each kind saves.
    pub fn saved(&self) -> &PerKind<u64> {
        &self.memory.saved
    }

    /// The cut of a typed balance; a step has so many microbatches, and so much of it may be simulated.
    pub fn balanced(&self, balance: Balance, order: Order, pp: u64, run: (u64, Passes)) -> Cut {
        let chunks = (pp * order.vpp) as usize;
        match balance {
            Balance::Layers => Cut { even: Evenness::Layers, starts: even(self.kinds.depth(), chunks) },
            Balance::Params => Cut { even: Evenness::Params, starts: self.by_params(order, pp) },
            Balance::Time => Cut { even: Evenness::Time, starts: self.by_time(order, pp, run) },
            Balance::Memory => Cut { even: Evenness::Memory, starts: self.by_memory(order, pp) },
        }
    }

    /// The layout the weights were read off, over other stages.
    fn over(&self, order: Order, pp: u64) -> Layout {
        let mut layout = self.layout.clone();
        degrees(&mut layout, pp, order);
        layout
    }

    /// First layers of chunks that make stages even in parameters.
    pub fn by_params(&self, order: Order, pp: u64) -> Vec<usize> {
        lightest(&self.params.0, [self.params.1, self.params.2], &deal(&self.over(order, pp)))
    }

    /// First layers of chunks that make stages even in time. Where a stage holds several chunks, what a
    /// step takes is no sum of theirs, since chunks wait for one another: steps are then simulated, of every
    /// cut where there are few, and else of neighbours until no move of a layer makes one faster.
    pub fn by_time(&self, order: Order, pp: u64, (microbatches, passes): (u64, Passes)) -> Vec<usize> {
        let (depth, chunks) = (self.kinds.depth(), (pp * order.vpp) as usize);
        let weights: Vec<u64> = (0..depth).map(|layer| self.time[self.kinds.of_layer(layer)]).collect();
        let by_chunk = weighted(&weights, self.time_ends[0], self.time_ends[1], chunks);
        let mut layout = self.over(order, pp);
        let held = deal(&layout);
        let Some(passes) = passes.for_cuts_of((chunks as u64).saturating_mul(microbatches)) else { return by_chunk };
        if held.iter().all(|chunks| chunks.len() < 2) {
            return by_chunk;
        }
        layout.global_batch = layout.global_batch / layout.microbatches.max(1) * microbatches;
        layout.microbatches = microbatches;
        let summed = by_stage(by_chunk.clone(), depth, &held, self.time_ends, |_, layer| weights[layer]);
        let mut trials = Trials::new(&self.prices, &self.kinds, layout, held, passes);
        // Where all there are may be looked at, they are.
        if let Some(all) = every(depth, chunks, trials.all_of() as usize) {
            let mut best = (f64::INFINITY, by_chunk);
            for cut in all {
                if let Some(seconds) = trials.seconds(&cut, best.0).filter(|seconds| *seconds < best.0) {
                    best = (seconds, cut);
                }
            }
            return best.1;
        }
        let mut starts = vec![by_chunk.clone()];
        for start in [summed, even(depth, chunks), weighted(&vec![1; depth], 1, 1, chunks)] {
            if !starts.contains(&start) {
                starts.push(start);
            }
        }
        let timed = starts.into_iter().filter_map(|cut| Some((trials.seconds(&cut, f64::INFINITY)?, cut)));
        let mut timed: Vec<(f64, Vec<usize>)> = timed.collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let reach = if chunks <= FREELY_MOVED { chunks } else { 1 };
        let climbed = timed.into_iter().map(|(seconds, cut)| {
            climb((cut, seconds), |cut| one_layer_moved(cut, depth, reach), |cut, least| trials.seconds(cut, least))
        });
        climbed.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(by_chunk, |(starts, _)| starts)
    }

    /// First layers of chunks that make stages even in memory: early stages keep more microbatches.
    pub fn by_memory(&self, order: Order, pp: u64) -> Vec<usize> {
        let (depth, chunks) = (self.kinds.depth(), (pp * order.vpp) as usize);
        let flights: Vec<u64> =
            (0..pp).map(|stage| in_flight_under(order.schedule, [pp, order.vpp], 2 * pp, stage)).collect();
        let KindWeights { state, saved, state_ends } = &self.memory;
        let weight = |stage: usize, layer: usize| {
            let kind = self.kinds.of_layer(layer);
            let flying = u128::from(saved[kind]) * u128::from(flights[stage]) / 256;
            u64::try_from(u128::from(state[kind]) + flying).map_or(HEAVIEST, |bytes| bytes.min(HEAVIEST))
        };
        let of_chunk = |chunk: usize, layer: usize| weight(chunk % pp as usize, layer);
        let starts = weighted_by(depth, state_ends[0], state_ends[1], chunks, of_chunk);
        by_stage(starts, depth, &deal(&self.over(order, pp)), *state_ends, weight)
    }
}

/// First layers of every chunk but the first, even in what a job's engine and cluster make of them; refused
/// where looking for them takes more than the limit.
pub fn balanced(case: &Case, balance: Balance, limit: &Limit) -> Result<Vec<u64>, Vec<Finding>> {
    let unpriced = |what: &str, why: String| vec![Finding::error("stages/unpriced", Blame::Engine, what, why)];
    let (recipe, layout) = (&case.recipe, &case.layout);
    let what = format!("balancing {} stages", layout.pp.get());
    limit.check(&what, of_a_job(case, balance), "--balance layers or params, which are counted")?;
    let shards = Shards::new(layout.zero, [layout.dense_shards(), layout.edp.get()]);
    let estimator = Estimator::of_case(case).map(|estimator| estimator.within(limit.operations));
    let memory = estimator.and_then(|estimator| estimator.weights(layout, &shards));
    let memory = memory.map_err(|e| unpriced(&e.what, e.to_string()))?;
    let setting = Setting::new(recipe, &case.kinds, case.on(), &case.options);
    let split = setting.and_then(|setting| setting.split(layout)).map_err(|e| unpriced(&e.what, e.to_string()))?;
    let prices = split.prices(&layout.recompute, case.options.offload);
    let order = Order { schedule: layout.schedule, vpp: layout.vpp.get() };
    let weights = Weights::new(recipe, memory, prices, layout.clone());
    let starts = weights.balanced(balance, order, layout.pp.get(), (layout.microbatches, Passes::OF_A_JOB)).starts;
    Ok(starts.into_iter().skip(1).map(|start| start as u64).collect())
}

/// The distinct partitions of a recipe under an order.
pub fn cuts(recipe: &Recipe, weights: &Weights, order: Order, pp: u64) -> Vec<Cut> {
    let (depth, chunks) = (recipe.depth(), (pp * order.vpp) as usize);
    let mut found: Vec<Cut> = Vec::new();
    let mut add = |even, starts: Vec<usize>| {
        if !found.iter().any(|cut| cut.starts == starts) {
            found.push(Cut { even, starts });
        }
    };
    add(Evenness::Layers, even(depth, chunks));
    if chunks > 1 {
        add(Evenness::LayersAndEdges, weighted(&vec![1; depth], 1, 1, chunks));
        add(Evenness::Params, weights.by_params(order, pp));
        add(Evenness::Time, weights.by_time(order, pp, in_a_search(pp)));
        add(Evenness::Memory, weights.by_memory(order, pp));
    }
    found
}

/// Microbatches that fill a pipeline, since a search makes its cuts once for an order, whatever a step's
/// number is; and what may be simulated for them.
pub(crate) fn in_a_search(pp: u64) -> (u64, Passes) {
    (2 * pp, Passes::OF_A_SEARCH)
}
