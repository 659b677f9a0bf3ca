//! Algorithms and protocols of one group, each a line over bytes: what it waits, and what it carries.

use super::{Collective, Fabric, Spread};
use hardware::Protocol;

// NCCL's own model of what algorithms wait besides bytes (NVIDIA/nccl 5067397, src/graph/tuning.cc:
// `ncclTunerConstantsDefaults`, `ncclTopoTuneModel`, `ncclTopoGetAlgoTime`). Names are its own.

/// Simple: before anything, a step over NVLink in a ring, and one in a tree.
pub(super) const SIMPLE: [f64; 3] = [8.4e-6, 3.4e-6, 4.0e-6];

/// A step over NVLink under Simple.
pub(super) const NVLINK_STEP: f64 = SIMPLE[1];

/// LL, which waits for no flush: the same. Posting to the network bounds a ring's steps.
const LL: [f64; 3] = [6.6e-6, 2.0e-6, 0.6e-6];

/// Bytes a second that LL carries at most over several nodes.
const LL_RATE: f64 = 20e9;

/// A step over the network under Simple is 14 µs where the network adds nothing of its own, and twice the latency
/// it states: the message, and the flush behind it. Ports of InfiniBand have 5 µs here, which the 14 hold.
pub(super) fn simple_step(latency: f64) -> f64 {
    4e-6 + 2.0 * latency
}

/// Under LL, at least: in a ring, and in a tree.
const LL_STEP: [f64; 2] = [2.7e-6, 5e-6];

/// What a ring's steps come to on large messages over several nodes (its "plateau"). NCCL says so of all-reduces,
/// which are a reduction and a gather around the same ring.
const PLATEAU: f64 = 1.4;

/// What a step between islands takes longer in a tree of switches: 20.9 µs against a ring's 14.
const NVLS_TREE: f64 = 20.9e-6 - 14e-6;

/// What trees and PAT reach of a ring's rate.
const TREE_RATE: f64 = 0.92;
const PAT_RATE: f64 = 0.75;

/// Members up to which collectives inside an island were timed. Beyond, a further member is one of NCCL's steps.
const TIMED: f64 = 8.0;

/// Fixed seconds and bytes a second of one algorithm under one protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    pub fixed: f64,
    pub rate: f64,
    pub algorithm: &'static str,
}

impl Line {
    /// Never taken.
    const NONE: Line = Line { fixed: f64::INFINITY, rate: 1.0, algorithm: "none" };

    pub(super) fn seconds(&self, sent: f64) -> f64 {
        self.fixed + sent / self.rate
    }
}

impl Fabric {
    /// A protocol inside an island.
    pub(super) fn inside(&self, protocol: &Protocol, members: f64, algorithm: &'static str) -> Line {
        let further = (members - 1.0).min(TIMED - 1.0) * protocol.hop + (members - TIMED).max(0.0) * SIMPLE[1];
        let rate = self.island * protocol.share * members / (members + protocol.half);
        Line { fixed: protocol.base + further, rate, algorithm }
    }

    /// A group's way around the fabric.
    pub(crate) fn ring(&self, spread: Spread) -> Ring {
        let members = spread.members as f64;
        let [gather, sum] = match spread.crosses() {
            true => self.across(spread),
            false => {
                let curve = &self.curve.gather;
                let large = self.inside(&curve.large, members, "ring");
                let small = self.inside(&curve.small, members, "ring");
                let both_ways = |line: Line| Line { fixed: 2.0 * line.fixed, ..line };
                let switch = self.curve.switch.filter(|switch| spread.members >= switch.members);
                let switch = switch.map_or(Line::NONE, |switch| Line {
                    fixed: switch.base,
                    rate: self.island * switch.share,
                    algorithm: "switch",
                });
                [[large, small, Line::NONE], [both_ways(large), both_ways(small), switch]]
            }
        };
        Ring { members, gather, sum }
    }

