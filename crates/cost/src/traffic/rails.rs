//! Rails: what of a group's traffic goes to another port number than it comes from, and how it gets there.
//!
//! A rail joins port `i` of every node. Rings keep to theirs where every island holds the same local indices: NCCL has a
//! ring leave a node by the port it came in by, or by the same two in turn (NVIDIA/nccl 5067397, `src/graph/search.cc`,
//! `crossNic`). What is sent from one index to another changes rails: a send to the next rank across the edge of a node,
//! and all of an all-to-all that is not for the own index. NCCL hands it to the neighbour on the right rail first, over
//! NVLink (PXN; `ncclTopoGetNetDev`, level 2), or else sends it over the spine.
//!
//! DeepEP sends to its own index and forwards in the island there (DeepSeek-V3, arXiv 2412.19437, section 3.2.2), so its
//! tokens change no rail here.

use super::{Collective, Fabric, Spread, lines::NVLINK_STEP};
use crate::Unpriced;
use hardware::{Cluster, Link, RailsJoined, Vendor};
use serde::Serialize;

/// How the rails of a cluster are changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct RailNetwork {
    /// Devices of a node, and so rails.
    node: u64,
    by: ChangedBy,
}

/// How data gets from one rail to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangedBy {
    /// Over the island, to the device on the right rail.
    Relay,
    /// Over the switches above the rails.
    Spine,
    /// Not at all.
    Nothing,
}

/// What of an axis's traffic changes rails.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Crossing {
    /// Of what leaves the island.
    pub share: f64,
    /// Bytes one rank sends so in a step.
    pub bytes: f64,
    /// How; a group that keeps to its rails has a share of zero.
    pub by: ChangedBy,
}

impl Crossing {
    /// In a table: `on its rails`, `88% relayed`.
    pub fn words(&self) -> String {
        let share = 100.0 * self.share;
        match self.by {
            _ if self.share == 0.0 => "on its rails".to_string(),
            ChangedBy::Relay => format!("{share:.0}% relayed"),
            ChangedBy::Spine | ChangedBy::Nothing => format!("{share:.0}% over the spine"),
        }
    }
}

/// What changing rails costs a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Detour {
    /// Of what leaves the island, what goes over it first.
    pub relayed: f64,
    /// Seconds longer that a step between islands takes.
    pub step: f64,
    /// Of what leaves the island, what goes over the spine.
    pub over_spine: f64,
    /// Of a port's rate, what the spine carries of it.
    pub spine: f64,
}

impl Detour {
    const NONE: Detour = Detour { relayed: 0.0, step: 0.0, over_spine: 0.0, spine: 1.0 };

    /// Of a port's rate, what a stream has that changes rails with all its bytes or with none.
    pub fn of_port(&self) -> f64 {
        if self.over_spine > 0.0 { self.spine } else { 1.0 }
    }
}

impl RailNetwork {
    /// PXN needs NVLink between all devices of a node. What RCCL does on AMD's is not known here, and not assumed.
    pub fn new(cluster: &Cluster, network: &Link) -> Option<RailNetwork> {
        let rails = network.rails?;
        let relays = rails.pxn
            && cluster.device.vendor == Vendor::Nvidia
            && cluster.island_devices() >= cluster.devices_per_node;
        let by = match rails.joined {
            _ if relays => ChangedBy::Relay,
            RailsJoined::Optimised => ChangedBy::Spine,
            RailsJoined::Only => ChangedBy::Nothing,
        };
        Some(RailNetwork { node: cluster.devices_per_node.max(1), by })
    }

    /// Of what leaves the island, the share that goes to another local index.
    fn foreign(&self, collective: Collective, spread: Spread) -> f64 {
        let keeps = |distance: u64| distance.is_multiple_of(self.node);
        let is_kept = match collective {
            Collective::AllToAll => {
                let indices = (self.node / gcd(spread.stride.max(1), self.node)).min(spread.members);
                return 1.0 - 1.0 / indices.max(1) as f64;
            }
            Collective::Send => keeps(spread.stride),
            _ => keeps(spread.stride.saturating_mul(spread.per_island)),
        };
        if is_kept { 0.0 } else { 1.0 }
    }
}

impl Fabric {
    /// What changing rails costs; nothing where there are none, or the group stays on its own.
    pub(super) fn detour(&self, collective: Collective, spread: Spread) -> Detour {
        let Some(rails) = self.rails else { return Detour::NONE };
        let share = rails.foreign(collective, spread);
        match rails.by {
            _ if share == 0.0 => Detour::NONE,
            ChangedBy::Relay => Detour { relayed: share, step: NVLINK_STEP, ..Detour::NONE },
            // Rails meet above their leaves alone, even those of one pod.
            ChangedBy::Spine | ChangedBy::Nothing => {
                Detour { over_spine: share, spine: self.tier.map_or(1.0, |tier| tier.leaves), ..Detour::NONE }
            }
        }
    }

    /// What of an axis's bytes changes rails, where there are rails and the group leaves its island.
    pub(crate) fn crossing(&self, collective: Collective, bytes: f64, spread: Spread) -> Option<Crossing> {
        let rails = self.rails.filter(|_| spread.crosses())?;
        let share = rails.foreign(collective, spread);
        let (members, here) = (spread.members as f64, spread.per_island as f64);
        let leaves = match collective {
            Collective::AllToAll => (members - here) / (members - 1.0),
            Collective::Send => 1.0,
            _ => 1.0 / here,
        };
        Some(Crossing { share, bytes: bytes * leaves * share, by: rails.by })
    }

