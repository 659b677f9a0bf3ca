//! The script of a node. Every value in it is quoted; only our own variables are expanded.

use super::{Scheduler, summary};
use crate::emission::{Checkout, Emission, File, Starter};
use crate::identity::{self, Identity};
use crate::job::Job;
use crate::policy::{JobPolicy, Policy};
use crate::preflight::{checkpoint_bytes, checkpoints};
use crate::tuning::FirstStep;
use diag::quote;
use hardware::Kind;
use units::Bytes;

/// `launch.sh`: environment, folders, packages, whose checkpoints they hold, then the engine, and a summary of how it ended.
pub fn node(scheduler: Scheduler, job: &Job, emission: &Emission) -> String {
    let policy = &job.policy.job;
    let mut out = String::from("#!/usr/bin/env bash\n");
    let words = format!("# {} on {} (lane {})", job.source.name.terminal(), emission.engine, emission.lane);
    out += &(quote::comment(&words) + "\n");
    for seam in &emission.seams {
        let verdict = seam.verdict();
        let text = format!("# seam {} ({verdict}): the recipe says {}; runs: {}", seam.name, seam.wanted, seam.runs);
        out += &(quote::comment(&text) + "\n");
    }
    out += "set -euo pipefail\n";
    out += "here=$(cd -- \"$(dirname -- \"${BASH_SOURCE[0]}\")\" && pwd)\n";
    out += "cd -- \"$here\"\n";
    out += ": \"${NODE_RANK:=${SLURM_NODEID:-${JOB_COMPLETION_INDEX:-${PET_NODE_RANK:-0}}}}\"\n";
    out += &rendezvous(&policy.host);
    for variable in &emission.environment {
        out += &(quote::comment(&format!("# {}", variable.why)) + "\n");
        out += &format!("export {}={}\n", variable.name, quote::shell(&variable.value));
    }
    out += "export PYTHONPATH=\"$here${PYTHONPATH:+:$PYTHONPATH}\"\n";
    out += &summary::node_rank();
    out += &folders(job);
    out += &python(emission.starter);
    out += &summary::begin(job);
    out += &room(job);
    out += &emission.checkout.map_or(String::new(), find);
    out += PACKAGES;
    out += &same_identity(job);
    let restarts = restarts(scheduler, job, emission.starter);
    out += &start(job, emission, restarts);
    out += &summary::run(restarts > 0);
    out
}

/// How often torchrun starts the workers of this job again. A restart helps against devices, links and nodes that fail;
/// an exception comes back. Alone on one node, without a scheduler that would give it another, there is nothing to gain.
fn restarts(scheduler: Scheduler, job: &Job, starter: Starter) -> u64 {
    let asked = job.policy.job.restarts;
    let is_alone = scheduler == Scheduler::Torchrun && job.cluster.nodes == 1;
    let is_usual = asked == JobPolicy::default().restarts;
    if starter == Starter::Python || is_alone && is_usual { 0 } else { asked }
}

/// The Python that runs the engine: torchrun's own, where torchrun is a script of one.
fn python(starter: Starter) -> String {
    let by_starter = "if starter=$(command -v torchrun) && IFS= read -r interpreter 2>/dev/null < \"$starter\"; then\n  \
                      case $interpreter in '#!'*/python*) python=${interpreter#??} python=${python%% *} ;; esac\nfi\n";
    match starter {
        Starter::Torchrun => format!("python=python3\n{by_starter}"),
        Starter::Python => "python=python3\n".to_string(),
    }
}

/// What the engine imports, checked all at once; what is printed is kept in the log.
const PACKAGES: &str = r#"# Every package that is missing or too old, before anything starts. SHARDWRIGHT_PACKAGES=ignore goes on all the same.
if ! found=$("$python" "$here/packages.py" 2>&1); then refuse packages "$found"; fi
printf '%s\n' "$found" >&2
"#;

