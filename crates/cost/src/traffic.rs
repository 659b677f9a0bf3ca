//! Collectives into seconds: where the group lies, which algorithm the library takes there, what
//! the links carry. Volumes are the layout's.
//!
//! Inside an island times are the profile's curves. Over several islands bytes follow nccl-tests'
//! `doc/PERFORMANCE.md` (bus bandwidth): a ring uses every network port of its members' island, so that its
//! rate grows with members an island until the fast fabric bounds it; what it waits besides is NCCL's own model.

use crate::Unpriced;
use hardware::{Cluster, CollectiveCurve, Protocol, TokenCurve, Way};
use serde::Serialize;

/// A way to move data between members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Every member ends with all parts.
    AllGather,
    /// Every member ends with the sum of its part.
    ReduceScatter,
    /// Every member ends with the whole sum.
    AllReduce,
    /// Every member sends a part to every other.
    AllToAll,
    /// One member sends to another.
    Send,
}

/// Where the members of a group lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Members.
    pub members: u64,
    /// Members that share an island.
    pub per_island: u64,
    /// Distance of neighbours in ranks.
    pub stride: u64,
}

impl Spread {
    /// A group of `members` ranks, `stride` apart, on islands of `island` devices.
    pub fn new(members: u64, stride: u64, island: u64) -> Spread {
        let per_island = (island / stride.max(1)).clamp(1, members.max(1));
        Spread { members, per_island, stride }
    }

    /// Whether it leaves the island.
    pub fn crosses(&self) -> bool {
        self.per_island < self.members
    }

    /// Islands it touches.
    pub fn islands(&self) -> f64 {
        self.members as f64 / self.per_island as f64
    }

    /// How often the islands double from one. Both counts are nearly always powers of two, for which
    /// no logarithm is taken: a search asks millions of times.
    fn doublings(&self) -> f64 {
        match self.members.is_power_of_two() && self.per_island.is_power_of_two() {
            true => f64::from(self.members.trailing_zeros()) - f64::from(self.per_island.trailing_zeros()),
            false => self.islands().log2(),
        }
    }
}

/// What a collective takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moved {
    /// Seconds.
    pub seconds: f64,
    /// Bytes one rank sends.
    pub bytes: f64,
    /// The algorithm, by the name libraries have for it.
    pub algorithm: &'static str,
}

impl Moved {
    /// Nothing moves.
    pub const NOTHING: Moved = Moved { seconds: 0.0, bytes: 0.0, algorithm: "none" };
}

/// The links of a cluster with what collectives take on them.
#[derive(Clone, Debug)]
pub struct Fabric {
    curve: CollectiveCurve,
    /// Bytes a second of a device's link into its island.
    island: f64,
    /// First-byte latency of it.
    island_latency: f64,
    /// Bytes a second that rings and all-to-alls get of a device's port.
    network: f64,
    network_all_to_all: f64,
    /// First-byte latency between islands.
    network_latency: f64,
    /// Devices of an island of this cluster.
    pub island_devices: u64,
}

// NCCL's own model of what algorithms wait besides bytes (NVIDIA/nccl 5067397, src/graph/tuning.cc:
// `ncclTunerConstantsDefaults`, `ncclTopoTuneModel`, `ncclTopoGetAlgoTime`). Names are its own.

/// Simple: before anything, a step over NVLink in a ring, and one in a tree.
const SIMPLE: [f64; 3] = [8.4e-6, 3.4e-6, 4.0e-6];

/// LL, which waits for no flush: the same. Posting to the network bounds a ring's steps.
const LL: [f64; 3] = [6.6e-6, 2.0e-6, 0.6e-6];

/// Bytes a second that LL carries at most over several nodes.
const LL_RATE: f64 = 20e9;

/// A step over the network under Simple is 14 µs where the network adds nothing of its own, and twice the latency
/// it states: the message, and the flush behind it. Ports of InfiniBand have 5 µs here, which the 14 hold.
fn simple_step(latency: f64) -> f64 {
    4e-6 + 2.0 * latency
}

/// Under LL, at least: in a ring, and in a tree.
const LL_STEP: [f64; 2] = [2.7e-6, 5e-6];

