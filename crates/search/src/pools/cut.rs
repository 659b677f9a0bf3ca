//! The cut whose slowest stage is fastest, where stages differ in speed and in room.

use crate::space::ModeSpace;
use cost::{Counts, PooledPrices};

/// Halvings of the slowest stage's time while a cut is looked for.
const HALVINGS: usize = 40;

/// Seconds of a microbatch by layer on every stage, and of the ends.
pub(super) struct Weights {
    /// By stage, sums of the layers before each.
    before: Vec<Vec<f64>>,
    ends: [f64; 2],
}

impl Weights {
    pub fn new(mode: &ModeSpace, prices: &PooledPrices, pp: usize) -> Weights {
        let kinds = &mode.kinds;
        let seconds = |stage: usize, layers: &case::PerKind<u64>, is_first: bool, is_last: bool| {
            let times = prices.of_stage(stage).stage(Counts { layers, is_first, is_last });
            times.forward + times.backward()
        };
        let sums = |stage: usize| {
            let by_kind = case::PerKind::new(kinds, |layer| seconds(stage, &kinds.count([layer]), false, false));
            let mut sum = 0.0;
            let each = (0..kinds.depth()).map(|layer| {
                sum += by_kind[kinds.of_layer(layer)];
                sum
            });
            std::iter::once(0.0).chain(each).collect()
        };
        let none = kinds.count([]);
        Weights {
            before: (0..pp).map(sums).collect(),
            ends: [seconds(0, &none, true, false), seconds(pp - 1, &none, false, true)],
        }
    }

    pub fn depth(&self) -> usize {
        self.before[0].len() - 1
    }

    /// What a stage of these layers takes.
    fn of(&self, stage: usize, start: usize, end: usize) -> f64 {
        let (is_first, is_last) = (stage == 0, stage + 1 == self.before.len());
        let ends = [is_first, is_last].iter().zip(self.ends).filter(|(is, _)| **is).map(|(_, end)| end).sum::<f64>();
        self.before[stage][end] - self.before[stage][start] + ends
    }

    /// What the slowest stage of a cut takes.
    pub fn slowest(&self, starts: &[usize]) -> f64 {
        let end = |stage: usize| starts.get(stage + 1).copied().unwrap_or(self.depth());
        (0..starts.len()).map(|stage| self.of(stage, starts[stage], end(stage))).fold(0.0, f64::max)
    }

    /// First layers of stages of which the slowest is fastest, where stage `s` from layer `l` on has room up to
    /// `room(s, l)`. A stage takes as many layers as it may: fewer are never harder for those behind it.
    pub fn cut(&self, mut room: impl FnMut(usize, usize) -> usize) -> Option<Vec<usize>> {
        let (stages, depth) = (self.before.len(), self.depth());
        let mut taken = |most: f64| -> Option<Vec<usize>> {
            let (mut starts, mut start) = (Vec::with_capacity(stages), 0);
            for stage in 0..stages {
                starts.push(start);
                let last = depth - (stages - stage - 1);
                let limit = room(stage, start).min(last);
                let mut end = start;
                while end < limit && self.of(stage, start, end + 1) <= most {
                    end += 1;
                }
                if end == start {
                    return None;
                }
                start = end;
            }
            (start == depth).then_some(starts)
        };
        let mut high = (0..stages).map(|stage| self.of(stage, 0, depth)).fold(0.0, f64::max);
        let mut best = taken(high)?;
        let mut low = 0.0;
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            match taken(middle) {
                Some(starts) => (best, high) = (starts, middle),
                None => low = middle,
            }
        }
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn weights(seconds: &[Vec<f64>], ends: [f64; 2]) -> Weights {
        let sums = |stage: &Vec<f64>| {
            let mut sum = 0.0;
            std::iter::once(0.0)
                .chain(stage.iter().map(|s| {
                    sum += s;
                    sum
                }))
                .collect()
        };
        Weights { before: seconds.iter().map(sums).collect(), ends }
    }

    #[test]
    fn slower_stages_get_fewer_layers() {
        let found = weights(&[vec![1.0; 12], vec![3.0; 12]], [0.0; 2]);
        assert_eq!(found.cut(|_, _| 12), Some(vec![0, 9]));
        assert_eq!(found.slowest(&[0, 9]), 9.0);
        // Six layers have room on the first, so that the slower takes six as well.
        assert_eq!(found.cut(|stage, start| if stage == 0 { start + 6 } else { 12 }), Some(vec![0, 6]));
        assert_eq!(found.cut(|stage, start| if stage == 0 { start + 6 } else { start + 5 }), None);
    }

    proptest! {
        /// No cut has a faster slowest stage, whatever each stage takes and has room for.
        #[test]
        fn cuts_are_as_good_as_brute_force(
            seconds in prop::collection::vec(prop::collection::vec(1u32..20, 8), 3),
            ends in [0u32..20, 0u32..20],
            rooms in prop::collection::vec(1usize..9, 3),
        ) {
            let seconds: Vec<Vec<f64>> = seconds.iter().map(|s| s.iter().map(|n| f64::from(*n)).collect()).collect();
            let found = weights(&seconds, ends.map(f64::from));
            let has_room = |starts: &[usize]| (0..3).all(|stage| {
                starts.get(stage + 1).copied().unwrap_or(8) - starts[stage] <= rooms[stage]
            });
            let all = layout::stages::every(8, 3, 1000).unwrap();
            let best = all.iter().filter(|starts| has_room(starts)).map(|starts| found.slowest(starts)).fold(f64::INFINITY, f64::min);
            match found.cut(|stage, start| start + rooms[stage]) {
                Some(starts) => {
                    prop_assert!(has_room(&starts));
                    prop_assert!((found.slowest(&starts) - best).abs() < 1e-6, "{} against {best}", found.slowest(&starts));
                }
                None => prop_assert!(best.is_infinite()),
            }
        }
    }
}
