//! What a plan asks of the machine, taken from the job that will run.

use super::environment::{Rule, engine_rules};
use crate::emission::EnvVar;
use crate::engines;
use crate::job::Job;
use crate::packages;
use crate::policy::Policy;
use hardware::Kind;
use layout::Engine;
use memory::fit::{Fit, Verdict};
use recipe::{Optimizer, Recipe};
use replay::Unmodelled;
use serde_json::Value;
use units::Bytes;

/// Who starts the processes, and so which environment they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// What `launch` writes: it sets the engine's variables and those of the storage policy itself.
    Ours,
    /// Somebody else: the processes get this environment as it is.
    Own,
}

/// Whether a plan over the memory limit may be launched all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOverride {
    /// It may not.
    No,
    /// It was allowed by name, which the report says.
    Yes,
}

/// What the memory model says of the plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Memory {
    /// A verdict, and the figures behind it.
    Judged {
        /// Fits, tight, or not.
        verdict: Verdict,
        /// What the worst rank holds.
        holds: u64,
        /// What the device shows of its memory.
        visible: u64,
    },
    /// No ledger prices it, and why.
    Unpriced(String),
}

/// A plan as preflight sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The engine.
    pub engine: Engine,
    /// What `launch` sets.
    pub sets: Vec<EnvVar>,
    /// What the engine wants of variables.
    pub(super) rules: Vec<Rule>,
    /// Devices of one node that take part.
    pub devices: u64,
    /// What the devices are called.
    pub device: String,
    /// What kind they are.
    pub kind: Kind,
    /// Memory each shows to a process.
    pub visible: u64,
    /// Bytes of one checkpoint, weights and optimizer state.
    pub checkpoint: u64,
    /// Checkpoints that exist at a time.
    pub checkpoints: u64,
    /// What the memory model says.
    pub memory: Memory,
    /// Memory of this node's host that the ranks' state takes.
    pub host: u64,
    /// Flags that put it there.
    pub host_flags: Vec<&'static str>,
    /// Whether that may be overridden.
    pub memory_override: MemoryOverride,
    /// What its launch imports; none where there is no launch of it.
    pub packages: Option<Value>,
}

/// Flags that keep something on the host.
fn host_flags(job: &Job) -> Vec<&'static str> {
    let options = &job.case.options;
    let flags = [
        ("--offload-optimizer", options.offload > 0.0),
        ("--offload-params", options.offload_params),
        ("--offload-activations", options.offload_activations > 0.0),
        ("a paged optimizer", options.ways.elements.paged_bytes() > 0),
    ];
    flags.into_iter().filter(|(_, is_on)| *is_on).map(|(flag, _)| flag).collect()
}

impl Plan {
    /// What a priced job asks of the machine.
    pub fn of(job: &Job, fit: Result<&Fit, &Unmodelled>, memory_override: MemoryOverride) -> Plan {
        let device = &job.cluster.device;
        let devices = job.layout.world.min(job.cluster.devices_per_node);
        let visible = device.visible_bytes();
        let memory = match fit {
            Ok(fit) => Memory::Judged { verdict: fit.verdict, holds: fit.worst().total(), visible },
            Err(reason) => Memory::Unpriced(reason.to_string()),
        };
        Plan {
            engine: engines::engine_of(job),
            sets: engines::environment(job),
            rules: engine_rules(job, devices),
            devices,
            device: device.name.clone(),
            kind: device.kind,
            visible,
            checkpoint: checkpoint_bytes(job.recipe),
            checkpoints: checkpoints(job.policy),
            host: fit.map_or(0, |fit| fit.host.node_bytes),
            host_flags: host_flags(job),
            packages: engines::emit(job).ok().map(|emission| packages::table(job, &emission)),
            memory,
            memory_override,
        }
    }

    /// Bytes of checkpoints at a time, or all there are if that overflows.
    pub fn checkpoint_space(&self) -> Bytes {
        Bytes(self.checkpoint.saturating_mul(self.checkpoints))
    }
}

/// Weights, the optimizer's own copy where it keeps one, and moments: what every engine we emit for
/// puts into a checkpoint that training can go on from. Engines that keep weights in one format only
/// write less.
pub fn checkpoint_bytes(recipe: &Recipe) -> u64 {
    let precision = &recipe.precision;
    let tensors = recipe.tensors();
    let bits = tensors.iter().map(|tensor| {
        let main = if tensor.dtype == precision.main || tensor.is_frozen { 0 } else { precision.main.bits() };
        let moments = match tensor.optimizer {
            _ if tensor.is_frozen => 0,
            Optimizer::AdamW => 2 * precision.moments.bits(),
            Optimizer::Muon | Optimizer::Sgd => precision.moments.bits(),
        };
        u128::from(tensor.elements()) * u128::from(tensor.dtype.bits() + main + moments)
    });
    u64::try_from(bits.sum::<u128>().div_ceil(8)).unwrap_or(u64::MAX)
}

/// Checkpoints that exist at a time: all that the run writes, or those kept and the one being
/// written, since the oldest goes only when the newest is whole.
pub fn checkpoints(policy: &Policy) -> u64 {
    let written = (policy.run.steps / policy.run.save_every.max(1)).max(1);
    policy.storage.keep_last.map_or(written, |kept| written.min(kept.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_weights_main_copy_and_moments() {
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        // Every tensor of Llama is bf16 under AdamW: 2 + 4 + 4 + 4 bytes a parameter.
        assert_eq!(checkpoint_bytes(&recipe), recipe.counts().all.total * 14);
    }

    #[test]
    fn checkpoints_are_counted_as_they_exist() {
        let mut policy = Policy::default();
        policy.run.steps = 1000;
        policy.run.save_every = 100;
        assert_eq!(checkpoints(&policy), 10);
        policy.storage.keep_last = Some(2);
        assert_eq!(checkpoints(&policy), 3);
        policy.run.steps = 50;
        assert_eq!(checkpoints(&policy), 1);
    }
}
