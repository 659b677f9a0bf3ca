//! The best few layouts and the frontier, kept while layouts are simulated, and the bounds that
//! tell which need no simulation.
//!
//! A candidate is left out only when its bound shows that it is neither among the best few nor on
//! the frontier, ties included; so what comes out is what simulating everything would give.

use crate::point::Point;
use crate::price::Candidate;
use std::cmp::Ordering;

/// A layout with its simulated time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// The choices it is made of.
    pub point: Point,
    /// Seconds of a step over sequences of a step.
    pub per_sequence: f64,
    /// Bytes left on the worst rank.
    pub headroom: i64,
    /// How much there is to get wrong.
    pub complexity: u32,
}

impl Simulated {
    /// Faster first, then simpler, then smaller degrees.
    fn order(&self, other: &Simulated) -> Ordering {
        let time = self.per_sequence.total_cmp(&other.per_sequence);
        time.then(self.complexity.cmp(&other.complexity)).then(self.point.cmp(&other.point))
    }
}

/// The frontier's layouts take at most this many times as long as the best one: beyond it no
/// headroom and no simplicity is worth it.
pub const FRONTIER_REACH: f64 = 1.25;

/// Headroom counts on the frontier in this many steps of the device: less is noise.
pub const HEADROOM_STEPS: i64 = 20;

/// Of those steps, how many are room enough: between equals, more is no reason.
pub const ROOMY: i64 = 4;

/// What a search is asked to bring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scope {
    /// The best few.
    pub keep: usize,
    /// Of the frontier, layouts that take at most so many times as long as the best: [`FRONTIER_REACH`] for a screen,
    /// or just what cannot be told apart for an answer alone.
    pub reach: f64,
    /// Seconds a sequence beyond which nothing is of use.
    pub most: f64,
}

impl Scope {
    /// The best few and the whole frontier.
    pub fn all(keep: usize) -> Scope {
        Scope { keep, reach: FRONTIER_REACH, most: f64::INFINITY }
    }
}

/// The best few and the frontier.
#[derive(Clone, Debug)]
pub struct Best {
    keep: usize,
    /// The frontier's layouts take at most so many times as long as the best one.
    reach: f64,
    /// Seconds a sequence beyond which nothing is looked at.
    most: f64,
    /// Bytes of one step of headroom.
    step: i64,
    /// The best few, best first.
    pub top: Vec<Simulated>,
    /// Layouts that none is better than in throughput, headroom and simplicity at once.
    pub frontier: Vec<Simulated>,
}

impl Best {
    /// Nothing yet.
    pub fn new(scope: Scope, device_bytes: u64) -> Best {
        let step = (device_bytes as i64 / HEADROOM_STEPS).max(1);
        let Scope { keep, reach, most } = scope;
        Best { keep: keep.max(1), reach, most, step, top: Vec::new(), frontier: Vec::new() }
    }

    fn level(&self, headroom: i64) -> i64 {
        headroom.div_euclid(self.step)
    }

    /// Layouts of the frontier that take at most `apart` longer than the fastest and cannot be told from it, in the
    /// order in which they are to be run: the one with most room first, then the simplest.
    pub fn equal(&self, apart: f64) -> Vec<Simulated> {
        let Some(first) = self.top.first() else { return Vec::new() };
        let most = first.per_sequence * (1.0 + apart);
        let mut equal: Vec<Simulated> =
            self.frontier.iter().filter(|member| member.per_sequence <= most).copied().collect();
        let room = |one: &Simulated| self.room(one.headroom);
        equal.sort_by(|a, b| room(b).cmp(&room(a)).then(a.complexity.cmp(&b.complexity)).then(a.order(b)));
        equal
    }

    /// Headroom as far as it decides between equals, in steps: beyond [`ROOMY`] of them it is room that nobody asked
    /// for.
    pub fn room(&self, headroom: i64) -> i64 {
        self.level(headroom).min(ROOMY)
    }

