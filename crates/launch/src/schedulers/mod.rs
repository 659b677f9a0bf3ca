//! Job files: the emission on every node of a cluster, with its environment, restart policy, and
//! log and checkpoint locations.

mod jobset;
mod pod;
mod rayjob;
mod script;
mod slurm;
mod summary;
mod trainjob;

use crate::emission::{Emission, File};
use crate::identity::Identity;
use crate::job::Job;
use crate::packages;
use crate::policy::{JobPolicy, Kubernetes, Policy, Slurm};
use diag::{Blame, Finding, quote};
use hardware::Kind;
use serde_json::{Value, json};
use units::named;

named! {
    /// What starts a job on its nodes.
    pub enum Scheduler {
        /// By hand or by any tool: one script a node.
        Torchrun = "torchrun",
        /// `sbatch`.
        Slurm = "slurm",
        /// Kubeflow's TrainJob.
        TrainJob = "trainjob",
        /// Kubernetes' JobSet.
        JobSet = "jobset",
        /// A Ray cluster on Kubernetes.
        RayJob = "rayjob",
    }
}

/// The script every node runs, and the scheduler's own file.
pub fn files(scheduler: Scheduler, job: &Job, emission: &Emission) -> Result<Vec<File>, Vec<Finding>> {
    let refused = refusals(scheduler, job);
    if !refused.is_empty() {
        return Err(refused);
    }
    let mut files = emission.files.clone();
    files.extend(packages::files(job, emission));
    files.push(File::script("launch.sh", script::node(scheduler, job, emission)));
    match scheduler {
        Scheduler::Torchrun => {}
        Scheduler::Slurm => files.push(slurm::file(job)?),
        Scheduler::TrainJob => files.push(trainjob::file(job, emission, &carried(scheduler, &files)?)?),
        Scheduler::JobSet => files.push(jobset::file(job, emission, &carried(scheduler, &files)?)?),
        Scheduler::RayJob => {
            files.push(rayjob::driver());
            files.push(rayjob::file(job, emission, &carried(scheduler, &files)?));
        }
    }
    Ok(files)
}

impl Scheduler {
    /// Whether its jobs are pods.
    pub fn is_kubernetes(self) -> bool {
        matches!(self, Scheduler::TrainJob | Scheduler::JobSet | Scheduler::RayJob)
    }
}

/// The policy with storage where the scheduler's processes find it again.
pub fn settled(scheduler: Scheduler, mut policy: Policy) -> Policy {
    if scheduler.is_kubernetes() {
        policy.storage.mounted(&policy.job.mount);
    }
    policy
}

/// Words people type for a scheduler, and what they mean by them.
const MEANT: &[(&str, &[&str])] = &[
    ("k8s", &["jobset", "trainjob"]),
    ("kubernetes", &["jobset", "trainjob"]),
    ("gke", &["jobset", "trainjob"]),
    ("kueue", &["jobset", "trainjob"]),
    ("kubeflow", &["trainjob"]),
    ("pytorchjob", &["trainjob"]),
    ("ray", &["rayjob"]),
    ("kuberay", &["rayjob"]),
    ("sbatch", &["slurm"]),
    ("srun", &["slurm"]),
    ("local", &["torchrun"]),
    ("none", &["torchrun"]),
    ("bash", &["torchrun"]),
];

/// Schedulers a word may stand for that is none itself.
pub fn meant(word: &str) -> Option<&'static [&'static str]> {
    let word = word.to_ascii_lowercase();
    MEANT.iter().find(|(typed, _)| *typed == word).map(|(_, names)| *names)
}

/// Jobs a scheduler cannot start: TPUs where it hands out GPUs, storage that its pods do not mount.
fn refusals(scheduler: Scheduler, job: &Job) -> Vec<Finding> {
    let device = &job.cluster.device;
    if device.kind == Kind::Tpu && matches!(scheduler, Scheduler::Slurm | Scheduler::RayJob) {
        let message = format!("`{scheduler}` as we write it asks for GPUs, and {} is a TPU", device.name);
        let finding = Finding::error("launch/tpu-scheduler", Blame::Environment, "scheduler", message);
        return vec![finding.hint("--scheduler jobset asks GKE for slices; torchrun writes a script for every host")];
    }
    if scheduler.is_kubernetes() { pod::unmounted(job, &pod::mount_paths(job)) } else { Vec::new() }
}

