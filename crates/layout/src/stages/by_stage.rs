//! Cuts that make stages even, not chunks: what a stage's chunks weigh together is moved between stages a
//! layer at a time. What a move changes is told from what the stages weighed before it, without weighing
//! the whole cut again.

use super::balance::{even, every, shifted};

/// Cuts up to which every one of them is weighed.
const COUNTED: usize = 4000;

/// Weights of stages that are looked at in one climb, at most: a few milliseconds.
const LOOKED_AT: usize = 1 << 22;

/// Rounds of a climb that should have room in that.
const ROUNDS: usize = 16;

/// The heaviest stage, then the squares of all.
type Cost = (u64, u128);

/// Chunk starts whose heaviest stage is lighter than under `starts` where that can be, and the others
/// as even as possible. `held` are the chunks of each stage, `weight(stage, layer)` what a layer weighs
/// there, `ends` what the first and the last chunk weigh besides. Models too deep to weigh every layer on
/// every stage stay as they are.
pub fn by_stage(
    starts: Vec<usize>,
    depth: usize,
    held: &[Vec<usize>],
    ends: [u64; 2],
    weight: impl Fn(usize, usize) -> u64,
) -> Vec<usize> {
    if held.iter().all(|chunks| chunks.len() < 2) || held.len() * depth > LOOKED_AT {
        return starts;
    }
    let scales = Scales::new(starts.len(), depth, held, ends, weight);
    if let Some(all) = every(depth, starts.len(), COUNTED) {
        return all.into_iter().min_by_key(|cut| cost(&scales.weigh(cut))).unwrap_or(starts);
    }
    let even = even(depth, starts.len());
    let found = [starts.clone(), even].into_iter().map(|from| scales.climb(from));
    found.min_by_key(|(_, cost)| *cost).map_or(starts, |(starts, _)| starts)
}

fn cost(stages: &[u64]) -> Cost {
    let square = |stage: u64| u128::from(stage) * u128::from(stage);
    stages.iter().fold((0, 0), |(most, squares), stage| (most.max(*stage), squares + square(*stage)))
}

/// What cuts weigh on stages.
struct Scales<'a> {
    depth: usize,
    chunks: usize,
    held: &'a [Vec<usize>],
    /// The stages that hold each chunk: two copies of a model are held by two.
    holders: Vec<Vec<usize>>,
    /// Before each layer, what the layers in front of it weigh on each stage.
    sums: Vec<Vec<u64>>,
    ends: [u64; 2],
}