    /// Gathers and sums over several islands. A ring uses the ports of all members of an island.
    fn across(&self, spread: Spread) -> [[Line; 3]; 2] {
        let (members, here, islands) = (spread.members as f64, spread.per_island as f64, spread.islands());
        let island = self.inside(&self.curve.gather.large, here.max(2.0), "ring").rate;
        let detour = self.detour(Collective::AllReduce, spread);
        let rate = island.min(self.network * self.tapered(spread).min(detour.of_port()) * here);
        let simple = simple_step(self.network_latency) + detour.step;
        let ll = LL_STEP.map(|step| self.network_latency.max(step) + detour.step);
        // Nearly every part crosses between all islands (aws/aws-ofi-nccl 2daf7d3, src/tuner/nccl_ofi_model.cpp).
        let ring = PLATEAU * ((members - islands) * SIMPLE[1] + islands * simple);
        let ring_ll = (members - islands) * LL[1] + islands * ll[0];
        let levels = spread.doublings().floor().max(1.0);
        let tree = 2.0 * ((here - 1.0) * SIMPLE[2] + levels * simple);
        let tree_ll = 2.0 * ((here - 1.0) * LL[2] + levels * ll[1]);
        // With one member an island, by doubling distances instead of around.
        let doubling = match spread.per_island {
            1 => {
                Line { fixed: 8e-6 + levels * simple / 3.5 + members * 2.8e-6, rate: rate * PAT_RATE, algorithm: "pat" }
            }
            _ => Line::NONE,
        };
        let line = |fixed: f64, rate: f64, algorithm| Line { fixed, rate, algorithm };
        let gather =
            [line(SIMPLE[0] + ring, rate, "ring"), line(LL[0] + ring_ll, (rate / 2.0).min(LL_RATE), "ring"), doubling];
        let around = line(SIMPLE[0] + 2.0 * ring, rate, "ring");
        // Whole islands add up in their own switch and go on as a tree (NVLSTree), from where that is no slower.
        let switch = self.curve.switch.filter(|switch| spread.per_island >= switch.members);
        let switched = switch.map(|switch| {
            let rate = (self.island * switch.share).min(self.network * self.tapered(spread) * here);
            line(switch.base + 2.0 * levels * (simple + NVLS_TREE), rate, "nvls-tree")
        });
        let sum = [
            switched.filter(|line| line.rate >= around.rate).unwrap_or(around),
            line(SIMPLE[0] + tree, rate * TREE_RATE, "tree"),
            line(LL[0] + tree_ll, (rate / 3.8).min(LL_RATE), "tree"),
        ];
        [gather, sum]
    }
}

/// One group's collectives as a function of bytes, for who asks many times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub members: f64,
    pub(super) gather: [Line; 3],
    pub(super) sum: [Line; 3],
}

impl Ring {
    /// Bytes one member sends of a tensor.
    pub(super) fn share(&self, whole: f64) -> f64 {
        whole * (self.members - 1.0) / self.members
    }

    fn moves(&self, whole: f64) -> bool {
        self.members > 1.0 && whole > 0.0
    }

    fn best(lines: &[Line; 3], sent: f64) -> (f64, &'static str) {
        let mut best = (f64::INFINITY, "none");
        for line in lines {
            let seconds = line.seconds(sent);
            if seconds < best.0 {
                best = (seconds, line.algorithm);
            }
        }
        best
    }

    /// Seconds to gather a tensor of `whole` bytes, or to reduce it to its parts.
    pub fn gather(&self, whole: f64) -> f64 {
        self.gathered(whole).0
    }

    /// The same, and how.
    pub fn gathered(&self, whole: f64) -> (f64, &'static str) {
        if self.moves(whole) { Ring::best(&self.gather, self.share(whole)) } else { (0.0, "none") }
    }

    /// The same in so many parts, one behind the other.
    pub fn gather_in(&self, parts: f64, whole: f64) -> f64 {
        parts * self.gather(whole / parts)
    }

    /// Seconds to sum it on every member, and how: the best of ring, tree, and the switch's own sum
    /// inside an island.
    pub fn all_reduce(&self, whole: f64) -> (f64, &'static str) {
        if self.moves(whole) { Ring::best(&self.sum, 2.0 * self.share(whole)) } else { (0.0, "none") }
    }

    /// The same in so many parts, one behind the other.
    pub fn all_reduce_in(&self, parts: f64, whole: f64) -> f64 {
        parts * self.all_reduce(whole / parts).0
    }
}