    /// Whether there are devices without a way between them.
    pub(crate) fn has_gaps(&self) -> bool {
        self.rails.is_some_and(|rails| rails.by == ChangedBy::Nothing)
    }

    /// Refuses a group that has no way between its members.
    pub(crate) fn reaches(&self, axis: &str, collective: Collective, spread: Spread) -> Result<(), Unpriced> {
        let Some(rails) = self.rails.filter(|rails| rails.by == ChangedBy::Nothing && spread.crosses()) else {
            return Ok(());
        };
        if spread.members <= 1 || rails.foreign(collective, spread) == 0.0 {
            return Ok(());
        }
        let (members, stride) = (spread.members, spread.stride);
        let what = format!("{axis} over rails that nothing joins");
        let why = format!(
            "{members} ranks, {stride} apart, lie on different ports of nodes of {}, and PXN does not relay between them",
            rails.node
        );
        Err(Unpriced::new(what, why))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hardware::{Rails, Tier};

    fn fabric(joined: Option<RailsJoined>, pxn: bool, leaves: f64) -> Fabric {
        let mut cluster = Cluster::parse("64x8xH100").unwrap();
        let network = cluster.device.network.as_mut().unwrap();
        network.rails = joined.map(|joined| Rails { joined, pxn });
        network.tier = (leaves < 1.0).then_some(Tier { pod_devices: 512, leaves });
        let curve = cluster.device.profile().unwrap().profile.collectives;
        Fabric::new(&cluster, &curve).unwrap()
    }

    const OPTIMISED: Option<RailsJoined> = Some(RailsJoined::Optimised);
    const ONLY: Option<RailsJoined> = Some(RailsJoined::Only);

    fn seconds(fabric: &Fabric, collective: Collective, (members, stride): (u64, u64)) -> f64 {
        fabric.time(collective, 1e9, fabric.spread(members, stride)).seconds
    }

    /// Replicas behind tp 8, whole nodes, and pairs of every node keep to their rails; so do sends from node to node.
    #[test]
    fn groups_of_the_same_indices_keep_to_their_rails() {
        let (flat, rails) = (fabric(None, true, 1.0), fabric(ONLY, false, 1.0));
        for group in [(64, 8), (512, 1), (128, 4), (32, 16)] {
            for collective in [Collective::AllGather, Collective::AllReduce] {
                assert_eq!(seconds(&flat, collective, group), seconds(&rails, collective, group), "{group:?}");
                assert!(rails.reaches("dp", collective, rails.spread(group.0, group.1)).is_ok());
            }
        }
        assert_eq!(seconds(&flat, Collective::Send, (2, 64)), seconds(&rails, Collective::Send, (2, 64)));
        assert_eq!(rails.crossing(Collective::AllToAll, 1e9, rails.spread(64, 8)).unwrap().share, 0.0);
        assert!(flat.crossing(Collective::AllToAll, 1e9, flat.spread(64, 1)).is_none());
    }

    /// Seven of eight parts that leave a node are for another index. NVLink relays them beside its own, a step later.
    #[test]
    fn an_all_to_all_is_relayed_over_the_island() {
        let (flat, rails) = (fabric(None, true, 1.0), fabric(OPTIMISED, true, 1.0));
        let crossing = rails.crossing(Collective::AllToAll, 1e9, rails.spread(64, 1)).unwrap();
        assert_eq!((crossing.share, crossing.by), (0.875, ChangedBy::Relay));
        assert!((crossing.bytes - 1e9 * 56.0 / 63.0 * 0.875).abs() < 1.0);
        let more = seconds(&rails, Collective::AllToAll, (64, 1)) - seconds(&flat, Collective::AllToAll, (64, 1));
        assert!((more - NVLINK_STEP).abs() < 1e-9, "NVLink is faster than the port: {more}");
        let later = seconds(&rails, Collective::Send, (16, 1)) - seconds(&flat, Collective::Send, (16, 1));
        assert!((later - NVLINK_STEP).abs() < 1e-9, "from the last device of a node to the first of the next");
    }

    #[test]
    fn without_a_relay_the_spine_carries_it_or_nothing_does() {
        let (whole, half) = (fabric(OPTIMISED, false, 1.0), fabric(OPTIMISED, false, 0.5));
        let slower = |group| seconds(&half, Collective::AllToAll, group) / seconds(&whole, Collective::AllToAll, group);
        assert!((1.7..1.8).contains(&slower((64, 1))), "seven of eight at half the rate: {}", slower((64, 1)));
        assert_eq!(slower((64, 8)), 1.0, "one index, one rail");
        let only = fabric(ONLY, false, 1.0);
        let refused = only.reaches("ep", Collective::AllToAll, only.spread(64, 1)).unwrap_err().to_string();
        assert!(refused.contains("64 ranks, 1 apart, lie on different ports of nodes of 8"), "{refused}");
        assert!(only.reaches("ep", Collective::AllToAll, only.spread(8, 1)).is_ok(), "inside an island");
        assert!(fabric(ONLY, true, 1.0).reaches("ep", Collective::AllToAll, only.spread(64, 1)).is_ok());
    }
}