/// What a ring's steps come to on large messages over several nodes (its "plateau"). NCCL says so of all-reduces,
/// which are a reduction and a gather around the same ring.
const PLATEAU: f64 = 1.4;

/// What trees and PAT reach of a ring's rate.
const TREE_RATE: f64 = 0.92;
const PAT_RATE: f64 = 0.75;

/// Members up to which collectives inside an island were timed. Beyond, a further member is one of NCCL's steps.
const TIMED: f64 = 8.0;

/// Fixed seconds and bytes a second of one algorithm under one protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    fixed: f64,
    rate: f64,
    algorithm: &'static str,
}

impl Line {
    /// Never taken.
    const NONE: Line = Line { fixed: f64::INFINITY, rate: 1.0, algorithm: "none" };

    fn seconds(&self, sent: f64) -> f64 {
        self.fixed + sent / self.rate
    }
}

impl Fabric {
    /// The links of a cluster. A cluster of one device has none to speak of.
    pub fn new(cluster: &Cluster, curve: &CollectiveCurve) -> Result<Fabric, Unpriced> {
        let device = &cluster.device;
        let island = device.link(Way::Island)?;
        let island_devices = cluster.island_devices().max(1);
        let network = match cluster.devices() > island_devices {
            true => device.link(Way::Network)?,
            false => device.network.as_ref().unwrap_or(island),
        };
        Ok(Fabric {
            island: island.bytes_per_second,
            island_latency: island.latency_seconds,
            network: network.bytes_per_second * curve.network,
            network_all_to_all: network.bytes_per_second * curve.network_all_to_all,
            network_latency: network.latency_seconds,
            curve: curve.clone(),
            island_devices,
        })
    }

    /// Where a group lies.
    pub fn spread(&self, members: u64, stride: u64) -> Spread {
        Spread::new(members, stride, self.island_devices)
    }

    /// A protocol inside an island.
    fn inside(&self, protocol: &Protocol, members: f64, algorithm: &'static str) -> Line {
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
        let rate = island.min(self.network * here);
        let simple = simple_step(self.network_latency);
        let ll = LL_STEP.map(|step| self.network_latency.max(step));
        // Nearly every part crosses between all islands (aws/aws-ofi-nccl 2daf7d3, src/tuner/nccl_ofi_model.cpp).
        let ring = PLATEAU * ((members - islands) * SIMPLE[1] + islands * simple);
        let ring_ll = (members - islands) * LL[1] + islands * ll[0];
        let levels = spread.doublings().floor().max(1.0);
        let tree = 2.0 * ((here - 1.0) * SIMPLE[2] + levels * simple);
        let tree_ll = 2.0 * ((here - 1.0) * LL[2] + levels * ll[1]);
        // With one member an island, by doubling distances instead of around.
        let doubling = match spread.per_island {
            1 => Line { fixed: 8e-6 + levels * simple / 3.5 + members * 2.8e-6, rate: rate * PAT_RATE, algorithm: "pat" },
            _ => Line::NONE,
        };
        let line = |fixed: f64, rate: f64, algorithm| Line { fixed, rate, algorithm };
        let gather = [
            line(SIMPLE[0] + ring, rate, "ring"),
            line(LL[0] + ring_ll, (rate / 2.0).min(LL_RATE), "ring"),
            doubling,
        ];
        let sum = [
            line(SIMPLE[0] + 2.0 * ring, rate, "ring"),
            line(SIMPLE[0] + tree, rate * TREE_RATE, "tree"),
            line(LL[0] + tree_ll, (rate / 3.8).min(LL_RATE), "tree"),
        ];
        [gather, sum]
    }

    /// A collective over a tensor of `whole` bytes: gathered, reduced or summed whole on every
    /// member, or sent in equal parts to all members.
    pub fn time(&self, collective: Collective, whole: f64, spread: Spread) -> Moved {
        if spread.members <= 1 || whole <= 0.0 {
            return Moved::NOTHING;
        }
        let ring = self.ring(spread);
        match collective {
            Collective::AllGather | Collective::ReduceScatter => {
                let (seconds, algorithm) = Ring::best(&ring.gather, ring.share(whole));
                Moved { seconds, bytes: ring.share(whole), algorithm }
            }
            Collective::AllReduce => {
                let (seconds, algorithm) = ring.all_reduce(whole);
                Moved { seconds, bytes: 2.0 * ring.share(whole), algorithm }
            }
            Collective::AllToAll => self.all_to_all(whole, spread),
            Collective::Send => self.send(whole, spread),
        }
    }

