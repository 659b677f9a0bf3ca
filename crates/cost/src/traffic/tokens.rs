//! Tokens of experts by kernels made for them: once to each rank, and once to each foreign island.

use super::{Fabric, Moved, Spread};
use hardware::TokenCurve;

/// Tokens that go to several experts each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    /// On one rank.
    pub count: f64,
    /// Bytes of one.
    pub bytes: f64,
    /// Experts there are.
    pub experts: f64,
    /// Experts of one token, all of them different.
    pub chosen: f64,
    /// Groups of experts that lie side by side, and of how many of them a token's experts are at most.
    pub groups: (f64, f64),
}

impl Tokens {
    /// Places among so many that a token's experts lie on, where every place has as many experts: those that do not
    /// miss all of its choices, drawn without putting back from the experts of the groups that were chosen first. A place
    /// of several groups is one a token's groups miss, or its choices in those that are there.
    fn distinct(&self, places: f64) -> f64 {
        let (groups, open) = self.groups;
        let each = self.experts / groups;
        if open >= groups {
            return places * (1.0 - missed(self.experts, self.experts / places, self.chosen));
        }
        let here = groups / places;
        if here < 1.0 {
            // A group over several places: those of each open group.
            return places * (open / groups) * (1.0 - missed(each * open, self.experts / places, self.chosen));
        }
        // How many of the open groups lie on one place, drawn without putting back.
        let at = |k: f64| choose(here, k) * choose(groups - here, open - k) / choose(groups, open);
        let held = (1..=here.min(open) as u64).map(|k| k as f64);
        places * held.map(|k| at(k) * (1.0 - missed(each * open, each * k, self.chosen))).sum::<f64>()
    }
}

/// That none of so many choices among all falls on those that are here.
fn missed(all: f64, here: f64, chosen: f64) -> f64 {
    (0..chosen as u64).map(|i| i as f64).map(|i| ((all - here - i) / (all - i)).max(0.0)).product()
}

/// Ways to choose k of n.
fn choose(n: f64, k: f64) -> f64 {
    (0..k as u64).map(|i| i as f64).map(|i| ((n - i) / (k - i)).max(0.0)).product()
}

impl Fabric {
    /// Tokens to the ranks of their experts and back, once each, by kernels made for it: half of the two. A token
    /// travels once to each rank of its own island and once to each foreign island, whatever its experts there.
    pub(crate) fn tokens(&self, tokens: Tokens, spread: Spread) -> Moved {
        let one_copy = tokens.count * tokens.bytes;
        let (ranks, islands) = (tokens.distinct(spread.members as f64), tokens.distinct(spread.islands()));
        // Ranks of the own island, of as many as there are.
        let near = ranks * spread.per_island as f64 / spread.members as f64;
        let far = islands * (1.0 - 1.0 / spread.islands());
        let bases = self.curve.network_tokens;
        let way = |curve: &TokenCurve, base: f64| {
            let inside = curve.base + tokens.count * near * curve.row + near * one_copy / (self.island * curve.share);
            let outside = base + self.scattered(far * one_copy, far * one_copy, spread);
            if spread.crosses() { inside.max(outside) } else { inside }
        };
        let seconds = (way(&self.curve.dispatch, bases.0) + way(&self.curve.combine, bases.1)) / 2.0;
        let algorithm = if spread.crosses() { "two-level all-to-all" } else { "once a rank" };
        let port = if spread.crosses() { self.scattered(far * one_copy, far * one_copy, spread) } else { 0.0 };
        Moved { seconds, bytes: (near + far) * one_copy, port, algorithm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{Collective, tests::fabric};

    /// Four groups of eight are open: eight choices lie on 3.6 of eight islands, with two groups an island on 2.9 of four, with
    /// half a group a rank on 5.3 of 16, and on no more ranks than there are choices.
    #[test]
    fn groups_that_are_chosen_first_leave_fewer_places() {
        let tokens = Tokens { count: 1.0, bytes: 1.0, experts: 256.0, chosen: 8.0, groups: (8.0, 4.0) };
        let open = Tokens { groups: (8.0, 8.0), ..tokens };
        for (places, distinct) in [(1.0, 1.0), (4.0, 2.92), (8.0, 3.62), (16.0, 5.33), (64.0, 7.34), (256.0, 8.0)] {
            assert!((tokens.distinct(places) - distinct).abs() < 0.02, "{places}: {}", tokens.distinct(places));
            assert!(tokens.distinct(places) <= open.distinct(places) + 1e-9, "{places}");
        }
        assert!((open.distinct(8.0) - 5.28).abs() < 0.02);
    }

    /// Eight experts of 256 over eight ranks lie on 5.3 of them, over 32 on 7.3, and over one on one.
    #[test]
    fn a_token_travels_once_to_each_rank() {
        let fabric = fabric("4x8xH100");
        let tokens = Tokens { count: 4096.0, bytes: 14336.0, experts: 256.0, chosen: 8.0, groups: (1.0, 1.0) };
        for (ranks, distinct) in [(1.0, 1.0), (8.0, 5.28), (32.0, 7.27)] {
            assert!((tokens.distinct(ranks) - distinct).abs() < 0.02, "{ranks}: {}", tokens.distinct(ranks));
        }
        let inside = fabric.tokens(tokens, fabric.spread(8, 1));
        let pairwise = fabric.time(Collective::AllToAll, 4096.0 * 14336.0 * 8.0, fabric.spread(8, 1));
        assert!(inside.seconds < 0.8 * pairwise.seconds, "{} of {}", inside.seconds, pairwise.seconds);
        let abroad = fabric.tokens(tokens, fabric.spread(32, 1));
        let pairwise = fabric.time(Collective::AllToAll, 4096.0 * 14336.0 * 8.0, fabric.spread(32, 1));
        assert!(abroad.seconds < 0.7 * pairwise.seconds, "{} of {}", abroad.seconds, pairwise.seconds);
    }
}
