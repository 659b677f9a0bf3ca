//! Slurm: one task a node, which starts the node's processes itself, in a container where the policy names
//! an image.

use super::pod::{LAUNCH, unmounted};
use crate::emission::File;
use crate::job::Job;
use crate::policy::{Container, GpuRequest};
use diag::{Blame, Finding, quote};

/// `job.sbatch`, submitted from the launch directory.
pub fn file(job: &Job) -> Result<File, Vec<Finding>> {
    let (policy, site, cluster) = (&job.policy.job, &job.policy.slurm, job.cluster);
    let logs = job.logs();
    // Directives are not shell text: only plain characters mean the same to every reader.
    if !logs.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c)) {
        let message = format!("`#SBATCH --output` takes plain paths only, and logs are at {logs:?}");
        let finding = Finding::error("launch/slurm-path", Blame::Environment, "storage.logs", message);
        return Err(vec![finding.hint("use letters, digits, `_`, `-`, `.` and `/`")]);
    }
    let devices = cluster.devices_per_node;
    let mut lines = vec![
        format!("--job-name={}", super::name(job)),
        format!("--nodes={}", cluster.nodes),
        "--ntasks-per-node=1".to_string(),
        match site.gpus {
            GpuRequest::PerNode => format!("--gpus-per-node={devices}"),
            GpuRequest::Gres => format!("--gres=gpu:{devices}"),
        },
        format!("--cpus-per-task={}", policy.cpus),
        "--exclusive".to_string(),
        format!("--time={}:00:00", policy.hours),
        "--requeue".to_string(),
        "--open-mode=append".to_string(),
        format!("--output={logs}/%x-%j.out"),
        format!("--error={logs}/%x-%j.err"),
    ];
    let named = [
        ("partition", &policy.partition),
        ("account", &policy.account),
        ("qos", &site.qos),
        ("reservation", &site.reservation),
        ("constraint", &site.constraint),
        ("exclude", &site.exclude),
    ];
    lines.extend(named.into_iter().filter_map(|(word, value)| Some(format!("--{word}={}", value.as_ref()?))));
    let directives: String = lines.iter().map(|line| format!("#SBATCH {line}\n")).collect();
    let text = format!(
        "#!/usr/bin/env bash\n{directives}{modules}set -euo pipefail\ncd -- \"$SLURM_SUBMIT_DIR\"\n\
         RDZV_HOST=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\nexport RDZV_HOST\n\
         # Failed runs are put back in the queue, at most {restarts} times.\n\
         if srun --kill-on-bad-exit=1 --export=ALL{container} {command}; then exit 0; fi\n\
         if [ \"${{SLURM_RESTART_COUNT:-0}}\" -lt {restarts} ]; then scontrol requeue \"$SLURM_JOB_ID\"; fi\nexit 1\n",
        modules = modules(&site.modules),
        container = container(job)?,
        command = command(site.venv.as_deref()),
        restarts = policy.restarts
    );
    Ok(File::script("job.sbatch", text))
}

/// Loads modules before the shell becomes strict, which not every module system survives.
fn modules(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let load = "command -v module > /dev/null || . /etc/profile\nmodule load";
    format!("{load} {} || exit 1\n", quote::shell_line(names))
}

/// What a node runs: its script, in a virtual environment where one is named.
fn command(venv: Option<&str>) -> String {
    let Some(venv) = venv else { return "bash ./launch.sh".to_string() };
    let activate = format!("{}/bin/activate", venv.trim_end_matches('/'));
    let inner = format!(". {} && exec bash ./launch.sh", quote::shell(&activate));
    format!("bash -c {}", quote::shell(&inner))
}

/// pyxis' options: the image, the launch's folder, and every mount. Nothing where no image is named.
fn container(job: &Job) -> Result<String, Vec<Finding>> {
    let (policy, site) = (&job.policy.job, &job.policy.slurm);
    let Some(image) = policy.image.as_ref().filter(|_| site.container == Container::Pyxis) else {
        return Ok(String::new());
    };
    let inside = site.container_mounts.iter().filter_map(|mount| mount.split(':').nth(1));
    let inside: Vec<&str> = [policy.mount.as_str(), LAUNCH].into_iter().chain(inside).collect();
    let lost = unmounted(job, &inside);
    if !lost.is_empty() {
        return Err(lost);
    }
    if policy.mount.contains([',', ':']) {
        let message = format!("pyxis splits mounts at `,` and `:`, and job.mount is {:?}", policy.mount);
        return Err(vec![Finding::error("launch/slurm-path", Blame::Environment, "job.mount", message)]);
    }
    let mounts = std::iter::once(format!("{0}:{0}", policy.mount)).chain(site.container_mounts.iter().cloned());
    let mounts = mounts.collect::<Vec<_>>().join(",");
    let words = [
        format!("--container-image={}", quote::shell(image)),
        format!("--container-mounts=\"$PWD:$PWD\",{}", quote::shell(&mounts)),
        "--container-workdir=\"$PWD\"".to_string(),
    ];
    Ok(format!(" \\\n  {} \\\n ", words.join(" \\\n  ")))
}