    /// Parts for members of the own island over the fast fabric, the others over the network;
    /// both run at once.
    fn all_to_all(&self, whole: f64, spread: Spread) -> Moved {
        let (members, here) = (spread.members as f64, spread.per_island as f64);
        let near = whole * (here - 1.0).max(0.0) / members;
        let far = whole * (members - here) / members;
        let curve = &self.curve.all_to_all;
        let protocols = [&curve.large, &curve.small].map(|protocol| self.inside(protocol, here.max(2.0), "pairwise"));
        let inside = protocols.iter().map(|line| line.seconds(near)).fold(f64::INFINITY, f64::min);
        let outside = match spread.crosses() {
            true => SIMPLE[0] + simple_step(self.network_latency) + far / self.network_all_to_all,
            false => 0.0,
        };
        Moved { seconds: inside.max(outside), bytes: near + far, algorithm: "pairwise all-to-all" }
    }

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
            let outside = base + far * one_copy / self.network_all_to_all;
            if spread.crosses() { inside.max(outside) } else { inside }
        };
        let seconds = (way(&self.curve.dispatch, bases.0) + way(&self.curve.combine, bases.1)) / 2.0;
        let algorithm = if spread.crosses() { "two-level all-to-all" } else { "once a rank" };
        Moved { seconds, bytes: (near + far) * one_copy, algorithm }
    }

    fn send(&self, bytes: f64, spread: Spread) -> Moved {
        let (rate, first) = match spread.crosses() {
            true => (self.network, self.network_latency),
            false => (self.island * self.curve.gather.large.share, self.island_latency),
        };
        Moved { seconds: first + bytes / rate, bytes, algorithm: "send" }
    }
}

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
}

impl Tokens {
    /// Places among so many that a token's experts lie on, where every place has as many experts: those that do not
    /// miss all of its choices, drawn without putting back.
    fn distinct(&self, places: f64) -> f64 {
        let elsewhere = self.experts - self.experts / places;
        let missed: f64 = (0..self.chosen as u64).map(|i| i as f64).map(|i| ((elsewhere - i) / (self.experts - i)).max(0.0)).product();
        places * (1.0 - missed)
    }
}

/// One group's collectives as a function of bytes, for who asks many times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub members: f64,
    gather: [Line; 3],
    sum: [Line; 3],
}

impl Ring {
    /// Bytes one member sends of a tensor.
    fn share(&self, whole: f64) -> f64 {
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
        if self.moves(whole) { Ring::best(&self.gather, self.share(whole)).0 } else { 0.0 }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(on: &str) -> Fabric {
        let cluster = Cluster::parse(on).unwrap();
        let curve = cluster.device.profile().unwrap().profile.collectives;
        Fabric::new(&cluster, &curve).unwrap()
    }

    #[test]
    fn members_an_island_share_its_ports() {
        let fabric = fabric("16x8xH100");
        let near = fabric.spread(8, 1);
        let far = fabric.spread(16, 8);
        assert_eq!((near.per_island, near.crosses()), (8, false));
        assert_eq!((far.per_island, far.crosses()), (1, true));
        let whole = 1e9;
        let slow = fabric.time(Collective::AllGather, whole, far).seconds;
        assert!(slow > fabric.time(Collective::AllGather, whole, fabric.spread(16, 1)).seconds);
        assert!(slow > 5.0 * fabric.time(Collective::AllGather, whole, near).seconds);
    }

    #[test]
    fn one_member_moves_nothing() {
        let fabric = fabric("8xH100");
        for collective in [Collective::AllGather, Collective::AllReduce, Collective::AllToAll, Collective::Send] {
            assert_eq!(fabric.time(collective, 1e6, fabric.spread(1, 1)).seconds, 0.0);
        }
    }
}
