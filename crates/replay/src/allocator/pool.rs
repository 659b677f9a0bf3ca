//! The free blocks of one stream and size class.

use super::BlockId;

/// The most blocks a run holds. An insertion moves half of one at most, whatever the pool holds;
/// pools of ordinary replays are a single run.
const RUN: usize = 32;

/// Size, address, and the block.
pub(super) type Entry = (u64, u64, BlockId);

/// Free blocks, smallest first, the lowest address among equals: sorted runs, none of them empty,
/// one after the other.
#[derive(Debug, Default)]
pub(super) struct Pool(Vec<Vec<Entry>>);

/// Size and address in one number, which compares in the same order without a branch.
fn key(size: u64, address: u64) -> u128 {
    u128::from(size) << 64 | u128::from(address)
}

impl Pool {
    /// Run and place of the first block that is not before this one.
    fn at(&self, size: u64, address: u64) -> (usize, usize) {
        let wanted = key(size, address);
        let is_before = |entry: &Entry| key(entry.0, entry.1) < wanted;
        let run = match self.0.len() {
            0 | 1 => 0,
            _ => self.0.partition_point(|run| run.last().is_some_and(is_before)),
        };
        // A run is short: counting all of it takes less than guessing the branches of a search.
        let count = |run: &Vec<Entry>| run.iter().map(|entry| usize::from(is_before(entry))).sum();
        (run, self.0.get(run).map_or(0, count))
    }

    /// All blocks, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter().flatten()
    }

    pub fn insert(&mut self, size: u64, address: u64, id: BlockId) {
        let (run, at) = self.at(size, address);
        // What is larger than everything goes to the end of the last run.
        let (run, at) = match self.0.len() {
            0 => {
                self.0.push(Vec::with_capacity(RUN));
                (0, 0)
            }
            runs if run == runs => (run - 1, self.0[run - 1].len()),
            _ => (run, at),
        };
        let held = &mut self.0[run];
        held.insert(at, (size, address, id));
        if held.len() == RUN {
            let mut upper = Vec::with_capacity(RUN);
            upper.extend(held.drain(RUN / 2..));
            self.0.insert(run + 1, upper);
        }
    }

    pub fn remove(&mut self, size: u64, address: u64) {
        let (run, at) = self.at(size, address);
        self.take_out(run, at);
    }

    /// Takes out the smallest block of at least so many bytes; the one that could grow only if there is
    /// no other.
    pub fn take(&mut self, size: u64, growing: Option<BlockId>) -> Option<BlockId> {
        let (run, at) = self.at(size, 0);
        let first = self.0.get(run)?.get(at)?.2;
        if Some(first) == growing {
            if at + 1 < self.0[run].len() {
                return Some(self.take_out(run, at + 1));
            }
            if run + 1 < self.0.len() {
                return Some(self.take_out(run + 1, 0));
            }
        }
        Some(self.take_out(run, at))
    }

    fn take_out(&mut self, run: usize, at: usize) -> BlockId {
        let (_, _, id) = self.0[run].remove(at);
        // The only run keeps its room: it empties and fills over and over.
        if self.0[run].is_empty() && self.0.len() > 1 {
            self.0.remove(run);
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The smallest that fits in a plain map, the one that could grow last.
    fn smallest(model: &BTreeMap<(u64, u64), BlockId>, size: u64, growing: Option<BlockId>) -> Option<(u64, u64)> {
        let mut fitting = model.range((size, 0)..);
        let first = fitting.next()?;
        if Some(*first.1) == growing { Some(*fitting.next().unwrap_or(first).0) } else { Some(*first.0) }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_pool_is_a_sorted_map(steps in proptest::collection::vec((0..4u8, 1..40u64, any::<u32>()), 0..2000)) {
            let (mut pool, mut model) = (Pool::default(), BTreeMap::new());
            for (index, (kind, size, pick)) in steps.into_iter().enumerate() {
                let id = BlockId(index as u32);
                let nth = |model: &BTreeMap<(u64, u64), BlockId>| {
                    model.iter().nth(pick as usize % model.len().max(1)).map(|(k, v)| (*k, *v))
                };
                match kind {
                    0 | 1 => {
                        let address = u64::from(pick);
                        if model.insert((size, address), id).is_none() {
                            pool.insert(size, address, id);
                        } else {
                            pool.remove(size, address);
                            pool.insert(size, address, id);
                        }
                    }
                    2 => {
                        if let Some((key, _)) = nth(&model) {
                            model.remove(&key);
                            pool.remove(key.0, key.1);
                        }
                    }
                    _ => {
                        let growing = nth(&model).map(|(_, id)| id).filter(|_| pick % 3 == 0);
                        let expected = smallest(&model, size, growing).and_then(|key| model.remove(&key));
                        prop_assert_eq!(pool.take(size, growing), expected);
                    }
                }
            }
            let held: Vec<_> = pool.iter().map(|(size, address, id)| ((*size, *address), *id)).collect();
            prop_assert_eq!(held, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_run_grows_without_end() {
        let mut pool = Pool::default();
        for address in 0..10_000 {
            pool.insert(512, address * 7919 % 10_007, BlockId(0));
        }
        assert!(pool.0.iter().all(|run| (1..RUN).contains(&run.len())));
    }
}
