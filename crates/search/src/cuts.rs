//! Where the depth is cut: for every number of chunks, the partitions worth pricing.

use crate::point::Order;
use case::{Case, LayerKinds, PerKind};
use cost::{Counts, Prices, Setting};
use diag::{Blame, Finding};
use layout::stages::{even, param_weights, weighted, weighted_by};
use layout::{Balance, Schedule};
use memory::estimate::{Estimator, KindWeights, Shards, in_flight_under};
use recipe::Recipe;
use units::named;

named! {
    /// What a partition is even in.
    pub enum Evenness {
        /// Layers.
        Layers = "layers",
        /// Layers, where embedding and head count as one each.
        LayersAndEdges = "layers and edges",
        /// Parameters.
        Params = "parameters",
        /// Time of a microbatch.
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
}

impl Weights {
    /// Weighs every kind.
    pub fn new(recipe: &Recipe, memory: KindWeights, prices: &Prices) -> Weights {
        let kinds = prices.kinds();
        let seconds = |layers: &PerKind<u64>, is_first: bool, is_last: bool| {
            let times = prices.stage(Counts { layers, is_first, is_last });
            ((times.forward + times.backward()) * 1e9) as u64
        };
        let none = kinds.count([]);
        Weights {
            params: param_weights(recipe),
            time: PerKind::new(kinds, |layer| seconds(&kinds.count([layer]), false, false)),
            time_ends: [seconds(&none, true, false), seconds(&none, false, true)],
            kinds: kinds.clone(),
            memory,
        }
    }

    /// The cut of a typed balance.
    pub fn balanced(&self, balance: Balance, order: Order, pp: u64) -> Cut {
        let chunks = (pp * order.vpp) as usize;
        match balance {
            Balance::Layers => Cut { even: Evenness::Layers, starts: even(self.kinds.depth(), chunks) },
            Balance::Params => Cut { even: Evenness::Params, starts: self.by_params(chunks) },
            Balance::Time => Cut { even: Evenness::Time, starts: self.by_time(chunks) },
            Balance::Memory => Cut { even: Evenness::Memory, starts: self.by_memory(order.schedule, pp, order.vpp) },
        }
    }

    /// First layers of chunks even in parameters.
    pub fn by_params(&self, num_chunks: usize) -> Vec<usize> {
        weighted(&self.params.0, self.params.1, self.params.2, num_chunks)
    }

    /// First layers of chunks even in time.
    pub fn by_time(&self, num_chunks: usize) -> Vec<usize> {
        let layers = 0..self.kinds.depth();
        let weights: Vec<u64> = layers.map(|layer| self.time[self.kinds.of_layer(layer)]).collect();
        weighted(&weights, self.time_ends[0], self.time_ends[1], num_chunks)
    }

    /// First layers of chunks even in memory: early stages keep more microbatches.
    pub fn by_memory(&self, schedule: Schedule, pp: u64, vpp: u64) -> Vec<usize> {
        let flights: Vec<u64> = (0..pp).map(|stage| in_flight_under(schedule, [pp, vpp], 2 * pp, stage)).collect();
        let KindWeights { state, saved, state_ends } = &self.memory;
        weighted_by(self.kinds.depth(), state_ends[0], state_ends[1], (pp * vpp) as usize, |chunk, layer| {
            let kind = self.kinds.of_layer(layer);
            state[kind] + saved[kind] * flights[chunk % pp as usize] / 256
        })
    }
}

/// First layers of every chunk but the first, even in what a job's engine and cluster make of them.
pub fn balanced(case: &Case, balance: Balance) -> Result<Vec<u64>, Finding> {
    let unpriced = |what: &str, why: String| Finding::error("stages/unpriced", Blame::Engine, what, why);
    let (recipe, layout) = (&case.recipe, &case.layout);
    let shards = Shards::new(layout.zero, [layout.dense_shards(), layout.edp.get()]);
    let memory = Estimator::of_case(case).and_then(|estimator| estimator.weights(layout, &shards));
    let memory = memory.map_err(|e| unpriced(&e.what, e.to_string()))?;
    let setting = Setting::new(recipe, &case.kinds, case.on(), &case.options);
    let split = setting.and_then(|setting| setting.split(layout)).map_err(|e| unpriced(&e.what, e.to_string()))?;
    let prices = split.prices(&layout.recompute, case.options.offload);
    let order = Order { schedule: layout.schedule, vpp: layout.vpp.get() };
    let starts = Weights::new(recipe, memory, &prices).balanced(balance, order, layout.pp.get()).starts;
    Ok(starts.into_iter().skip(1).map(|start| start as u64).collect())
}

/// The distinct partitions of a recipe under an order.
pub fn cuts(recipe: &Recipe, weights: &Weights, schedule: Schedule, pp: u64, vpp: u64) -> Vec<Cut> {
    let (depth, chunks) = (recipe.depth(), (pp * vpp) as usize);
    let mut found: Vec<Cut> = Vec::new();
    let mut add = |even, starts: Vec<usize>| {
        if !found.iter().any(|cut| cut.starts == starts) {
            found.push(Cut { even, starts });
        }
    };
    add(Evenness::Layers, even(depth, chunks));
    if chunks > 1 {
        add(Evenness::LayersAndEdges, weighted(&vec![1; depth], 1, 1, chunks));
        add(Evenness::Params, weights.by_params(chunks));
        add(Evenness::Time, weights.by_time(chunks));
        add(Evenness::Memory, weights.by_memory(schedule, pp, vpp));
    }
    found
}