impl<'a> Scales<'a> {
    fn new(
        chunks: usize,
        depth: usize,
        held: &'a [Vec<usize>],
        ends: [u64; 2],
        weight: impl Fn(usize, usize) -> u64,
    ) -> Scales<'a> {
        let sums = (0..held.len()).map(|stage| {
            let mut sums = vec![0];
            (0..depth).for_each(|layer| sums.push(sums[layer] + weight(stage, layer)));
            sums
        });
        let mut holders = vec![Vec::new(); chunks];
        for (stage, chunks) in held.iter().enumerate() {
            chunks.iter().for_each(|chunk| holders[*chunk].push(stage));
        }
        Scales { depth, chunks, held, sums: sums.collect(), holders, ends }
    }

    fn weigh(&self, starts: &[usize]) -> Vec<u64> {
        let last = self.chunks - 1;
        let of_chunk = |stage: usize, chunk: usize| {
            let edges = if chunk == 0 { self.ends[0] } else { 0 } + if chunk == last { self.ends[1] } else { 0 };
            self.sums[stage][self.end(starts, chunk)] - self.sums[stage][starts[chunk]] + edges
        };
        let stages = self.held.iter().enumerate();
        stages.map(|(stage, chunks)| chunks.iter().map(|chunk| of_chunk(stage, *chunk)).sum()).collect()
    }

    fn end(&self, starts: &[usize], chunk: usize) -> usize {
        starts.get(chunk + 1).copied().unwrap_or(self.depth)
    }

    /// Moves one layer at a time, always the move that helps most, until none does or enough was looked at.
    fn climb(&self, mut starts: Vec<usize>) -> (Vec<usize>, Cost) {
        let pairs = self.chunks * self.held.len();
        let reach = (LOOKED_AT / (2 * ROUNDS * pairs)).clamp(1, self.chunks);
        let rounds = (LOOKED_AT / (2 * reach * pairs)).max(1);
        let mut stages = self.weigh(&starts);
        let mut least = cost(&stages);
        for _ in 0..rounds {
            let Some((moved, found)) = self.best_move(&starts, &stages, least, reach) else { break };
            (starts, least) = (moved, found);
            stages = self.weigh(&starts);
        }
        (starts, least)
    }

    /// The cheapest cut in which the starts of a run of chunks are a layer sooner or later, where it is
    /// cheaper than this one.
    fn best_move(&self, starts: &[usize], stages: &[u64], least: Cost, reach: usize) -> Option<(Vec<usize>, Cost)> {
        let mut best = None;
        let mut least = least;
        let mut sides = [(-1, stages.to_vec()), (1, stages.to_vec())];
        for first in 1..self.chunks {
            sides.iter_mut().for_each(|(_, moved)| moved.copy_from_slice(stages));
            for last in first..self.chunks.min(first.saturating_add(reach)) {
                for (by, moved) in &mut sides {
                    self.shift_end(moved, starts, last - 1, *by);
                    self.shift_start(moved, starts, last, *by);
                    let has_room = if *by < 0 {
                        starts[first] > starts[first - 1] + 1
                    } else {
                        starts[last] + 1 < self.end(starts, last)
                    };
                    let found = cost(moved);
                    if has_room && found < least {
                        least = found;
                        best = Some((first..=last, *by));
                    }
                }
            }
        }
        best.and_then(|(run, by)| Some((shifted(starts, self.depth, run, by)?, least)))
    }

    /// A chunk ends a layer sooner or later.
    fn shift_end(&self, stages: &mut [u64], starts: &[usize], chunk: usize, by: isize) {
        let end = self.end(starts, chunk);
        for &stage in &self.holders[chunk] {
            let sums = &self.sums[stage];
            stages[stage] = stages[stage] + sums[end.saturating_add_signed(by)] - sums[end];
        }
    }

    /// A chunk starts a layer sooner or later.
    fn shift_start(&self, stages: &mut [u64], starts: &[usize], chunk: usize, by: isize) {
        let start = starts[chunk];
        for &stage in &self.holders[chunk] {
            let sums = &self.sums[stage];
            stages[stage] = stages[stage] + sums[start] - sums[start.saturating_add_signed(by)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::balance::{one_layer_moved, weighted};
    use super::*;

    /// What the move costs is what the moved cut weighs, for stages in turn and folded, and for layers that
    /// weigh more on some stages.
    #[test]
    fn a_move_costs_what_the_moved_cut_weighs() {
        let folded: Vec<Vec<usize>> = (0..6).map(|stage| vec![stage, 11 - stage]).collect();
        let in_turn: Vec<Vec<usize>> = (0..4).map(|stage| vec![stage, stage + 4, stage + 8]).collect();
        let twice: Vec<Vec<usize>> = (0..12).map(|stage| vec![stage, 11 - stage]).collect();
        for held in [folded, in_turn, twice] {
            let weight = |stage: usize, layer: usize| (10 + layer % 7 * 3) as u64 * (20 - stage as u64);
            let scales = Scales::new(12, 61, &held, [90, 700], weight);
            for from in [even(61, 12), weighted(&[3; 61], 5, 40, 12)] {
                let stages = scales.weigh(&from);
                let by_hand = one_layer_moved(&from, 61, usize::MAX).map(|cut| (cost(&scales.weigh(&cut)), cut));
                let best = by_hand.min_by_key(|(cost, _)| *cost).unwrap();
                let found = scales.best_move(&from, &stages, (u64::MAX, 0), 12);
                assert_eq!(found.map(|(_, cost)| cost), Some(best.0), "{held:?} {from:?}");
            }
        }
    }
}
