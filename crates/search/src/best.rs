//! The best few layouts, the frontier and what may be the fastest, kept while layouts are simulated and replayed, and
//! the bounds that tell which need no simulation.
//!
//! A candidate is left out only when its bound shows that it can be told from the fastest and is neither among the
//! best few nor on the frontier, ties included; so what comes out is what simulating everything would give.

use crate::answer::LEAST_GAIN;
use crate::point::{Offload, Point};
use crate::price::Candidate;
use cost::interval::most_apart;
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
    pub(crate) fn order(&self, other: &Simulated) -> Ordering {
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
    /// The best few by throughput.
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

/// The best few, the frontier, and those among which the fastest is.
#[derive(Clone, Debug)]
pub struct Best {
    scope: Scope,
    /// Bytes that must be left.
    asked: i64,
    /// Bytes of one step of headroom.
    step: i64,
    /// The best few that fit by the sums, best first.
    pub top: Vec<Simulated>,
    /// Of those that fit by the sums, the ones that none is better than in throughput, headroom and simplicity at once.
    pub frontier: Vec<Simulated>,
    /// Whatever may fit and cannot be told from the fastest, refuted ones left out.
    pub band: Vec<Simulated>,
    /// The fastest one that its replay lets pass.
    pub fastest: Option<Simulated>,
    /// The same of those that keep their state on the device.
    pub fastest_here: Option<Simulated>,
    /// Seconds a sequence below which everything was looked at.
    pub seen: f64,
}

impl Best {
    /// Nothing yet, where so many bytes of a device must be left.
    pub fn new(scope: Scope, device_bytes: u64, asked: u64) -> Best {
        let step = (device_bytes as i64 / HEADROOM_STEPS).max(1);
        let scope = Scope { keep: scope.keep.max(1), ..scope };
        let (top, frontier, band) = (Vec::new(), Vec::new(), Vec::new());
        let (fastest, fastest_here) = (None, None);
        Best { scope, asked: asked as i64, step, top, frontier, band, fastest, fastest_here, seen: f64::INFINITY }
    }

    fn level(&self, headroom: i64) -> i64 {
        headroom.div_euclid(self.step)
    }

    /// Headroom as far as it decides between equals, in steps: beyond [`ROOMY`] of them it is room that nobody asked
    /// for.
    pub fn room(&self, headroom: i64) -> i64 {
        self.level(headroom).min(ROOMY)
    }

    /// Whether the sums say that it fits.
    pub fn is_likely(&self, one: &Simulated) -> bool {
        one.headroom >= self.asked
    }

    /// Seconds a sequence beyond which a layout can be neither the best nor an equal of it. Layouts on the device are also
    /// compared with the one that may be shown in place of one with state on the host.
    fn told_apart(&self, offload: Offload) -> f64 {
        let Some(fastest) = self.fastest else { return f64::INFINITY };
        let (fastest, noise) = (fastest.per_sequence, 1.0 + most_apart());
        match (offload, self.in_its_place()) {
            (Offload::Device, Some(most)) => self.fastest_here.map_or(most, |here| here.per_sequence.min(most)) * noise,
            _ => fastest * noise,
        }
    }

    /// Seconds a sequence up to which a layout with its state on the device is shown in place of the fastest; none where
    /// that one's is there as well.
    pub fn in_its_place(&self) -> Option<f64> {
        let fastest = self.fastest.filter(|fastest| fastest.point.offload != Offload::Device)?;
        Some(fastest.per_sequence * (1.0 + LEAST_GAIN))
    }

    /// Whether simulating a candidate could change anything.
    pub fn wants(&self, candidate: &Candidate) -> bool {
        let least = Simulated {
            point: candidate.point,
            per_sequence: candidate.bound,
            headroom: candidate.headroom,
            complexity: candidate.complexity,
        };
        let is_near = candidate.bound <= self.told_apart(candidate.point.offload);
        let ranks = || self.is_likely(&least) && (self.could_be_top(&least) || self.could_be_frontier(&least));
        candidate.bound <= self.scope.most && (is_near || ranks())
    }

    /// Whether anything that takes at least so long could change anything.
    pub fn reaches(&self, per_sequence: f64) -> bool {
        let ranked = match (self.top.last().filter(|_| self.top.len() == self.scope.keep), self.top.first()) {
            (Some(last), Some(first)) => last.per_sequence.max(first.per_sequence * self.scope.reach),
            _ => f64::INFINITY,
        };
        per_sequence <= self.scope.most.min(ranked.max(self.told_apart(Offload::Device)))
    }

    fn could_be_top(&self, least: &Simulated) -> bool {
        self.top.len() < self.scope.keep || self.top.last().is_some_and(|last| least.order(last) == Ordering::Less)
    }

    fn could_be_frontier(&self, least: &Simulated) -> bool {
        let in_reach = self.top.first().is_none_or(|first| least.per_sequence <= first.per_sequence * self.scope.reach);
        in_reach && !self.frontier.iter().any(|member| self.beats(member, least))
    }

    /// Whether one is at least as good in everything, and better in something or first in order.
    fn beats(&self, one: &Simulated, other: &Simulated) -> bool {
        let (mine, theirs) = (self.level(one.headroom), self.level(other.headroom));
        // Like with like: nobody has measured what state on the host takes.
        if one.point.offload > other.point.offload {
            return false;
        }
        if one.per_sequence > other.per_sequence || mine < theirs || one.complexity > other.complexity {
            return false;
        }
        let is_better = one.per_sequence < other.per_sequence || mine > theirs || one.complexity < other.complexity;
        is_better || one.point < other.point
    }

    /// Takes a simulated layout in.
    pub fn take(&mut self, new: Simulated) {
        if new.per_sequence > self.scope.most {
            return;
        }
        if new.per_sequence <= self.told_apart(new.point.offload) {
            self.band.push(new);
        }
        if self.is_likely(&new) {
            self.rank(new);
        }
    }

    /// Takes one in among the best few and the frontier.
    fn rank(&mut self, new: Simulated) {
        let at = self.top.partition_point(|kept| kept.order(&new) == Ordering::Less);
        let is_first = at == 0 && self.top.first() != Some(&new);
        if at < self.scope.keep && self.top.get(at) != Some(&new) {
            self.top.insert(at, new);
            self.top.truncate(self.scope.keep);
        }
        if self.could_be_frontier(&new) && !self.frontier.contains(&new) {
            let beaten: Vec<bool> = self.frontier.iter().map(|member| self.beats(&new, member)).collect();
            let mut beaten = beaten.into_iter();
            self.frontier.retain(|_| !beaten.next().unwrap_or(false));
            self.frontier.push(new);
        }
        if is_first {
            let most = new.per_sequence * self.scope.reach;
            self.frontier.retain(|member| member.per_sequence <= most);
        }
    }

    /// Those that may be faster than the fastest one known, or shown in its place, the fastest first; `most` is what
    /// they may take.
    pub fn faster(&self, most: f64) -> Vec<Simulated> {
        let is_before =
            |one: &Simulated, known: Option<Simulated>| known.is_none_or(|known| one.order(&known) == Ordering::Less);
        let in_its_place = self.in_its_place();
        let is_faster = |one: &&Simulated| {
            let may_be_shown = one.point.offload == Offload::Device
                && in_its_place.is_some_and(|most| one.per_sequence <= most)
                && is_before(one, self.fastest_here);
            may_be_shown || is_before(one, self.fastest)
        };
        let mut faster: Vec<Simulated> =
            self.band.iter().filter(is_faster).filter(|one| one.per_sequence <= most).copied().collect();
        faster.sort_by(Simulated::order);
        faster
    }

    /// A replay has let one pass, with so much headroom.
    pub fn pass(&mut self, one: &Simulated, headroom: i64) {
        let is_first = |known: &Option<Simulated>| known.is_none_or(|known| one.order(&known) == Ordering::Less);
        if is_first(&self.fastest) {
            self.fastest = Some(*one);
        }
        if one.point.offload == Offload::Device && is_first(&self.fastest_here) {
            self.fastest_here = Some(*one);
        }
        let [here, on_host] = [Offload::Device, Offload::Host].map(|offload| self.told_apart(offload));
        let most = |member: &Simulated| if member.point.offload == Offload::Device { here } else { on_host };
        self.band.retain(|member| member.per_sequence <= most(member));
        if !self.is_likely(one) {
            self.rank(Simulated { headroom, ..*one });
        }
    }

    /// A replay has not: others come up in its place.
    pub fn refute(&mut self, one: &Simulated) {
        self.band.retain(|member| member.point != one.point);
        let ranked = self.top.len() + self.frontier.len();
        for list in [&mut self.top, &mut self.frontier] {
            list.retain(|member| member.point != one.point);
        }
        // Only what was ranked kept others from it.
        if self.top.len() + self.frontier.len() < ranked {
            let likely: Vec<Simulated> = self.band.iter().filter(|member| self.is_likely(member)).copied().collect();
            likely.into_iter().for_each(|member| self.rank(member));
        }
    }

    /// Leaves one out that nobody replayed.
    pub fn skip(&mut self, one: &Simulated) {
        self.band.retain(|member| member.point != one.point);
        self.unseen(one.per_sequence);
    }

    /// Something that takes at least so long was not looked at.
    pub fn unseen(&mut self, per_sequence: f64) {
        self.seen = self.seen.min(per_sequence);
    }

    /// The frontier in the order of throughput.
    pub fn sort(&mut self) {
        self.frontier.sort_by(Simulated::order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::{Key, Order};
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

    /// State on the host has to gain more than [`LEAST_GAIN`]: what may be shown in its place is kept, also behind a
    /// slower one that has passed.
    #[test]
    fn what_may_be_shown_in_place_of_the_host_is_kept() {
        let mut best = Best::new(Scope::all(2), 100, 10);
        let on_host = |mut one: Simulated| {
            one.point.offload = Offload::Host;
            one
        };
        let (slow, host, near) = (layout(1, 1.10, 20, 3), on_host(layout(2, 1.00, 20, 3)), layout(3, 1.04, 20, 3));
        [slow, host, near].into_iter().for_each(|one| best.take(one));
        best.pass(&slow, 20);
        best.pass(&host, 20);
        assert_eq!(best.faster(f64::INFINITY), [near]);
        best.pass(&near, 20);
        assert_eq!(best.fastest_here, Some(near));
    }

    /// The frontier grew by itself with every layout that was refuted: 100 questions did not end within 15 minutes.
    #[test]
    fn those_that_stay_are_ranked_once() {
        let mut best = Best::new(Scope::all(1), 100, 10);
        let gone = [(5, 0.95), (6, 0.96), (7, 0.97)].map(|(tp, seconds)| layout(tp, seconds, 12, 9));
        let stay = [layout(1, 1.00, 12, 3), layout(2, 1.10, 50, 3)];
        gone.iter().chain(&stay).for_each(|one| best.take(*one));
        gone.iter().for_each(|one| best.refute(one));
        assert_eq!((best.top.len(), best.frontier.len()), (1, 2), "{:?}", best.frontier);
        best.sort();
        assert_eq!(best.frontier, stay);
    }

    /// What is replayed first is the fastest; once one passes, what can be told from it is forgotten.
    #[test]
    fn those_that_may_be_faster_are_kept() {
        let mut best = Best::new(Scope::all(2), 100, 10);
        let layouts = [layout(1, 1.00, 12, 3), layout(2, 1.01, 2, 3), layout(3, 1.02, 20, 3), layout(4, 9.0, 90, 0)];
        layouts.into_iter().for_each(|one| best.take(one));
        let degrees = |list: &[Simulated]| list.iter().map(|one| one.point.key.tp).collect::<Vec<_>>();
        assert_eq!(degrees(&best.faster(f64::INFINITY)), [1, 2, 3, 4]);
        assert_eq!((degrees(&best.top), degrees(&best.frontier)), (vec![1, 3], vec![1, 3]));
        best.refute(&layouts[0]);
        assert_eq!(degrees(&best.faster(1.011)), [2]);
        assert_eq!((degrees(&best.top), degrees(&best.frontier)), (vec![3, 4], vec![3]));
        // It misses what is asked for by the sums, and its replay lets it pass.
        best.pass(&layouts[1], 11);
        assert_eq!((degrees(&best.faster(f64::INFINITY)), degrees(&best.band)), (vec![], vec![2, 3]));
        assert_eq!(degrees(&best.top), [2, 3]);
        assert!(best.reaches(1.2) && !best.reaches(2.0));
    }
}
