//! What a policy asks of the machine: only `preflight` reads it.

use serde::Serialize;
use std::collections::BTreeMap;

/// Environment variables.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Environment {
    /// Carried into the run as they are.
    pub set: BTreeMap<String, String>,
    /// Must be there, whatever they hold.
    pub required: Vec<String>,
    /// Must not be there.
    pub forbidden: Vec<String>,
    /// Must hold exactly this.
    pub expected: BTreeMap<String, String>,
}

/// Ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ports {
    /// Nobody may listen here; the rendezvous port (`job.port`) is always among them.
    pub free: Vec<u16>,
}

/// Processes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Processes {
    /// Programs, scripts or modules that train; `*` stands for anything.
    pub training: Vec<String>,
}

impl Default for Processes {
    /// Starters and entry scripts of the engines we emit for.
    fn default() -> Processes {
        let words = [
            "torchrun",
            "torch.distributed.run",
            "torch.distributed.launch",
            "torchtitan.train",
            "deepspeed",
            "pretrain_*.py",
            "run_train.py",
            "MaxText.train",
            "maxtext.train",
        ];
        Processes { training: words.map(str::to_string).to_vec() }
    }
}

/// Devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gpu {
    /// The oldest driver that will do.
    pub driver: Option<String>,
    /// Bytes that must be free on each.
    pub free_memory: Option<u64>,
    /// How many there must be; a plan asks for its own number.
    pub count: Option<u64>,
}

/// A limit: a number, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// So many.
    Of(u64),
    /// As many as one likes; above every number.
    Unlimited,
}

/// Limits of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Limits {
    /// Open files.
    pub nofile: Option<Limit>,
    /// Bytes that may be locked in memory, which RDMA registers buffers under.
    pub memlock: Option<Limit>,
    /// Processes and threads of the user.
    pub nproc: Option<Limit>,
    /// Bytes of `/dev/shm`, through which data loaders and NCCL pass buffers within a node.
    pub shared_memory: Option<u64>,
}

/// The clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Clock {
    /// Whether it must be synchronised: timestamps of ranks are compared across nodes.
    pub synchronized: bool,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { synchronized: true }
    }
}