/// Whether the checkpoints fit that exist at a time, those of earlier starts among them. Only where no policy says where
/// things are kept: `preflight` judges those that one names.
fn room(job: &Job) -> String {
    if job.policy.storage != Policy::default().storage {
        return String::new();
    }
    let (one, count) = (checkpoint_bytes(job.recipe), checkpoints(job.policy));
    let all = one.saturating_mul(count).div_ceil(1024);
    let (each, noun) = (Bytes(one), if count == 1 { "checkpoint" } else { "checkpoints" });
    format!(
        r#"# Every checkpoint that this run keeps, weights and optimizer, in KiB: {count} of {each}.
needed={all}
free=$(df -Pk -- "$SHARDWRIGHT_CHECKPOINTS" | awk 'NR == 2 {{ print $4 }}')
held=$(du -sk -- "$SHARDWRIGHT_CHECKPOINTS" | awk '{{ print $1 }}')
printf '%s has %s GiB free; {count} {noun} of {each} take %s GiB\n' "$SHARDWRIGHT_CHECKPOINTS" "$((free >> 20))" "$((needed >> 20))" >&2
if [ "$((free + held))" -lt "$needed" ]; then
  refuse disk "{count} {noun} of {each} do not fit in $SHARDWRIGHT_CHECKPOINTS: free space, or name storage.checkpoints or keep_last in a policy"
fi
"#
    )
}

/// Makes every folder; none may be on the root volume where a policy is given that says so.
fn folders(job: &Job) -> String {
    let (checkpoints, logs) = (job.checkpoints(), job.logs());
    let mut out = format!("export SHARDWRIGHT_CHECKPOINTS={}\n", quote::shell(&checkpoints));
    out += &format!("export SHARDWRIGHT_LOGS={}\n", quote::shell(&logs));
    out += &format!("export SHARDWRIGHT_LAUNCH_ID={}\n", Identity::of(job).launch_id);
    let places = job
        .policy
        .storage
        .places_on(job.cluster.device.kind)
        .into_iter()
        .map(|place| place.path)
        .chain([checkpoints, logs]);
    out += &format!("for folder in {}; do\n  mkdir -p -- \"$folder\"\n", quote::shell_line(places));
    if job.policy.storage.forbid_root_volume && *job.policy != Policy::default() {
        out += "  if [ \"$(stat -c %d -- \"$folder\")\" = \"$(stat -c %d /)\" ]; then\n";
        out += "    printf '%s is on the root volume, and the policy keeps runs off it\\n' \"$folder\" >&2\n    exit 1\n  fi\n";
    }
    out + "done\n"
}

/// Leaves a note of whose checkpoints the folder holds, and refuses a folder with another's: weights of
/// another mode or feature bundle may load without a word.
fn same_identity(job: &Job) -> String {
    let identity = quote::shell(&Identity::of(job).checkpoint);
    format!(
        r#"# Whose checkpoints these are: written once, compared ever after.
identity={identity}
mine=$SHARDWRIGHT_CHECKPOINTS/{file}
adopts=${{SHARDWRIGHT_ADOPT_CHECKPOINTS:-0}}
if [ "$adopts" = 1 ] || [ -z "$(ls -A -- "$SHARDWRIGHT_CHECKPOINTS")" ]; then
  printf '%s\n' "$identity" > "$SHARDWRIGHT_CHECKPOINTS.$node.$$"
  if [ "$adopts" = 1 ]; then rm -f -- "$mine"; fi
  # Another node may be first, with the same words or with others.
  mv -n -- "$SHARDWRIGHT_CHECKPOINTS.$node.$$" "$mine" || true
  rm -f -- "$SHARDWRIGHT_CHECKPOINTS.$node.$$"
fi
held=$(cat -- "$mine" 2>/dev/null || printf 'nobody says whose')
if [ "$held" != "$identity" ]; then
  refuse checkpoints "the checkpoints in $SHARDWRIGHT_CHECKPOINTS are of another model, mode or layout, and are not loaded" \
    "  they are of: $held" "  this is:     $identity" \
    'name another storage.checkpoints in the policy; SHARDWRIGHT_ADOPT_CHECKPOINTS=1 loads them all the same'
fi
"#,
        file = identity::FILE
    )
}

