//! What a run failed of first, and what to do about it. Other ranks and launchers report the same failure later in words of
//! their own; a cause is the first line that may be a root, after the last step.

use crate::{Event, EventKind, Evidence};
use serde::Serialize;

/// The first failure of a run's last attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// In the source's words, with the deepest frame where there was a traceback.
    pub words: String,
    /// Who printed it; none where the source does not say.
    pub rank: Option<u64>,
    /// What to do; none where nothing is known.
    pub hint: Option<String>,
    /// Place of its source.
    pub source: usize,
    /// Line in its source.
    pub line: u64,
}

/// The first failure of the last attempt; none where nothing failed.
pub fn cause(run: &Evidence) -> Option<Cause> {
    let failed: Vec<&Event> =
        run.events.iter().filter(|e| matches!(e.kind, EventKind::Failure | EventKind::OutOfMemory)).collect();
    let last = failed.iter().map(|event| event.attempt).max()?;
    let of_last: Vec<&Event> = failed.into_iter().filter(|event| event.attempt == last).collect();
    let goes_on = |event: &Event| {
        let later = |step: &crate::Step| step.source == event.source && step.line > event.line;
        run.steps.iter().any(|step| step.attempt == event.attempt && later(step))
    };
    let fatal = of_last.iter().filter(|event| !goes_on(event));
    let first = fatal.min_by_key(|event| weight(event)).or_else(|| of_last.iter().min_by_key(|event| weight(event)))?;
    let (name, words) = named(first);
    Some(Cause {
        words: words.to_string(),
        rank: first.rank,
        hint: hint(name, words),
        source: first.source,
        line: first.line,
    })
}

/// Roots before confirmations before what only follows.
fn weight(event: &Event) -> u8 {
    match event.detail.split_once("): ").map_or("", |(head, _)| head) {
        head if head.ends_with("(cascade") => 2,
        head if head.ends_with("(confirmation") => 1,
        _ => 0,
    }
}

/// A failure's kind and its words; memory that ran out has no kind before it.
fn named(event: &Event) -> (&str, &str) {
    if event.kind == EventKind::OutOfMemory {
        return ("out_of_memory", &event.detail);
    }
    let Some((head, words)) = event.detail.split_once("): ") else { return ("", &event.detail) };
    (head.split(' ').next().unwrap_or_default(), words)
}

const FAILED_KERNEL: &str = "a kernel failed on the device: CUDA_LAUNCH_BLOCKING=1 in environment.set of the policy names \
                             which, and compute-sanitizer where";

/// What to do, by what the words say and else by their kind.
fn hint(name: &str, words: &str) -> Option<String> {
    let has = |word: &str| words.contains(word);
    if has("APEX") || has("fused_weight_gradient_mlp_cuda") {
        let flag = "--engine-args \"--no-gradient-accumulation-fusion\"";
        return Some(format!("launch it with {flag}, or install APEX with --cpp_ext and --cuda_ext"));
    }
    if let Some(module) = missing_module(words) {
        return Some(format!(
            "`{module}` is not installed for this Python: `python3 packages.py` in the launch directory names every \
             package and its version"
        ));
    }
    let by_words = [
        (
            "unrecognized arguments",
            "the engine that is installed has no such flag: `python3 packages.py` in the launch directory says which version the launch was written for",
        ),
        ("unspecified launch failure", FAILED_KERNEL),
        ("illegal memory access", FAILED_KERNEL),
        ("Address already in use", "another run holds the port: end it, or name another job.port in the policy"),
        ("No space left on device", "free space on that volume, or name another folder in storage of the policy"),
        (
            "NCCL",
            "NCCL_DEBUG=INFO names the rank and the link that failed first; `shardwright preflight` checks devices and network",
        ),
        (
            "out of shared memory",
            "the kernel needs more shared memory than the device has: a smaller microbatch does not help, another kernel version does",
        ),
    ];
    if name != "out_of_memory"
        && let Some((_, what)) = by_words.iter().find(|(word, _)| has(word))
    {
        return Some((*what).to_string());
    }
    let what = match name {
        "out_of_memory" => {
            "`shardwright fit` with the flags of this launch lists what frees memory; a smaller --mbs and --recompute \
             full free most"
        }
        "linux_oom_kill_confirmation" | "process_killed" => {
            "nothing in the program ended it: mostly the host ran out of memory (`dmesg -T | grep -i oom`), or the \
             scheduler ended the job"
        }
        "gpu_hardware_fault" => "take the device out of the job and have it checked (`nvidia-smi -q -d ECC`)",
        "nccl_cascade" | "observed_distributed_operation_timeout" => {
            "another rank stopped first: look for its exception above, or set NCCL_DEBUG=INFO"
        }
        "checkpoint_compatibility_mismatch" => "name another storage.checkpoints in the policy",
        "artifact_or_path_not_found" => {
            "every node must see that path; data, tokenizer and storage are named in the policy"
        }
        "filesystem_permission_denied" => "let this user write there, or name another folder in storage of the policy",
        "time_limit" => "job.hours in the policy is the limit; the next start goes on from the newest checkpoint",
        _ => return None,
    };
    Some(what.to_string())
}

/// The module of `No module named 'mamba_ssm.ops'`, to its first dot.
fn missing_module(words: &str) -> Option<&str> {
    let (_, rest) = words.split_once("No module named ")?;
    let rest = rest.trim_start_matches(['\'', '"', '`']);
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}
