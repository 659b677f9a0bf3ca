//! Slurm: one task a node, which starts the node's processes itself.

use crate::emission::{Emission, File};
use crate::job::Job;
use diag::{Blame, Finding};

/// `job.sbatch`, submitted from the launch directory.
pub fn file(job: &Job, _emission: &Emission) -> Result<File, Vec<Finding>> {
    let (policy, cluster) = (&job.policy.job, job.cluster);
    let logs = job.logs();
    // Directives are not shell text: only plain characters mean the same to every reader.
    if !logs.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c)) {
        let message = format!("`#SBATCH --output` takes plain paths only, and logs are at {logs:?}");
        let finding = Finding::error("launch/slurm-path", Blame::Environment, "storage.logs", message);
        return Err(vec![finding.hint("use letters, digits, `_`, `-`, `.` and `/`")]);
    }
    let mut lines = vec![
        format!("--job-name={}", super::name(job)),
        format!("--nodes={}", cluster.nodes),
        "--ntasks-per-node=1".to_string(),
        format!("--gpus-per-node={}", cluster.devices_per_node),
        format!("--cpus-per-task={}", policy.cpus),
        "--exclusive".to_string(),
        format!("--time={}:00:00", policy.hours),
        "--requeue".to_string(),
        "--open-mode=append".to_string(),
        format!("--output={logs}/%x-%j.out"),
        format!("--error={logs}/%x-%j.err"),
    ];
    lines.extend(policy.partition.iter().map(|name| format!("--partition={name}")));
    lines.extend(policy.account.iter().map(|name| format!("--account={name}")));
    let directives: String = lines.iter().map(|line| format!("#SBATCH {line}\n")).collect();
    let text = format!(
        "#!/usr/bin/env bash\n{directives}set -euo pipefail\ncd -- \"$SLURM_SUBMIT_DIR\"\n\
         RDZV_HOST=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\nexport RDZV_HOST\n\
         # Failed runs are put back in the queue, at most {restarts} times.\n\
         if srun --kill-on-bad-exit=1 --export=ALL bash ./launch.sh; then exit 0; fi\n\
         if [ \"${{SLURM_RESTART_COUNT:-0}}\" -lt {restarts} ]; then scontrol requeue \"$SLURM_JOB_ID\"; fi\nexit 1\n",
        restarts = policy.restarts
    );
    Ok(File::script("job.sbatch", text))
}
