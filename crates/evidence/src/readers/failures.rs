//! What any process may print, whatever the engine: failures, memory that ran out, restarts, backends that were chosen.
//!
//! Kinds of failures and their roles are those of nvidia-resiliency-ext (`docs/design/attribution/restart_agent/
//! PATTERN_REGISTRY.md`, August 2026). A match records that the words were printed; it names no cause and asks for
//! nothing.

use super::grams::Grams;
use super::log::{Log, Point, Rounded};
use super::text::{Line, behind, bytes_with_unit, find, leading, moment};
use super::traceback::{Raised, Tracebacks, Within};
use crate::EventKind;
use crate::MemoryKind::{Allocated, DeviceUsed, Reserved};
use aho_corasick::{AhoCorasick, AhoCorasickKind};
use std::sync::LazyLock;

/// What a line of that kind can be: where it began, what came of another failure, or what confirms a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Root,
    Cascade,
    Confirmation,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Root => "root",
            Role::Cascade => "cascade",
            Role::Confirmation => "confirmation",
        }
    }
}

/// One kind of failure: any of `words`, and of `also` where there are any, in small letters.
struct Signature {
    name: &'static str,
    role: Role,
    words: &'static [&'static str],
    also: &'static [&'static str],
}

const fn root(name: &'static str, words: &'static [&'static str], also: &'static [&'static str]) -> Signature {
    Signature { name, role: Role::Root, words, also }
}

/// In the order in which they are asked: the first that matches is the line's.
const SIGNATURES: &[Signature] = &[
    root("cuda_oom", &["cuda out of memory", "cublas_status_alloc_failed", "hip out of memory"], &[]),
    Signature {
        name: "linux_oom_kill_confirmation",
        role: Role::Confirmation,
        words: &["oom_kill event", "out of memory: killed process", "step tasks have been oom killed"],
        also: &[],
    },
    root("peer_gpu_memory_access_failure", &["invalid access of peer gpu memory"], &[]),
    root("gpu_hardware_fault", &["xid ("], &[]),
    root("gpu_hardware_fault", &["uncorrectable"], &["ecc", "nvlink", "pcie"]),
    root(
        "gpu_hardware_fault",
        &["fallen off the bus", "gpu is off bus", "nvlink fatal error", "pcie fatal error"],
        &[],
    ),
    root("gpu_hardware_fault", &["thermal shutdown", "thermal violation", "thermal fault"], &[]),
    root("infra_policy_event", &["node failure", "node_fail", "due to preemption", "preempted"], &[]),
    root("time_limit", &["due to time limit", "time limit reached", "walltime exceeded", "wall time exceeded"], &[]),
    root("user_cancelled", &["cancelled by user", "scancel"], &[]),
    root(
        "observed_distributed_operation_timeout",
        &["collective operation timeout", "operation timeout"],
        &["watchdog", "collective"],
    ),
    Signature {
        name: "cuda_previous_error_cascade",
        role: Role::Cascade,
        words: &["operation failed due to a previous error during capture", "nccl warn cuda failure"],
        also: &[],
    },
    Signature {
        name: "nccl_cascade",
        role: Role::Cascade,
        words: &["nccl"],
        also: &[" timeout", "timed out", "watchdog", " abort", "unhandled system error", "unhandled cuda error"],
    },
    Signature { name: "torchrun_report", role: Role::Cascade, words: &["childfailederror"], also: &[] },
    // torch/distributed/elastic/multiprocessing/errors: `traceback : Signal 9 (SIGKILL) received by PID 4711`.
    root("process_killed", &["(sigkill) received by pid"], &[]),
    root("package_missing", &["modulenotfounderror:", "no module named", "must install apex"], &[]),
    root(
        "argument_validation_failure",
        &["error: unrecognized arguments", "error: the following arguments are required", "error: argument "],
        &[],
    ),
    root("framework_crash", &["segmentation fault", "segfault", "illegal instruction", "core dumped"], &[]),
    root("nan_or_inf", &["non-finite", "nan loss", "loss is nan", "found nan", "found inf in", "nan detected"], &[]),
    root("bad_token_or_window", &["bad token", "bad sample"], &[]),
    root("checkpoint_compatibility_mismatch", &["checkpoint"], &["mismatch"]),
    root("shape_mismatch", &["shape mismatch"], &[]),
    root("filesystem_permission_denied", &["permissionerror", "permission denied"], &[]),
    root("artifact_or_path_not_found", &["no such file or directory"], &[]),
    root("configuration_validation_failure", &["invalid option", "invalid config", "missing key"], &[]),
    root("argument_validation_failure", &["invalid argument"], &[]),
    root(EXCEPTION, &["error:", "exception:"], &[]),
];

/// Advice about what might have happened is no failure.
const ADVICE: &[&str] = &[
    "might be asynchronously reported",
    "might be incorrect",
    "cuda_launch_blocking",
    "torch_use_cuda_dsa",
    "be caused by",
    "possibly due to",
    "please try",
];

/// Other lines that any engine's log may hold.
const OTHERS: &[&str] = &[
    // torch/distributed/elastic/agent/server/api.py (2.15): "… attempts left; will restart worker group".
    "will restart worker group",
    // torchtitan/components/metrics.py: f"{num_retries} {device_type.upper()} memory allocation retries."
    "memory allocation retries.",
    // deepspeed/runtime/zero/stage3.py: "%d pytorch allocator cache flushes since last step. …"
    "pytorch allocator cache flushes since last step",
    // transformer_engine/pytorch/attention/dot_product_attention: "Running with FlashAttention backend (version %s)"
    "attention backend",
    "nccl version ",
    // A frame of a traceback: `  File "…", line 12, in backward`.
    "  file \"",
];

/// Every word that is looked for, and what it is a word of.
struct Words {
    search: AhoCorasick,
    /// Of each word: its signature, or its place in `OTHERS`.
    of: Vec<Result<usize, usize>>,
    /// Words without which nothing is found.
    grams: Grams,
}

static WORDS: LazyLock<Words> = LazyLock::new(|| {
    let mut words: Vec<&str> = OTHERS.to_vec();
    let mut of: Vec<Result<usize, usize>> = (0..OTHERS.len()).map(Err).collect();
    for (at, signature) in SIGNATURES.iter().enumerate() {
        words.extend(signature.words);
        of.extend(signature.words.iter().map(|_| Ok(at)));
    }
    let mut builder = AhoCorasick::builder();
    let builder = builder.ascii_case_insensitive(true).kind(Some(AhoCorasickKind::DFA));
    // A generic exception is told by how its line begins. Of two lists that are both asked for, one is enough.
    let shortest = |words: &[&str]| words.iter().map(|word| word.len()).min().unwrap_or(0);
    let stated = SIGNATURES.iter().filter(|signature| signature.name != EXCEPTION);
    let needed = stated.flat_map(|signature| match shortest(signature.also) > shortest(signature.words) {
        true => signature.also,
        false => signature.words,
    });
    let grams = Grams::new(OTHERS.iter().chain(needed).copied());
    Words { search: builder.build(&words).expect("a fixed list of words"), of, grams }
});

/// Any exception, at the beginning of a line.
const EXCEPTION: &str = "observed_exception";

/// Reads lines that no engine's reader took.
#[derive(Default)]
pub struct Failures {
    tracebacks: Tracebacks,
}

/// What the words of a line say.
enum Found {
    /// Something that is no failure, and was taken.
    Other,
    Failure(&'static Signature),
    Nothing,
}

impl Failures {
    /// Whether the line says something of that kind, which is then taken.
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        let ends = self.tracebacks.is_ended_by(line);
        if !ends && !WORDS.grams.may_be_in(line.text) && !begins_with_exception(line.text) {
            return false;
        }
        let raised = if ends { self.tracebacks.take(line.stream) } else { None };
        match (self.found(line, raised.is_some(), log), raised) {
            (Found::Other, _) => {}
            (Found::Failure(signature), raised) if signature.name == "cuda_oom" => {
                let raised = raised.or_else(|| self.tracebacks.take(line.stream));
                out_of_memory(line, raised, log);
            }
            (Found::Failure(signature), raised) => failure(signature.name, signature.role, line, raised, log),
            // An exception whose name no signature has, or that says nothing behind it.
            (Found::Nothing, Some(raised)) if names_a_class(line.text) => {
                failure(EXCEPTION, Role::Root, line, Some(raised), log);
            }
            (Found::Nothing, _) => return false,
        }
        true
    }

    fn found(&mut self, line: &Line, is_raised: bool, log: &mut Log) -> Found {
        let mut found: Option<usize> = None;
        for hit in WORDS.search.find_overlapping_iter(line.text) {
            match WORDS.of[hit.pattern().as_usize()] {
                Err(other) => {
                    if other_line(other, line, &mut self.tracebacks, log) {
                        return Found::Other;
                    }
                }
                Ok(signature) => found = Some(found.map_or(signature, |first| first.min(signature))),
            }
        }
        let Some(first) = found else { return Found::Nothing };
        let lower = line.text.to_ascii_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| find(&lower, word.as_bytes()).is_some());
        if has(ADVICE) && !is_raised {
            return Found::Nothing;
        }
        let signature = SIGNATURES[first..].iter().find(|signature| {
            has(signature.words)
                && (signature.also.is_empty() || has(signature.also))
                && is_stated(signature, line.text)
        });
        signature.map_or(Found::Nothing, Found::Failure)
    }
}

fn failure(name: &'static str, role: Role, line: &Line, raised: Option<Raised>, log: &mut Log) {
    let mut event = log.event(EventKind::Failure, line, line.text);
    let place = raised.and_then(|raised| raised.place).map_or(String::new(), |place| format!(" ({place})"));
    event.detail = format!("{name} ({}): {}{place}", role.name(), event.detail);
    event.step = log.last_step().map(|step| step + 1);
    event.rank = event.rank.or_else(|| rank_in(line.text));
    log.push_repeated(name, event);
}

/// `CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB of which 1.58 GiB is
/// free. … Of the allocated memory 734.07 MiB is allocated by PyTorch, and 33.93 MiB is reserved by PyTorch but
/// unallocated.` (c10/cuda/CUDACachingAllocator.cpp; `capacty` in 2.1). Before 2.1: `(GPU 0; 6.00 GiB total capacity;
/// 781.59 MiB already allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)`.
fn out_of_memory(line: &Line, raised: Option<Raised>, log: &mut Log) {
    let within = raised.as_ref().and_then(|raised| raised.within).map(Within::name);
    let from = find(line.text, b"CUDA out of memory").unwrap_or(0);
    let words = &line.text[from..];
    let mut event = log.event(EventKind::OutOfMemory, line, words);
    event.step = log.last_step().map(|step| step + 1);
    event.rank = event.rank.or_else(|| rank_in(line.text));
    if let Some(within) = within {
        event.detail = format!("in {within}: {}", event.detail);
    }
    if let Some(place) = raised.and_then(|raised| raised.place) {
        event.detail += &format!(" ({place})");
    }
    let (rank, step) = (event.rank, event.step);
    log.push_repeated("cuda_oom", event);
    let phase = Some(within.map_or("out of memory".to_string(), |name| format!("out of memory in {name}")));
    for (kind, held) in Held::read(line.text).figures() {
        log.memory(line, rank, kind, held, Point { phase: phase.clone(), step });
    }
}

/// Restarts, retries, versions and backends. Frames are followed and left to others.
fn other_line(which: usize, line: &Line, tracebacks: &mut Tracebacks, log: &mut Log) -> bool {
    match which {
        0 => log.restarted(line, moment(line.text), &diag::quote::bytes(line.text.trim_ascii(), 200)),
        1 | 2 => {
            let mut event = log.event(EventKind::AllocationRetry, line, line.text);
            event.step = log.last_step();
            log.push_repeated("allocation retries", event);
        }
        3 => return attention(line, log),
        4 => return nccl_version(line, log),
        _ => {
            tracebacks.frame(line);
            return false;
        }
    }
    true
}

/// A generic exception stands at the beginning of a line: the last line of a traceback.
fn is_stated(signature: &Signature, text: &[u8]) -> bool {
    signature.name != EXCEPTION || begins_with_exception(text)
}

fn begins_with_exception(text: &[u8]) -> bool {
    // Behind torch's own `[rank3]:` stands a space.
    let text = text.strip_prefix(b" ").unwrap_or(text);
    let is_part = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.');
    let name = text.iter().take_while(|b| is_part(b)).count();
    let ends = text[..name].ends_with(b"Error") || text[..name].ends_with(b"Exception");
    ends && text.get(name) == Some(&b':')
}

/// Whether a line is a class and nothing, or a class and what it says: `AssertionError`, `plan.Refused: no`.
fn names_a_class(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    let name = text.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')).count();
    let class = text[..name].rsplit(|b| *b == b'.').next().and_then(|class| class.first());
    let is_set_off = text.get(name).is_none_or(|b| *b == b':');
    is_set_off && text.first().is_some_and(u8::is_ascii_alphabetic) && class.is_some_and(u8::is_ascii_uppercase)
}

/// `[Rank 3] …`, as torch's own process groups begin.
fn rank_in(text: &[u8]) -> Option<u64> {
    leading(behind(text, b"[Rank ").or_else(|| behind(text, b"[rank"))?)
}

fn attention(line: &Line, log: &mut Log) -> bool {
    let Some(rest) = line.behind(b"Running with ") else { return false };
    let Some(at) = find(rest, b" backend") else { return false };
    let mut backend = diag::quote::bytes(&rest[..at], 60);
    if let Some(version) = behind(&rest[at..], b"(") {
        let version = version.split(|b| *b == b')').next().unwrap_or_default();
        backend += &format!(" ({})", diag::quote::bytes(version, 40));
    }
    log.evidence.ran.insert("attention".to_string(), backend);
    true
}

fn nccl_version(line: &Line, log: &mut Log) -> bool {
    let Some(rest) = line.behind(b"NCCL version ") else { return false };
    let version = rest.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
    if version.is_empty() {
        return false;
    }
    log.evidence.versions.entry("nccl".to_string()).or_insert(diag::quote::bytes(version, 40));
    true
}

/// What torch says of a device whose memory ran out.
#[derive(Default)]
struct Held {
    capacity: Option<Rounded>,
    free: Option<Rounded>,
    allocated: Option<Rounded>,
    /// Reserved in all, or beside what is allocated.
    reserved: Option<Rounded>,
    unallocated: Option<Rounded>,
}

impl Held {
    fn read(text: &[u8]) -> Held {
        let figure = |word: &[u8]| bytes_with_unit(behind(text, word)?);
        // Older: each figure stands before its word.
        let before = |word: &[u8]| {
            let at = find(text, word)?;
            let from = text[..at].iter().rposition(|b| matches!(b, b';' | b'('))? + 1;
            bytes_with_unit(&text[from..at])
        };
        Held {
            capacity: figure(b"total capacity of ")
                .or_else(|| figure(b"total capacty of "))
                .or_else(|| before(b" total capacity")),
            free: figure(b"of which ").or_else(|| before(b" free;")),
            allocated: figure(b"Of the allocated memory ").or_else(|| before(b" already allocated")),
            reserved: before(b" reserved in total by PyTorch"),
            unallocated: figure(b"allocated by PyTorch, and "),
        }
    }

    fn figures(&self) -> Vec<(crate::MemoryKind, Rounded)> {
        let sum =
            |a: Rounded, b: Rounded| Rounded { bytes: a.bytes + b.bytes, resolution: a.resolution + b.resolution };
        let less = |a: Rounded, b: Rounded| Rounded { bytes: a.bytes.saturating_sub(b.bytes), ..sum(a, b) };
        let used = self.capacity.zip(self.free).map(|(all, free)| less(all, free));
        let reserved = self.reserved.or_else(|| self.allocated.zip(self.unallocated).map(|(a, b)| sum(a, b)));
        let all = [(Allocated, self.allocated), (Reserved, reserved), (DeviceUsed, used)];
        all.into_iter().filter_map(|(kind, held)| Some((kind, held?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is looked at first leaves no line out in which a word would be found.
    #[test]
    fn every_signature_passes_the_first_look() {
        for signature in SIGNATURES {
            let also = if signature.also.is_empty() { &[""] } else { signature.also };
            for (word, also) in signature.words.iter().flat_map(|word| also.iter().map(move |also| (word, also))) {
                for before in 0..7 {
                    let text = match signature.name {
                        EXCEPTION => {
                            format!("{}Some{}{} at 3", " ".repeat(before % 2), word[..1].to_uppercase(), &word[1..])
                        }
                        _ => format!("{}{word} and{also}", "#".repeat(before)),
                    };
                    let mut log = Log::new(crate::Format::Text);
                    let line = Line { number: 1, rank: None, stream: 0, text: text.as_bytes() };
                    assert!(Failures::default().line(&line, &mut log), "{text}");
                    assert_eq!(log.evidence.events.len(), 1, "{text}");
                }
            }
        }
        for (other, word) in OTHERS.iter().enumerate() {
            assert!(WORDS.grams.may_be_in(word.as_bytes()), "{other}");
        }
    }
}