/// Keys of a policy that say something the scheduler does not use.
pub fn unused(scheduler: Scheduler, policy: &Policy) -> Option<Finding> {
    let mut keys = Vec::new();
    if !scheduler.is_kubernetes() {
        keys.extend(said("kubernetes", json!(policy.kubernetes), json!(Kubernetes::default())));
        let besides = ["namespace", "runtime", "claim"];
        let job = said("job", json!(policy.job), json!(JobPolicy::default())).into_iter();
        keys.extend(job.filter(|key| besides.iter().any(|name| key.ends_with(&format!(".{name}")))));
    }
    if scheduler != Scheduler::Slurm {
        keys.extend(said("slurm", json!(policy.slurm), json!(Slurm::default())));
        let named = [("job.partition", &policy.job.partition), ("job.account", &policy.job.account)];
        keys.extend(named.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key.to_string()));
    }
    if scheduler == Scheduler::Torchrun && policy.job.image.is_some() {
        keys.push("job.image".to_string());
    }
    if keys.is_empty() {
        return None;
    }
    let message = format!("`{scheduler}` does not use {} of the policy", keys.join(", "));
    Some(Finding::note("launch/unused-policy", Blame::Environment, "policy", message))
}

/// Keys of a table whose value is not the usual one.
fn said(table: &str, value: Value, usual: Value) -> Vec<String> {
    let Value::Object(value) = value else { return Vec::new() };
    value
        .iter()
        .filter(|(key, value)| usual[key.as_str()] != **value)
        .map(|(key, _)| format!("{table}.{key}"))
        .collect()
}

/// The most bytes of one argument: Linux takes 128 KiB (`MAX_ARG_STRLEN`).
const ONE_WORD: usize = 120 << 10;

/// The most bytes of a job object's files: etcd takes 1.5 MiB for the object.
const ALL_WORDS: usize = 1 << 20;

/// Files small enough to travel inside a job object. Ray's entrypoint is one word, the others'
/// commands have a word a file.
fn carried(scheduler: Scheduler, files: &[File]) -> Result<Vec<File>, Vec<Finding>> {
    let sizes = files.iter().map(|file| quote::shell(&file.contents).len());
    let (largest, all) = (sizes.clone().max().unwrap_or(0), sizes.sum::<usize>());
    let most = if scheduler == Scheduler::RayJob { ONE_WORD } else { ALL_WORDS };
    if largest <= ONE_WORD && all <= most {
        return Ok(files.to_vec());
    }
    let message = format!(
        "the launch's files are {all} bytes, the largest {largest}; `{scheduler}` carries {most}, and {ONE_WORD} in one"
    );
    let hint = "take --scheduler torchrun, put the directory on the storage claim, and run its launch.sh in the pods";
    Err(vec![Finding::error("launch/bundle", Blame::Environment, "scheduler", message).hint(hint)])
}

/// What a person types to start it, in the launch directory.
pub fn command(scheduler: Scheduler, job: &Job) -> String {
    match scheduler {
        Scheduler::Torchrun if job.cluster.nodes == 1 => "./launch.sh".to_string(),
        Scheduler::Torchrun if job.cluster.device.kind == Kind::Tpu => "./launch.sh   # on every host".to_string(),
        Scheduler::Torchrun => "NODE_RANK=<0..> RDZV_HOST=<first node> ./launch.sh   # on every node".to_string(),
        // Slurm opens the logs before the script runs, and fails without a word where their folder is not.
        Scheduler::Slurm => {
            format!("mkdir -p -- {} && sbatch job.sbatch", quote::shell(&job.logs()))
        }
        Scheduler::TrainJob => "kubectl apply -f trainjob.yaml".to_string(),
        Scheduler::JobSet => "kubectl apply -f jobset.yaml".to_string(),
        Scheduler::RayJob => "kubectl apply -f rayjob.yaml".to_string(),
    }
}

/// The name of a job, as schedulers take names.
fn name(job: &Job) -> String {
    Identity::of(job).job_name
}
