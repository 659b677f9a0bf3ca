//! What NCCL is told of the network by environment, as NVIDIA's "Environment Variables" of NCCL names it. Says nothing
//! where the network file says nothing, and nothing to jobs on one island.

use crate::emission::EnvVar;
use crate::job::Job;
use hardware::{Link, RailsJoined, Vendor};

/// The network of a job that leaves its island on devices that talk by NCCL.
fn network<'a>(job: &Job<'a>) -> Option<&'a Link> {
    let cluster = job.cluster;
    let leaves = cluster.device.vendor == Vendor::Nvidia && cluster.devices() > cluster.island_devices();
    cluster.device.network.as_ref().filter(|_| leaves)
}

/// Whether sums over replicas are asked of the switches: there are replicas, and the switches have room for all their groups.
pub fn asks_for_sharp(job: &Job) -> bool {
    let most = network(job).and_then(|network| network.sharp_groups);
    let replicas = job.layout.dense_shards();
    replicas > 1 && most.is_some_and(|most| job.layout.world / replicas <= most)
}

/// Its variables.
pub fn environment(job: &Job) -> Vec<EnvVar> {
    let mut all = Vec::new();
    if asks_for_sharp(job) {
        let why = "the network's switches form sums (SHARP), through NCCL-RDMA-SHARP";
        all.push(EnvVar::new("NCCL_COLLNET_ENABLE", 1, why));
    }
    let Some(rails) = network(job).and_then(|network| network.rails) else { return all };
    if rails.joined == RailsJoined::Only {
        all.push(EnvVar::new("NCCL_CROSS_NIC", 0, "nothing joins the network's rails: a ring keeps to its own"));
    }
    if !rails.pxn {
        all.push(EnvVar::new("NCCL_PXN_DISABLE", 1, "the network file says that NVLink does not relay to other rails"));
    }
    all
}
