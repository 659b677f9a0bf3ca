//! Collectives into seconds: where the group lies, which algorithm the library takes there, what
//! the links carry. Volumes are the layout's.
//!
//! Inside an island times are the profile's curves. Over several islands bytes follow nccl-tests'
//! `doc/PERFORMANCE.md` (bus bandwidth): a ring uses every network port of its members' island, so that its
//! rate grows with members an island until the fast fabric bounds it; what it waits besides is NCCL's own model.

mod lines;
mod rails;
mod sharp;
mod tokens;

pub(crate) use lines::Ring;
pub use rails::{ChangedBy, Crossing};
pub(crate) use tokens::Tokens;

use crate::Unpriced;
use hardware::{Cluster, CollectiveCurve, Tier, Vendor, Way};
use lines::simple_step;
use rails::RailNetwork;
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
    /// Of the seconds, those in which a port of the network carries it; the rest are steps, or the island's.
    pub port: f64,
    /// The algorithm, by the name libraries have for it.
    pub algorithm: &'static str,
}

impl Moved {
    /// Nothing moves.
    pub const NOTHING: Moved = Moved { seconds: 0.0, bytes: 0.0, port: 0.0, algorithm: "none" };
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
    /// How the network is built above its ports.
    tier: Option<Tier>,
    rails: Option<RailNetwork>,
    /// Groups whose sums the switches form at once.
    sharp_groups: Option<u64>,
    /// Devices of an island of this cluster.
    pub island_devices: u64,
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
            tier: network.tier,
            rails: RailNetwork::new(cluster, network),
            sharp_groups: network.sharp_groups.filter(|_| device.vendor == Vendor::Nvidia),
            curve: curve.clone(),
            island_devices,
        })
    }

    /// Where a group lies.
    pub fn spread(&self, members: u64, stride: u64) -> Spread {
        Spread::new(members, stride, self.island_devices)
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
                let (seconds, algorithm) = ring.gathered(whole);
                let bytes = ring.share(whole);
                Moved { seconds, bytes, port: self.around(bytes, spread), algorithm }
            }
            Collective::AllReduce => {
                let (seconds, algorithm) = ring.all_reduce(whole);
                let bytes = 2.0 * ring.share(whole);
                Moved { seconds, bytes, port: self.around(bytes, spread), algorithm }
            }
            Collective::AllToAll => self.all_to_all(whole, spread),
            Collective::Send => self.send(whole, spread),
        }
    }

    /// Seconds in which a port carries what a member sends around a ring; members of an island share its ports.
    fn around(&self, bytes: f64, spread: Spread) -> f64 {
        let ports = self.network * self.tapered(spread) * spread.per_island as f64;
        if spread.crosses() { bytes / ports } else { 0.0 }
    }

    /// Of a port's rate, what a group has of it between pods, and members of it that share a pod. One stream of a
    /// ring or a pipeline leaves a pod for every group that lies across its edge; together they get what leaves the pod,
    /// so that it is enough where as many members share a pod as the network tapers.
    fn beyond(&self, spread: Spread) -> Option<(f64, f64)> {
        let tier = self.tier.filter(|tier| spread.members.saturating_mul(spread.stride) > tier.pod_devices)?;
        let here = (tier.pod_devices / spread.stride.max(1)).max(1) as f64;
        Some(((tier.leaves * here).min(1.0), here.min(spread.members as f64)))
    }

    /// What a ring or a send gets of a port's rate.
    fn tapered(&self, spread: Spread) -> f64 {
        self.beyond(spread).map_or(1.0, |(share, _)| share)
    }

    /// Seconds of bytes to every other member, of which those beyond the pod get its share alone.
    fn scattered(&self, far: f64, whole: f64, spread: Spread) -> f64 {
        let all = far / self.network_all_to_all;
        match (self.tier, self.beyond(spread)) {
            (Some(tier), Some((_, here))) => {
                let members = spread.members as f64;
                all.max(whole * (members - here) / members / (self.network_all_to_all * tier.leaves))
            }
            _ => all,
        }
    }

    /// Parts for members of the own island over the fast fabric, the others over the network;
    /// both run at once. What changes rails goes over the fast fabric first, or over the spine.
    fn all_to_all(&self, whole: f64, spread: Spread) -> Moved {
        let (members, here) = (spread.members as f64, spread.per_island as f64);
        let near = whole * (here - 1.0).max(0.0) / members;
        let far = whole * (members - here) / members;
        let curve = &self.curve.all_to_all;
        let protocols = [&curve.large, &curve.small].map(|protocol| self.inside(protocol, here.max(2.0), "pairwise"));
        let detour = self.detour(Collective::AllToAll, spread);
        let over_island = near + far * detour.relayed;
        let inside = protocols.iter().map(|line| line.seconds(over_island)).fold(f64::INFINITY, f64::min);
        let over_spine = far * detour.over_spine / (self.network_all_to_all * detour.spine);
        let outside = match spread.crosses() {
            true => {
                let carried = self.scattered(far, whole, spread).max(over_spine);
                simple_step(self.network_latency) + detour.step + carried
            }
            false => 0.0,
        };
        let port = if spread.crosses() { self.scattered(far, whole, spread) } else { 0.0 };
        Moved { seconds: inside.max(outside), bytes: near + far, port, algorithm: "pairwise all-to-all" }
    }

    fn send(&self, bytes: f64, spread: Spread) -> Moved {
        let (rate, first) = match spread.crosses() {
            true => {
                let detour = self.detour(Collective::Send, spread);
                (self.network * self.tapered(spread).min(detour.of_port()), self.network_latency + detour.step)
            }
            false => (self.island * self.curve.gather.large.share, self.island_latency),
        };
        let port = if spread.crosses() { bytes / rate } else { 0.0 };
        Moved { seconds: first + bytes / rate, bytes, port, algorithm: "send" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn fabric(on: &str) -> Fabric {
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

    /// Seconds of gathers as nccl-tests has them, in the mean over sizes, in microseconds: aiconfigurator 095f58a,
    /// systems/data/h200_sxm/comm/nccl/2.29.2, half.
    #[test]
    fn small_messages_start_soon_and_few_members_reach_less() {
        let fabric = fabric("8xH200");
        let gather =
            |members: u64, whole: f64| fabric.time(Collective::AllGather, whole, fabric.spread(members, 1)).seconds;
        assert!(gather(8, 1e5) < 10e-6, "{}", gather(8, 1e5));
        let rate = |members: u64| 1e9 * (members - 1) as f64 / members as f64 / gather(members, 1e9);
        assert!(rate(2) < 0.62 * 450e9 && rate(2) > 0.5 * 450e9);
        assert!(rate(8) > 1.2 * rate(2) && rate(8) < 0.82 * 450e9);
        let (seconds, algorithm) = fabric.ring(fabric.spread(8, 1)).all_reduce(1e9);
        assert!(algorithm == "switch" && seconds > 65e-6 + 1.75e9 / (1.06 * 450e9));
        assert_eq!(fabric.ring(fabric.spread(4, 1)).all_reduce(1e9).1, "ring");
    }

    #[test]
    fn rings_over_many_islands_wait_for_every_island() {
        let (near, far) = (fabric("2x8xH100"), fabric("64x8xH100"));
        let tiny =
            |fabric: &Fabric, members| fabric.time(Collective::AllReduce, 1e3, fabric.spread(members, 8)).seconds;
        assert!(tiny(&far, 64) > 3.0 * tiny(&near, 2), "a tree has six levels instead of one");
        let large =
            |fabric: &Fabric, members| fabric.time(Collective::AllGather, 4e9, fabric.spread(members, 8)).seconds;
        assert!(large(&far, 64) > large(&near, 2) * 1.5 && large(&far, 64) < large(&near, 2) * 2.5);
        let efa = fabric("64x8xH100@efa3200");
        assert!(tiny(&efa, 64) > 5.0 * tiny(&far, 64), "AWS states 75 µs where InfiniBand has 5");
    }

    /// Groups inside a pod, and rings with as many members in a pod as the network tapers, do not feel it; what goes to
    /// everybody does.
    #[test]
    fn a_taper_slows_what_leaves_a_pod() {
        let (flat, tapered) = (fabric("1024x8xH100@roce400"), fabric("1024x8xH100@roce400-taper7"));
        let slower = |collective, members, stride| {
            let seconds = |fabric: &Fabric| fabric.time(collective, 4e9, fabric.spread(members, stride)).seconds;
            seconds(&tapered) / seconds(&flat)
        };
        assert_eq!(slower(Collective::AllGather, 256, 8), 1.0, "inside a pod of 3072");
        assert_eq!(slower(Collective::AllGather, 1024, 8), 1.0, "384 members a pod");
        let far = slower(Collective::AllGather, 4, 2048);
        assert!((6.0..7.1).contains(&far), "one member a pod: {far}");
        assert!(slower(Collective::Send, 4, 2048) > 6.0);
        let everybody = slower(Collective::AllToAll, 8192, 1);
        assert!((3.0..7.0).contains(&everybody), "five of eight parts leave: {everybody}");
    }

    #[test]
    fn one_member_moves_nothing() {
        let fabric = fabric("8xH100");
        for collective in [Collective::AllGather, Collective::AllReduce, Collective::AllToAll, Collective::Send] {
            assert_eq!(fabric.time(collective, 1e6, fabric.spread(1, 1)).seconds, 0.0);
        }
    }
}