/// Who is met where: what the scheduler says, or the policy. Schedulers and people write IPv6 addresses bare.
fn rendezvous(host: &str) -> String {
    format!(
        r#"RDZV_HOST=${{RDZV_HOST:-${{PET_MASTER_ADDR:-}}}}
if [ -z "$RDZV_HOST" ]; then RDZV_HOST={}; fi
# An IPv6 address stands in brackets before its port.
case $RDZV_HOST in \[*) ;; *:*:*) RDZV_HOST="[$RDZV_HOST]" ;; esac
"#,
        quote::shell(host)
    )
}

/// Finds the engine's sources where the policy does not name them.
fn find(checkout: Checkout) -> String {
    let Checkout { what, variable, script, places } = checkout;
    format!(
        r#"# Where {what} is: ${variable}, the Python path, or where images have it.
engine_root=
IFS=: read -r -a places <<< "${{{variable}:-}}:${{PYTHONPATH:-}}:{places}"
for place in "${{places[@]}}"; do
  if [ -n "$place" ] && [ -f "$place/{script}" ]; then engine_root=$place; break; fi
done
if [ -z "$engine_root" ]; then
  refuse engine '{script} of {what} was not found; {variable}=/path/of/its/folder says where it is'
fi
export {variable}="$engine_root"
"#,
        places = places.join(":")
    )
}

/// The line that starts the engine, as a function: it takes the place of the shell that calls it.
fn start(job: &Job, emission: &Emission, restarts: u64) -> String {
    let (policy, cluster) = (&job.policy.job, job.cluster);
    let (mut lines, mut exported) = (Vec::new(), String::new());
    if emission.starter == Starter::Torchrun && restarts == 0 {
        exported = "# No restarts: on one node an exception comes back, and whoever starts this again goes on from the newest checkpoint.\n".to_string();
    }
    match emission.starter {
        Starter::Torchrun => {
            let logs = format!("{}/torchrun", job.logs());
            lines.push("exec torchrun".to_string());
            lines.push(format!("--nnodes {} --nproc-per-node {}", cluster.nodes, cluster.devices_per_node));
            lines.push(format!("--node-rank \"$NODE_RANK\" --rdzv-id {}", super::name(job)));
            lines.push(format!("--rdzv-backend c10d --rdzv-endpoint \"$RDZV_HOST:{}\"", policy.port));
            lines.push(format!("--max-restarts {restarts} --tee 3 --log-dir {}", quote::shell(&logs)));
        }
        // The TPU runtime finds its slice, and the other slices, by itself.
        Starter::Python if cluster.device.kind == Kind::Tpu => lines.push("exec python3".to_string()),
        Starter::Python => {
            let port = policy.port;
            let exports = format!("export JAX_COORDINATOR_IP=\"$RDZV_HOST\" JAX_COORDINATOR_PORT={port}");
            exported = format!("{exports} NNODES={} NODE_RANK\n", cluster.nodes);
            lines.push("exec python3".to_string());
        }
    }
    lines.extend(emission.shell_words());
    let first =
        FirstStep::of(job).map_or(String::new(), |first| format!("printf '%s\\n' {}\n", quote::shell(&first.words())));
    format!("{exported}engine() {{\n{first}{}\n}}\n", lines.join(" \\\n  "))
}

/// The launch as the words of one command, for schedulers that carry no files: it writes its files
/// below the temporary location and goes on with `last`. Paths and contents are words of their own,
/// so that no single argument holds the whole launch.
pub fn bundle(job: &Job, files: &[File], last: &str) -> Vec<String> {
    let folder = format!("{}/launch-XXXXXX", job.policy.storage.temporary.trim_end_matches('/'));
    let mut text = format!("set -euo pipefail\nmkdir -p -- {}\n", quote::shell(&job.policy.storage.temporary));
    text += &format!("cd -- \"$(mktemp -d -- {})\"\n", quote::shell(&folder));
    text += "while [ $# -gt 0 ]; do\n  mkdir -p -- \"$(dirname -- \"$1\")\"\n  printf %s \"$2\" > \"$1\"\n  shift 2\ndone\n";
    text += &format!("{last}\n");
    let mut words = vec!["bash".to_string(), "-c".to_string(), text, "launch".to_string()];
    words.extend(files.iter().flat_map(|file| [file.path.clone(), file.contents.clone()]));
    words
}
