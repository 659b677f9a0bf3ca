//! Cuts of one order tried one after the other: what a step takes under each, simulated, each cut once and
//! no more of them than a budget has room for.

use case::{LayerKinds, PerKind};
use cost::simulate::ChunkTimes;
use cost::{Counts, Placed, Prices, Scratch};
use layout::Layout;
use std::collections::HashSet;

/// Passes over a chunk that its bound is worth: a bound follows a few of them, whatever the microbatches.
const OF_A_BOUND: u64 = 4;

/// Layers that are counted for a cut, and the passes that is worth; of fewer it does not show.
const DEEP: u64 = 512;
const OF_DEEP: u64 = 64;

pub(crate) struct Trials<'a> {
    prices: &'a Prices,
    kinds: &'a LayerKinds,
    layout: Layout,
    placed: Placed,
    /// The chunks of each stage.
    held: Vec<Vec<usize>>,
    /// Passes over chunks that may still be simulated.
    left: u64,
    tried: HashSet<Vec<usize>>,
    chunks: Vec<ChunkTimes>,
    stages: Vec<PerKind<u64>>,
    scratch: Scratch,
}

impl<'a> Trials<'a> {
    /// Nothing tried yet; so many passes may be.
    pub fn new(
        prices: &'a Prices,
        kinds: &'a LayerKinds,
        layout: Layout,
        held: Vec<Vec<usize>>,
        passes: u64,
    ) -> Trials<'a> {
        Trials {
            placed: prices.placed(&layout),
            stages: vec![PerKind::new(kinds, |_| 0); held.len()],
            prices,
            kinds,
            layout,
            held,
            left: passes,
            tried: HashSet::new(),
            chunks: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Passes that a simulated cut takes, and its bound.
    fn each(&self) -> [u64; 2] {
        let chunks = self.layout.chunks();
        [chunks * self.layout.microbatches, OF_A_BOUND * chunks + self.kinds.depth() as u64 / DEEP * OF_DEEP]
    }

    /// How many cuts may be simulated.
    pub fn all_of(&self) -> u64 {
        self.left / self.each().iter().sum::<u64>().max(1)
    }

    /// Seconds of a step under a cut. Nothing where they are not below `least`, where the cut was tried
    /// before, or where enough was.
    pub fn seconds(&mut self, starts: &[usize], least: f64) -> Option<f64> {
        if !self.tried.insert(starts.to_vec()) {
            return None;
        }
        let [simulated, bounded] = self.each();
        self.left = self.left.checked_sub(bounded)?;
        self.count(starts);
        let last = starts.len() - 1;
        let stages: Vec<Counts> = self
            .held
            .iter()
            .zip(&self.stages)
            .map(|(held, layers)| Counts { layers, is_first: held.contains(&0), is_last: held.contains(&last) })
            .collect();
        let affordable = self.left >= simulated;
        let wants = |bound: f64| affordable && bound < least;
        let cut = (&self.chunks[..], &stages[..]);
        let seconds = self.prices.seconds(&mut self.scratch, &self.layout, cut, wants).ok().flatten()?;
        self.left -= simulated;
        Some(seconds)
    }

    /// What chunks take and stages hold under a cut.
    fn count(&mut self, starts: &[usize]) {
        let last = starts.len() - 1;
        let mut layers = PerKind::new(self.kinds, |_| 0);
        let range = |chunk: usize| starts[chunk]..starts.get(chunk + 1).copied().unwrap_or(self.kinds.depth());
        self.chunks.clear();
        for chunk in 0..=last {
            layers.iter_mut().for_each(|count| *count = 0);
            range(chunk).for_each(|layer| layers[self.kinds.of_layer(layer)] += 1);
            let counts = Counts { layers: &layers, is_first: chunk == 0, is_last: chunk == last };
            self.chunks.push(self.prices.chunk(&self.placed, counts));
        }
        for (held, layers) in self.held.iter().zip(&mut self.stages) {
            layers.iter_mut().for_each(|count| *count = 0);
            held.iter().flat_map(|chunk| range(*chunk)).for_each(|layer| layers[self.kinds.of_layer(layer)] += 1);
        }
    }
}
