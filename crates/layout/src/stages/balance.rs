//! Cuts of the depth by weight. What must come out even is a stage: where it holds several chunks
//! (virtual stages, the folds of DualPipe), one heavy chunk is made up for by a light one of the same
//! stage.

use std::ops::RangeInclusive;

/// First layers of chunks as even as possible; spare layers go to the middle, since the edges own
/// embedding and head.
pub fn even(depth: usize, num_chunks: usize) -> Vec<usize> {
    let (base, spare) = (depth / num_chunks, depth % num_chunks);
    let middle_first = (num_chunks - spare) / 2;
    let mut start = 0;
    (0..num_chunks)
        .map(|chunk| {
            let here = start;
            start += base + usize::from((middle_first..middle_first + spare).contains(&chunk));
            here
        })
        .collect()
}

/// The cut whose heaviest chunk is lightest. `front` and `back` weigh on the first and last chunk.
pub fn weighted(weights: &[u64], front: u64, back: u64, num_chunks: usize) -> Vec<usize> {
    weighted_by(weights.len(), front, back, num_chunks, |_, layer| weights[layer])
}

/// The same where a layer's weight depends on the chunk it falls into (`weight(chunk, layer)`):
/// binary search on the heaviest weight, then layers are taken greedily.
pub fn weighted_by(
    depth: usize,
    front: u64,
    back: u64,
    num_chunks: usize,
    weight: impl Fn(usize, usize) -> u64,
) -> Vec<usize> {
    // An even cut is one, so its heaviest chunk is a limit that can be kept; where weights depend on the chunk
    // and layers taken greedily do not keep it, any limit will do that they surely do.
    let even = even(depth, num_chunks);
    let heaviest = heaviest(&even, depth, [front, back], &weight);
    let is_kept = cut(depth, front, back, num_chunks, heaviest, &weight).is_some();
    let (mut low, mut high) = (0, if is_kept { heaviest } else { u64::MAX >> 2 });
    while low < high {
        let limit = low + (high - low) / 2;
        if cut(depth, front, back, num_chunks, limit, &weight).is_some() {
            high = limit;
        } else {
            low = limit + 1;
        }
    }
    cut(depth, front, back, num_chunks, low, &weight).unwrap_or(even)
}

/// What the heaviest chunk of a cut weighs.
fn heaviest(starts: &[usize], depth: usize, ends: [u64; 2], weight: impl Fn(usize, usize) -> u64) -> u64 {
    let last = starts.len() - 1;
    let of_chunk = |chunk: usize| {
        let layers = starts[chunk]..starts.get(chunk + 1).copied().unwrap_or(depth);
        let edges = if chunk == 0 { ends[0] } else { 0 } + if chunk == last { ends[1] } else { 0 };
        layers.map(|layer| weight(chunk, layer)).sum::<u64>() + edges
    };
    (0..=last).map(of_chunk).max().unwrap_or(0)
}

/// Chunk starts with no chunk above `limit`, if there are any. Every chunk gets a layer.
fn cut(
    depth: usize,
    front: u64,
    back: u64,
    num_chunks: usize,
    limit: u64,
    weight: impl Fn(usize, usize) -> u64,
) -> Option<Vec<usize>> {
    let mut starts = vec![0];
    let mut held = front;
    for layer in 0..depth {
        let remaining_chunks = num_chunks - starts.len();
        let remaining_layers = depth - layer;
        let has_layer = layer > starts[starts.len() - 1];
        let must_cut = has_layer && remaining_layers == remaining_chunks;
        let w = weight(starts.len() - 1, layer);
        if has_layer && remaining_chunks > 0 && (held + w > limit || must_cut) {
            starts.push(layer);
            held = weight(starts.len() - 1, layer);
        } else {
            held += w;
        }
        if held > limit {
            return None;
        }
    }
    (starts.len() == num_chunks && held + back <= limit).then_some(starts)
}

/// The cut that is reached from `best`, of which the cost is known, by always taking the cheapest of its
/// neighbours, until none is cheaper. `cost` is given the least cost so far and may answer nothing where it
/// will not come below that.
pub fn climb<C: PartialOrd + Copy, N: Iterator<Item = Vec<usize>>>(
    mut best: (Vec<usize>, C),
    neighbours: impl Fn(&[usize]) -> N,
    mut cost: impl FnMut(&[usize], C) -> Option<C>,
) -> (Vec<usize>, C) {
    loop {
        let mut better: Option<(Vec<usize>, C)> = None;
        for moved in neighbours(&best.0) {
            let least = better.as_ref().map_or(best.1, |(_, least)| *least);
            if let Some(found) = cost(&moved, least).filter(|found| *found < least) {
                better = Some((moved, found));
            }
        }
        match better {
            Some(found) => best = found,
            None => return best,
        }
    }
}

/// Neighbours of a cut: one layer goes from a chunk to another, and those between move along. `reach`
/// is how many cuts may move together.
pub fn one_layer_moved(starts: &[usize], depth: usize, reach: usize) -> impl Iterator<Item = Vec<usize>> + use<> {
    let chunks = starts.len();
    let runs = (1..chunks)
        .flat_map(move |first| (first..chunks.min(first.saturating_add(reach))).map(move |last| first..=last));
    let starts = starts.to_vec();
    runs.flat_map(move |run| [-1, 1].map(|by| shifted(&starts, depth, run.clone(), by))).flatten()
}