    /// Whether simulating a candidate could change anything.
    pub fn wants(&self, candidate: &Candidate) -> bool {
        let least = Simulated {
            point: candidate.point,
            per_sequence: candidate.bound,
            headroom: candidate.headroom,
            complexity: candidate.complexity,
        };
        candidate.bound <= self.most && (self.could_be_top(&least) || self.could_be_frontier(&least))
    }

    /// Whether anything that takes at least so long could change anything.
    pub fn reaches(&self, per_sequence: f64) -> bool {
        if per_sequence > self.most {
            return false;
        }
        match (self.top.last().filter(|_| self.top.len() == self.keep), self.top.first()) {
            (Some(last), Some(first)) => per_sequence <= last.per_sequence.max(first.per_sequence * self.reach),
            _ => true,
        }
    }

    fn could_be_top(&self, least: &Simulated) -> bool {
        self.top.len() < self.keep || self.top.last().is_some_and(|last| least.order(last) == Ordering::Less)
    }

    fn could_be_frontier(&self, least: &Simulated) -> bool {
        let in_reach = self.top.first().is_none_or(|first| least.per_sequence <= first.per_sequence * self.reach);
        in_reach && !self.frontier.iter().any(|member| self.beats(member, least))
    }

    /// Whether one is at least as good in everything, and better in something or first in order.
    fn beats(&self, one: &Simulated, other: &Simulated) -> bool {
        let (mine, theirs) = (self.level(one.headroom), self.level(other.headroom));
        if one.per_sequence > other.per_sequence || mine < theirs || one.complexity > other.complexity {
            return false;
        }
        let is_better = one.per_sequence < other.per_sequence || mine > theirs || one.complexity < other.complexity;
        is_better || one.point < other.point
    }

    /// Takes a simulated layout in.
    pub fn take(&mut self, new: Simulated) {
        if new.per_sequence > self.most {
            return;
        }
        let at = self.top.partition_point(|kept| kept.order(&new) == Ordering::Less);
        if at < self.keep {
            self.top.insert(at, new);
            self.top.truncate(self.keep);
        }
        if self.could_be_frontier(&new) {
            let beaten: Vec<bool> = self.frontier.iter().map(|member| self.beats(&new, member)).collect();
            let mut beaten = beaten.into_iter();
            self.frontier.retain(|_| !beaten.next().unwrap_or(false));
            self.frontier.push(new);
        }
        if let Some(first) = self.top.first() {
            let most = first.per_sequence * self.reach;
            self.frontier.retain(|member| member.per_sequence <= most);
        }
    }

    /// The frontier in the order of throughput.
    pub fn sort(&mut self) {
        self.frontier.sort_by(Simulated::order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::{Key, Offload, Order};
    use layout::{Schedule, ZeroStage};

    fn layout(tp: u64, per_sequence: f64, headroom: i64, complexity: u32) -> Simulated {
        let point = Point {
            mode: 0,
            key: Key { tp, cp: 1, ep: 1, etp: 1, micro_batch: 1 },
            pp: 1,
            order: Order { schedule: Schedule::OneF1b, vpp: 1 },
            shape: 0,
            zero: ZeroStage::One,
            recompute: 0,
            offload: Offload::Device,
        };
        Simulated { point, per_sequence, headroom, complexity }
    }

    /// Between equals room decides, as far as it is room that somebody may need; then simplicity; then time.
    #[test]
    fn equals_are_ranked_by_room_and_then_by_simplicity() {
        let mut best = Best::new(Scope::all(8), 100);
        let layouts = [
            layout(1, 1.00, 6, 3),
            layout(2, 1.01, 14, 3),
            layout(3, 1.015, 21, 3),
            layout(4, 1.018, 90, 4),
            layout(5, 1.019, 25, 2),
            layout(6, 1.20, 95, 0),
        ];
        layouts.into_iter().for_each(|one| best.take(one));
        let order = |apart: f64| best.equal(apart).iter().map(|one| one.point.key.tp).collect::<Vec<_>>();
        assert_eq!(order(0.0), [1]);
        assert_eq!(order(0.012), [2, 1]);
        // Twenty steps of a hundred bytes, of which four are room enough: 90 bytes are no better than 21.
        assert_eq!(order(0.02), [5, 3, 4, 2, 1]);
    }
}
