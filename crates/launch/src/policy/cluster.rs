//! What a cluster's operator wants of a job: on Kubernetes, and under Slurm. Everything is left out unless
//! it is named.

use serde::Serialize;
use std::collections::BTreeMap;
use units::named;

/// What pods are given besides image, devices and the storage claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Kubernetes {
    /// The resource that hands out RDMA devices: `rdma/hca_shared_devices_a`.
    pub rdma_resource: Option<String>,
    /// How many of them a pod gets; one when only the resource is named.
    pub rdma_count: Option<u64>,
    /// Whether pods use the node's network, as RDMA without a second network needs.
    pub host_network: bool,
    /// Whether containers may lock memory (`IPC_LOCK`), which RDMA registers buffers under.
    pub ipc_lock: bool,
    /// Secrets that images are pulled with.
    pub pull_secrets: Vec<String>,
    /// Account the pods run under.
    pub service_account: Option<String>,
    /// Priority of the pods.
    pub priority_class: Option<String>,
    /// Kueue's local queue.
    pub queue: Option<String>,
    /// Labels of nodes the pods may run on.
    pub node_selector: BTreeMap<String, String>,
    /// Taints the pods tolerate.
    pub tolerations: Vec<Toleration>,
    /// Volume claims besides `job.claim`.
    pub volumes: Vec<Volume>,
}

/// A taint that is tolerated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Toleration {
    /// The taint's key.
    pub key: String,
    /// Its value; any when none is said.
    pub value: Option<String>,
    /// Its effect; every one when none is said.
    pub effect: Option<String>,
}

/// A volume claim and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// The claim.
    pub claim: String,
    /// Where.
    pub mount: String,
}

named! {
    /// What runs `job.image` under Slurm.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Container {
        /// NVIDIA's pyxis: `srun --container-image`.
        Pyxis = "pyxis",
        /// Nothing: the image is for other schedulers.
        None = "none",
    }
}

named! {
    /// How devices of a node are asked for.
    #[derive(Serialize)]
    pub enum GpuRequest {
        /// `--gpus-per-node`.
        #[serde(rename = "gpus-per-node")]
        PerNode = "gpus-per-node",
        /// `--gres=gpu:N`, where the site's Slurm knows no other.
        #[serde(rename = "gres")]
        Gres = "gres",
    }
}

/// What Slurm is told besides partition and account.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slurm {
    /// What runs `job.image`.
    pub container: Container,
    /// Mounts besides `job.mount` and the launch's folder: `/from:/to` or `/from:/to:ro`.
    pub container_mounts: Vec<String>,
    /// Quality of service.
    pub qos: Option<String>,
    /// Reservation.
    pub reservation: Option<String>,
    /// Features nodes must have.
    pub constraint: Option<String>,
    /// Nodes to stay off.
    pub exclude: Option<String>,
    /// Environment modules loaded before the run.
    pub modules: Vec<String>,
    /// Virtual environment that is activated on every node.
    pub venv: Option<String>,
    /// How devices are asked for.
    pub gpus: GpuRequest,
}

impl Default for Slurm {
    fn default() -> Slurm {
        Slurm {
            container: Container::Pyxis,
            container_mounts: Vec::new(),
            qos: None,
            reservation: None,
            constraint: None,
            exclude: None,
            modules: Vec::new(),
            venv: None,
            gpus: GpuRequest::PerNode,
        }
    }
}
