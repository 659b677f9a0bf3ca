//! Job files: the emission on every node of a cluster, with its environment, restart policy, and
//! log and checkpoint locations.

mod jobset;
mod rayjob;
mod script;
mod slurm;
mod summary;
mod trainjob;

use crate::emission::{Emission, File};
use crate::identity::Identity;
use crate::job::Job;
use crate::quote;
use diag::{Blame, Finding};
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
    let mut files = emission.files.clone();
    files.push(File::script("launch.sh", script::node(job, emission)));
    match scheduler {
        Scheduler::Torchrun => {}
        Scheduler::Slurm => files.push(slurm::file(job, emission)?),
        Scheduler::TrainJob => files.push(trainjob::file(job, emission, &carried(scheduler, &files)?)),
        Scheduler::JobSet => files.push(jobset::file(job, emission, &carried(scheduler, &files)?)),
        Scheduler::RayJob => {
            files.push(rayjob::driver());
            files.push(rayjob::file(job, emission, &carried(scheduler, &files)?));
        }
    }
    Ok(files)
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
