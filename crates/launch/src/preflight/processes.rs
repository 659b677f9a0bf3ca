//! Training processes that are still there, named with their pid and command line. Ending them is
//! the reader's decision: nothing here or in the command does it.

use super::machine::{Machine, Process};
use super::{Check, show};
use crate::policy::Policy;
use units::Bytes;

const RULE: &str = "preflight/stale-process";

/// Programs in front of the one that matters.
const WRAPPERS: [&[u8]; 9] =
    [b"env", b"nice", b"nohup", b"timeout", b"numactl", b"stdbuf", b"taskset", b"setsid", b"sudo"];

/// Judges every process; those we descend from started this check and are no strangers.
pub fn check(machine: &Machine, policy: &Policy, checks: &mut Vec<Check>) {
    let required = "no training process from before";
    let processes = match &machine.processes {
        Ok(processes) => processes,
        Err(why) => {
            checks.push(Check::pass(RULE, "processes", why.clone(), required).unknown("ps -eo pid,args"));
            return;
        }
    };
    let ours = ancestors(processes, machine.own_pid);
    let before = checks.len();
    let stale = |pid: u32, found: String| {
        let fix = format!("look: ps -fp {pid}; if it is stale, end it: kill {pid}");
        Check::pass(RULE, format!("pid {pid}"), found, required).violation(fix)
    };
    for process in processes.iter().filter(|process| !ours.contains(&process.pid)) {
        let words = command_words(process);
        match device_use(machine, process.pid) {
            Some(held) => checks.push(stale(process.pid, format!("{words}, {held}"))),
            None if trains(process, &policy.processes.training) => checks.push(stale(process.pid, words)),
            None => {}
        }
    }
    for pid in strangers(machine, processes) {
        let held = device_use(machine, pid).unwrap_or_default();
        checks.push(stale(pid, format!("a process that cannot be seen from here, {held}")));
    }
    if checks.len() == before {
        let found = format!("{} processes, none of which trains", processes.len());
        checks.push(Check::pass(RULE, "processes", found, required));
    }
}

/// A command line as one text, fit to be shown.
pub fn command_words(process: &Process) -> String {
    show::bytes(&process.words.join(&b' '))
}

/// A process and everything above it.
fn ancestors(processes: &[Process], pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    while let Some(process) = processes.iter().find(|process| Some(&process.pid) == found.last()) {
        if found.contains(&process.parent) {
            break;
        }
        found.push(process.parent);
    }
    found
}

/// Who computes on a device and is in no list of ours: a process of the host or of another container.
fn strangers(machine: &Machine, processes: &[Process]) -> Vec<u32> {
    let users = machine.gpus.iter().flatten().flat_map(|gpu| gpu.users.iter().map(|(pid, _)| *pid));
    let mut pids: Vec<u32> = users.filter(|pid| processes.iter().all(|process| process.pid != *pid)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// What a process holds on devices, in words.
fn device_use(machine: &Machine, pid: u32) -> Option<String> {
    let gpus = machine.gpus.as_deref().unwrap_or_default();
    let held: Vec<String> = gpus
        .iter()
        .flat_map(|gpu| gpu.users.iter().filter(|(user, _)| *user == pid).map(move |(_, bytes)| (gpu.index, bytes)))
        .map(|(index, bytes)| match bytes {
            Some(bytes) => format!("{} on GPU {index}", Bytes(*bytes)),
            None => format!("some of GPU {index}"),
        })
        .collect();
    (!held.is_empty()).then(|| format!("holding {}", held.join(", ")))
}

/// Whether a process runs a program, script or module that a pattern names. An argument that merely
/// mentions one (`vim pretrain_gpt.py`) does not count.
fn trains(process: &Process, patterns: &[String]) -> bool {
    let names = names(&process.words);
    names.iter().any(|name| patterns.iter().any(|pattern| matches(pattern.as_bytes(), name)))
}

/// What a command line runs: the program; for an interpreter, the script or module behind it.
fn names(words: &[Vec<u8>]) -> Vec<&[u8]> {
    let mut rest = words;
    while let [first, tail @ ..] = rest {
        if !WRAPPERS.contains(&base(first)) {
            break;
        }
        // Options, numbers and assignments of a wrapper stand before what it wraps.
        let skipped = tail.iter().take_while(|word| {
            word.starts_with(b"-") || word.contains(&b'=') || word.first().is_some_and(u8::is_ascii_digit)
        });
        rest = &tail[skipped.count()..];
    }
    let Some((program, arguments)) = rest.split_first() else { return Vec::new() };
    let mut names = vec![base(program), program.as_slice()];
    let interprets = [b"python".as_slice(), b"pypy", b"bash", b"sh", b"dash", b"zsh"];
    if interprets.iter().any(|known| base(program).starts_with(known)) {
        names.extend(script(arguments));
    }
    names
}

/// The script or module behind an interpreter's options.
fn script(arguments: &[Vec<u8>]) -> Vec<&[u8]> {
    let mut arguments = arguments.iter();
    while let Some(word) = arguments.next() {
        match word.as_slice() {
            b"-m" => return arguments.next().map(|module| vec![module.as_slice()]).unwrap_or_default(),
            b"-c" => return Vec::new(),
            b"-X" | b"-W" => drop(arguments.next()),
            option if option.starts_with(b"-") => {}
            script => return vec![base(script), script],
        }
    }
    Vec::new()
}

/// The last part of a path.
fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// Whether a name is what a pattern says; `*` stands for anything.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut pieces = pattern.split(|b| *b == b'*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let pieces: Vec<&[u8]> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        if piece.is_empty() {
            continue;
        }
        match rest.windows(piece.len()).position(|window| window == *piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(line: &str) -> bool {
        let words = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        trains(&Process { pid: 1, parent: 0, words }, &crate::policy::Processes::default().training)
    }

    #[test]
    fn what_trains_is_told_from_what_mentions_it() {
        for line in [
            "/usr/bin/python3 -u /usr/local/bin/torchrun --nproc-per-node 8 train.py",
            "python -m torch.distributed.run x.py",
            "python3.12 -X faulthandler -W ignore /opt/engine/pretrain_gpt.py --tensor-model-parallel-size 2",
            "nice -n 5 env A=1 timeout 60 deepspeed train.py",
        ] {
            assert!(runs(line), "{line}");
        }
        for line in [
            "vim pretrain_gpt.py",
            "grep torchrun",
            "python3 -c torchrun",
            "python3",
            "bash -l",
            "tail -f pretrain_x.py",
        ] {
            assert!(!runs(line), "{line}");
        }
    }

    #[test]
    fn patterns_have_stars() {
        for (pattern, name) in [("a*c", "abbc"), ("*", ""), ("a*b*c", "axbyc"), ("x", "x"), ("ray::*", "ray::Worker")] {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in [("a*c", "ab"), ("ab*ba", "aba"), ("x", "xx"), ("", "x"), ("a*b*c", "acb")] {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    #[test]
    fn ancestors_end_even_in_circles() {
        let process = |pid, parent| Process { pid, parent, words: Vec::new() };
        assert_eq!(ancestors(&[process(5, 4), process(4, 1), process(1, 0)], 5), [5, 4, 1, 0]);
        assert_eq!(ancestors(&[process(5, 4), process(4, 5)], 5), [5, 4]);
    }
}