/// Every cut of so many layers, where there are no more than `most`.
pub fn every(depth: usize, num_chunks: usize, most: usize) -> Option<Vec<Vec<usize>>> {
    // Of the depth - 1 places between layers, num_chunks - 1 are chosen, or the others left out: the
    // fewer of the two, so that the count only grows.
    let mut count: u128 = 1;
    for chosen in 1..=(num_chunks - 1).min(depth - num_chunks) {
        count = count * (depth - chosen) as u128 / chosen as u128;
        if count > most as u128 {
            return None;
        }
    }
    let mut all = vec![vec![0]];
    for chunk in 1..num_chunks {
        let next = |starts: &Vec<usize>| {
            let from = starts[starts.len() - 1] + 1;
            (from..=depth - (num_chunks - chunk)).map(|start| [&starts[..], &[start]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(next).collect();
    }
    Some(all)
}

/// The cuts of a run some layers later, or earlier where that is negative.
pub(super) fn shifted(starts: &[usize], depth: usize, run: RangeInclusive<usize>, by: isize) -> Option<Vec<usize>> {
    let mut moved = starts.to_vec();
    for start in &mut moved[run] {
        *start = start.checked_add_signed(by)?;
    }
    is_a_cut(&moved, depth).then_some(moved)
}

/// Whether every chunk has a layer.
fn is_a_cut(starts: &[usize], depth: usize) -> bool {
    starts[0] == 0 && starts.windows(2).all(|pair| pair[0] < pair[1]) && starts[starts.len() - 1] < depth
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heaviest(starts: &[usize], weights: &[u64], ends: [u64; 2], held: &[Vec<usize>]) -> u64 {
        let last = starts.len() - 1;
        let of_chunk = |chunk: usize| {
            let end = starts.get(chunk + 1).copied().unwrap_or(weights.len());
            let edges = if chunk == 0 { ends[0] } else { 0 } + if chunk == last { ends[1] } else { 0 };
            weights[starts[chunk]..end].iter().sum::<u64>() + edges
        };
        held.iter().map(|chunks| chunks.iter().map(|c| of_chunk(*c)).sum()).max().unwrap_or(0)
    }

    /// Small models under virtual stages and folds, with edges from none to several layers' worth.
    #[test]
    fn no_cut_of_a_small_model_has_a_lighter_heaviest_stage() {
        let deals: [&[&[usize]]; 4] =
            [&[&[0, 2], &[1, 3]], &[&[0, 3], &[1, 2]], &[&[0, 2, 4], &[1, 3, 5]], &[&[0, 3], &[1, 4], &[2, 5]]];
        for deal in deals {
            let held: Vec<Vec<usize>> = deal.iter().map(|chunks| chunks.to_vec()).collect();
            let chunks = held.iter().flatten().count();
            for depth in chunks..=chunks + 5 {
                for ends in [[0, 0], [3, 25], [40, 0], [10, 70]] {
                    for pattern in [&[10u64][..], &[10, 4], &[10, 4, 17]] {
                        let weights: Vec<u64> = (0..depth).map(|layer| pattern[layer % pattern.len()]).collect();
                        let starts = crate::stages::lightest(&weights, ends, &held);
                        let best = every(depth, chunks, usize::MAX)
                            .unwrap()
                            .iter()
                            .map(|c| heaviest(c, &weights, ends, &held))
                            .min();
                        let is = heaviest(&starts, &weights, ends, &held);
                        assert_eq!(Some(is), best, "{held:?} {depth} {ends:?} {pattern:?}: {starts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_cut_is_listed_once() {
        assert_eq!(every(4, 2, 10), Some(vec![vec![0, 1], vec![0, 2], vec![0, 3]]));
        let all = every(9, 4, 56).unwrap();
        assert!(all.len() == 56 && all.iter().all(|cut| is_a_cut(cut, 9)));
        assert_eq!(every(9, 4, 55), None);
        assert_eq!(every(5, 5, 1), Some(vec![vec![0, 1, 2, 3, 4]]));
    }

    /// Too many cuts to weigh them all: the stages come out within a layer of one another.
    #[test]
    fn deep_models_come_out_even() {
        let weights = vec![10; 61];
        let held: Vec<Vec<usize>> = (0..4).map(|stage| vec![stage, stage + 4]).collect();
        assert_eq!(every(61, 8, 4000), None);
        let starts = crate::stages::lightest(&weights, [5, 35], &held);
        assert_eq!(heaviest(&starts, &weights, [5, 35], &held), 165, "{starts:?}");
    }

    #[test]
    fn a_stage_of_one_chunk_is_cut_as_before() {
        let weights = [5, 1, 1, 5, 1, 1, 1, 5];
        let held: Vec<Vec<usize>> = (0..4).map(|chunk| vec![chunk]).collect();
        assert_eq!(crate::stages::lightest(&weights, [2, 3], &held), weighted(&weights, 2, 3, 4));
    }
}
