//! Collectives into seconds: where the group lies, which algorithm the library takes there, what
//! the links carry. Volumes are the layout's.
//!
//! Ring and tree terms: NVIDIA nccl-tests, `doc/PERFORMANCE.md` (bus bandwidth); a ring that spans
//! islands uses every network port of its members' island, so that its rate grows with members an
//! island until the fast fabric bounds it.

use crate::Unpriced;
use hardware::{Cluster, CollectiveCurve, Way};
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

/// The links of a cluster with what collectives reach of them.
#[derive(Clone, Debug)]
pub struct Fabric {
    island: f64,
    island_all_to_all: f64,
    island_hop: f64,
    network: f64,
    network_all_to_all: f64,
    network_hop: f64,
    switch_reduce: f64,
    base: f64,
    /// Devices of an island of this cluster.
    pub island_devices: u64,
}

/// What a step along a ring takes beyond the bytes, against the link's first-byte latency: the
/// library keeps several steps in flight.
const HOP_SHARE: f64 = 0.33;

/// First-byte latencies of the network that a collective spends filling and draining its slices, for
/// every doubling of islands. Calibrated on nanotron's runs of 16 and 32 tensor-parallel ranks
/// without stages over EFA (0.4 ms over two nodes, about 1 over four).
const NETWORK_FILL: f64 = 24.0;

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
            island: island.bytes_per_second * curve.island,
            island_all_to_all: island.bytes_per_second * curve.island_all_to_all,
            island_hop: island.latency_seconds * HOP_SHARE,
            network: network.bytes_per_second * curve.network,
            network_all_to_all: network.bytes_per_second * curve.network_all_to_all,
            network_hop: network.latency_seconds,
            switch_reduce: curve.switch_reduce,
            base: curve.base_seconds,
            island_devices,
        })
    }

    /// Where a group lies.
    pub fn spread(&self, members: u64, stride: u64) -> Spread {
        Spread::new(members, stride, self.island_devices)
    }

    /// Bytes a second a ring of this spread carries for each member.
    fn ring_rate(&self, spread: Spread) -> f64 {
        if spread.crosses() { self.island.min(self.network * spread.per_island as f64) } else { self.island }
    }

    /// Steps of a ring around the group.
    fn ring_hops(&self, spread: Spread) -> f64 {
        let islands = spread.islands();
        let inside = (spread.per_island as f64 - 1.0) * islands * self.island_hop;
        inside + self.fill(spread) + if spread.crosses() { (islands - 1.0) * self.network_hop } else { 0.0 }
    }

    /// Filling and draining across islands.
    fn fill(&self, spread: Spread) -> f64 {
        if spread.crosses() { NETWORK_FILL * spread.doublings().max(1.0) * self.network_hop } else { 0.0 }
    }

    /// Levels of a tree over the group.
    fn tree_hops(&self, spread: Spread) -> f64 {
        let inside = (spread.per_island as f64 - 1.0) * self.island_hop;
        inside + self.fill(spread) + 2.0 * spread.doublings().ceil() * self.network_hop
    }

    /// A group's way around the fabric.
    pub(crate) fn ring(&self, spread: Spread) -> Ring {
        let is_alone = spread.members <= 1;
        Ring {
            members: spread.members as f64,
            base: self.base,
            hops: if is_alone { 0.0 } else { self.ring_hops(spread) },
            rate: self.ring_rate(spread),
            sum: match (spread.crosses(), self.switch_reduce > 1.0) {
                (false, true) => Summed::BySwitch { hop: self.island_hop, times: self.switch_reduce },
                (false, false) => Summed::Around,
                (true, _) => Summed::ByTree { hops: self.tree_hops(spread) },
            },
        }
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
                Moved { seconds: ring.gather(whole), bytes: ring.share(whole), algorithm: "ring" }
            }
            Collective::AllReduce => {
                let (seconds, algorithm) = ring.all_reduce(whole);
                Moved { seconds, bytes: 2.0 * ring.share(whole), algorithm }
            }
            Collective::AllToAll => self.all_to_all(whole, 1.0, spread),
            Collective::Send => self.send(whole, spread),
        }
    }

    /// Parts for members of the own island over the fast fabric, the others over the network;
    /// both run at once. `copies` is how often a part bound for a foreign island is sent, against
    /// once for each member there.
    pub fn all_to_all(&self, whole: f64, copies: f64, spread: Spread) -> Moved {
        let members = spread.members as f64;
        let inside = whole * (spread.per_island as f64 - 1.0).max(0.0) / members;
        let outside = whole * (members - spread.per_island as f64) / members * copies;
        let seconds = (inside / self.island_all_to_all).max(outside / self.network_all_to_all);
        let hops = if spread.crosses() { self.network_hop } else { self.island_hop };
        let algorithm = if copies < 1.0 { "two-level all-to-all" } else { "pairwise all-to-all" };
        Moved { seconds: self.base + hops + seconds, bytes: inside + outside, algorithm }
    }

    fn send(&self, bytes: f64, spread: Spread) -> Moved {
        let (rate, hop) =
            if spread.crosses() { (self.network, self.network_hop) } else { (self.island, self.island_hop) };
        Moved { seconds: hop + bytes / rate, bytes, algorithm: "send" }
    }
}

/// How a group sums.
#[derive(Clone, Copy, Debug)]
enum Summed {
    Around,
    BySwitch { hop: f64, times: f64 },
    ByTree { hops: f64 },
}

/// One group's collectives as a function of bytes, for who asks many times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub members: f64,
    base: f64,
    hops: f64,
    rate: f64,
    sum: Summed,
}

impl Ring {
    /// Bytes one member sends of a tensor.
    fn share(&self, whole: f64) -> f64 {
        whole * (self.members - 1.0) / self.members
    }

    fn moves(&self, whole: f64) -> bool {
        self.members > 1.0 && whole > 0.0
    }

    /// Seconds to gather a tensor of `whole` bytes, or to reduce it to its parts.
    pub fn gather(&self, whole: f64) -> f64 {
        if self.moves(whole) { self.base + self.hops + self.share(whole) / self.rate } else { 0.0 }
    }

    /// Seconds to sum it on every member, and how: the best of ring, tree, and the switch's own sum
    /// inside an island.
    pub fn all_reduce(&self, whole: f64) -> (f64, &'static str) {
        if !self.moves(whole) {
            return (0.0, "none");
        }
        let share = self.share(whole);
        let ring = 2.0 * self.hops + 2.0 * share / self.rate;
        let (seconds, algorithm) = match self.sum {
            Summed::BySwitch { hop, times } => (ring.min(2.0 * hop + 2.0 * share / (self.rate * times)), "switch"),
            Summed::ByTree { hops } if hops + 2.0 * share / self.rate < ring => {
                (hops + 2.0 * share / self.rate, "tree")
            }
            Summed::Around | Summed::ByTree { .. } => (ring, "ring"),
        };
        (self.base + seconds, algorithm)
    }

    /// What one more gather or reduction takes, however small.
    pub fn overhead(&self) -> f64 {
        if self.members > 1.0 { self.base + self.hops } else { 0.0 }
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
