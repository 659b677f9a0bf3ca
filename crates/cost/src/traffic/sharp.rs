//! Sums that switches form on the way (SHARP), as NCCL uses them between nodes: CollNet, and NVLS with CollNet.
//!
//! A port then sends its part of a sum once and gets the result, where a ring sends it twice; gathers and scattered sums
//! move as many bytes as around a ring, and wait for the switches' tree instead (NVIDIA/nccl 5067397,
//! `src/graph/tuning.cc`, `ncclTopoTuneModel`). One kind of group has them: `sharp_enabled_group` of Megatron-Core says
//! that SHARP "can be enabled from only one communication group", by default replicas, and that is how it is priced under
//! every engine. Replicas of experts, and those split into groups that share and groups that copy, have none.

use super::lines::{Line, Ring, SIMPLE, simple_step};
use super::{Fabric, Spread};

/// What CollNet reaches of a ring's rate: sums on Hopper and later, and gathers. Names of NCCL's model.
const COLLNET_SUM: f64 = 0.85;
const COLLNET_GATHER: f64 = 0.9;

/// A step in the island under CollNet, and what each further member there adds.
const COLLNET_STEPS: [f64; 2] = [3.7e-6, 0.4e-6];

/// Seconds between islands beyond a ring's step: CollNet's 31 µs against 14, and NVLS's 18.
const COLLNET_NET: f64 = 31e-6 - 14e-6;
const NVLS_NET: f64 = 18e-6 - 14e-6;

/// Members of an island that CollNet takes at most (`NCCL_MAX_DIRECT_ARITY + 1`).
const MOST_LOCAL: u64 = 8;

impl Fabric {
    /// Replicas, of which there are as many groups: by the switches where these have room for all, and NCCL takes the shape.
    pub(crate) fn ring_of_replicas(&self, spread: Spread, groups: u64) -> Ring {
        let ring = self.ring(spread);
        let has_room = self.sharp_groups.is_some_and(|most| groups <= most);
        if !has_room || !spread.crosses() {
            return ring;
        }
        let (sum, gather) = (self.summed(spread), self.collected(spread));
        // A ring or PAT that would never be taken gives its place.
        let faster = |sharp: Option<Line>, other: Line| sharp.filter(|sharp| sharp.rate >= other.rate).unwrap_or(other);
        let [first, second, third] = ring.sum;
        let sums = [faster(sum, first), second, third];
        let [first, second, third] = ring.gather;
        Ring { sum: sums, gather: [first, second, gather.unwrap_or(third)], ..ring }
    }

    /// An all-reduce: every port sends a part of the whole, and the island adds up and hands out around it.
    fn summed(&self, spread: Spread) -> Option<Line> {
        let (members, here) = (spread.members as f64, spread.per_island as f64);
        let net = simple_step(self.network_latency);
        let switch = self.curve.switch;
        let reached = if switch.is_some() { COLLNET_SUM } else { 1.0 };
        let port = 2.0 * (members - 1.0) / members * here * self.network * self.tapered(spread) * reached;
        let (fixed, island) = match (spread.per_island, switch) {
            // NCCL takes a tree's step where a member is alone on its node.
            (1, _) => (net, f64::INFINITY),
            (_, Some(switch)) => (switch.base + net + NVLS_NET, self.island * switch.share),
            (2..=MOST_LOCAL, None) => {
                let island = self.inside(&self.curve.gather.large, here, "ring").rate;
                (self.direct(here), island)
            }
            (_, None) => return None,
        };
        Some(Line { fixed: SIMPLE[0] + fixed, rate: port.min(island), algorithm: "sharp" })
    }

    /// A gather or a scattered sum.
    fn collected(&self, spread: Spread) -> Option<Line> {
        if spread.per_island > MOST_LOCAL {
            return None;
        }
        let (members, here) = (spread.members as f64, spread.per_island as f64);
        let island = self.inside(&self.curve.gather.large, here.max(2.0), "ring").rate;
        let port = self.network * self.tapered(spread) * here * COLLNET_GATHER;
        let fixed = if spread.per_island == 1 { simple_step(self.network_latency) } else { self.direct(here) };
        let rate = (members - 1.0) / members * port.min(island);
        Some(Line { fixed: SIMPLE[0] + fixed, rate, algorithm: "sharp" })
    }

    /// Seconds that CollNet waits with several members an island.
    fn direct(&self, here: f64) -> f64 {
        2.0 * (COLLNET_STEPS[0] + (here - 1.0) * COLLNET_STEPS[1]) + simple_step(self.network_latency) + COLLNET_NET
    }
}

#[cfg(test)]
mod tests {
    use crate::traffic::tests::fabric;

    #[test]
    fn a_sum_over_nodes_moves_half_and_a_gather_waits_for_a_tree() {
        let fabric = fabric("64x8xH100@ndr400-sharp");
        let spread = fabric.spread(64, 8);
        let (plain, sharp) = (fabric.ring(spread), fabric.ring_of_replicas(spread, 8));
        let faster = plain.all_reduce(4e9).0 / sharp.all_reduce(4e9).0;
        assert!((1.6..2.0).contains(&faster), "half the bytes at 0.85 of the rate: {faster}");
        assert_eq!(sharp.all_reduce(4e9).1, "sharp");
        assert!(sharp.gather(1e6) < 0.5 * plain.gather(1e6), "no ring of 64 to wait for");
        let large = sharp.gather(4e9) / plain.gather(4e9);
        assert!((0.9..=1.0).contains(&large), "as many bytes: {large}");
    }

    /// With whole nodes NVLink bounds the sum, and inside one nothing changes.
    #[test]
    fn whole_nodes_gain_less() {
        let fabric = fabric("64x8xH100@ndr400-sharp");
        let faster = |members, stride| {
            let spread = fabric.spread(members, stride);
            fabric.ring(spread).all_reduce(4e9).0 / fabric.ring_of_replicas(spread, 1).all_reduce(4e9).0
        };
        assert!((1.1..1.4).contains(&faster(512, 1)), "{}", faster(512, 1));
        assert_eq!(faster(8, 1), 1.0);
    }

    #[test]
    fn more_groups_than_switches_have_room_for_get_none() {
        let fabric = fabric("64x8xH100@ndr400-sharp");
        let spread = fabric.spread(64, 8);
        assert_eq!(fabric.ring_of_replicas(spread, 257).all_reduce(4e9), fabric.ring(spread).all_reduce(4e9));
    }
}
