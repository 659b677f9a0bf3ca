//! What a run left behind, read and put together: logs that are named, or those of a launch's own folder.

use crate::launched::Launched;
use diag::{Blame, Finding, quote};
use evidence::{EventKind, Evidence};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Told of a file that is being read: bytes so far, and bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(&Path, u64, u64);

/// What was read, and what could not be.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// Of all sources.
    pub evidence: Evidence,
    /// Files that hold no figure.
    pub notes: Vec<Finding>,
}

/// What a file of a launch's folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// All that a node printed.
    Log {
        node: u64,
    },
    /// How one start of a node went.
    Summary,
    Other,
}

/// Lines of a node's log that one start of it wrote.
#[derive(Clone, Copy, Debug)]
struct Run {
    node: u64,
    number: u64,
    first: u64,
    last: u64,
}

/// Reads files that somebody named; each must hold something.
pub fn of_logs(paths: &[PathBuf], progress: Progress) -> Result<Gathered, Finding> {
    let mut evidence = Evidence::default();
    for path in paths {
        evidence.add(read(path, progress)?);
    }
    evidence.mark_warm_up();
    Ok(Gathered { evidence, notes: Vec::new() })
}

/// Reads what the nodes of a launch left in its log folder; a file without figures is noted.
pub fn of_launch(launched: &Launched, progress: Progress) -> Result<Gathered, Finding> {
    let (mut parts, mut notes, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    for (path, origin) in found(launched)? {
        if let Origin::Summary = origin {
            runs.extend(run(&path));
        }
        match read(&path, progress) {
            Ok(evidence) => parts.push((evidence, origin)),
            Err(finding) => {
                let note = Finding::note("receipt/log", Blame::Environment, finding.object, finding.message);
                notes.push(note);
            }
        }
    }
    if parts.is_empty() {
        return Err(no_logs(&launched.logs, "nothing in it is a figure of a run"));
    }
    number_attempts(&mut parts, &runs);
    let mut evidence = Evidence::default();
    parts.into_iter().for_each(|(part, _)| evidence.add(part));
    evidence.steps.sort_by_key(|step| (step.attempt, step.number));
    evidence.mark_warm_up();
    Ok(Gathered { evidence, notes })
}

fn no_logs(folder: &Path, why: &str) -> Finding {
    let message = format!("no logs of the run in `{}`: {why}", quote::shown(folder));
    Finding::error("receipt/no-logs", Blame::Environment, folder.display().to_string(), message)
        .hint("run it first (`launch.sh` writes there), or name the logs: --log FILE, as often as there are files")
}

fn read(path: &Path, progress: Progress) -> Result<Evidence, Finding> {
    let name = path.display().to_string();
    let refuse = |error: std::io::Error| {
        let message = format!("cannot read `{}`: {error}", quote::shown(path));
        Finding::error("receipt/log", Blame::Environment, name.clone(), message)
    };
    let file = File::open(path).map_err(refuse)?;
    let about = file.metadata().map_err(refuse)?;
    if !about.is_file() {
        let message = format!("`{}` is no file", quote::shown(path));
        return Err(Finding::error("receipt/log", Blame::Usage, name, message).hint("--log takes one file at a time"));
    }
    evidence::read(&name, BufReader::new(file), None, &mut |bytes| progress(path, bytes, about.len()))
}

/// Files of a launch that may hold figures, in a fixed order.
fn found(launched: &Launched) -> Result<Vec<(PathBuf, Origin)>, Finding> {
    let entries = fs::read_dir(&launched.logs).map_err(|error| no_logs(&launched.logs, &error.to_string()))?;
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let mut all: Vec<(PathBuf, Origin)> =
        names.iter().filter_map(|name| Some((launched.logs.join(name), origin(name)?))).collect();
    let progress = launched.checkpoints.join("progress.txt");
    if progress.is_file() {
        all.push((progress, Origin::Other));
    }
    if all.is_empty() {
        return Err(no_logs(&launched.logs, "there are none"));
    }
    Ok(all)
}

/// What a name in a log folder says: `node0.log`, `summary-node0.json`, `summary-node0.1.json`, lines of our hook.
fn origin(name: &str) -> Option<Origin> {
    if let Some(node) = name.strip_prefix("node").and_then(|rest| rest.strip_suffix(".log")) {
        return node.parse().ok().map(|node| Origin::Log { node });
    }
    if name.starts_with("summary-node") && name.ends_with(".json") {
        return Some(Origin::Summary);
    }
    name.ends_with(".jsonl").then_some(Origin::Other)
}

/// The lines a summary speaks of.
fn run(summary: &Path) -> Option<Run> {
    let value: Value = serde_json::from_slice(&fs::read(summary).ok()?).ok()?;
    let first = value["log"]["first_line"].as_u64()?;
    let last = match value["state"].as_str() {
        // Written when it began.
        Some("running") => u64::MAX,
        _ => value["log"]["last_line"].as_u64()?,
    };
    Some(Run { node: value["node"].as_u64()?, number: value["restarts"].as_u64()?, first, last })
}

/// One count of attempts for all sources. A start of `launch.sh` is an attempt, and so is every restart that a log
/// shows within one: those of a log count from its first line on, whichever start wrote it.
fn number_attempts(parts: &mut [(Evidence, Origin)], runs: &[Run]) {
    let at = |node: u64, line: u64| {
        let inside = runs.iter().filter(|run| run.node == node && run.first <= line && line <= run.last);
        inside.map(|run| run.number).max().unwrap_or(0)
    };
    let mut pairs: BTreeSet<(u64, u64)> = runs.iter().map(|run| (run.number, 0)).collect();
    let mut firsts = Vec::new();
    for (part, origin) in parts.iter() {
        let Origin::Log { node } = *origin else {
            firsts.push(BTreeMap::new());
            continue;
        };
        let steps = part.steps.iter().map(|step| (at(node, step.line), step.attempt));
        let all: Vec<(u64, u64)> =
            steps.chain(part.events.iter().map(|event| (at(node, event.line), event.attempt))).collect();
        let mut first: BTreeMap<u64, u64> = BTreeMap::new();
        for (run, attempt) in &all {
            let least = first.entry(*run).or_insert(*attempt);
            *least = (*least).min(*attempt);
        }
        pairs.extend(all.iter().map(|(run, attempt)| (*run, attempt - first[run])));
        firsts.push(first);
    }
    let place = |pair: (u64, u64)| pairs.iter().take_while(|other| **other < pair).count() as u64;
    let last_of = |run: u64| pairs.iter().rev().find(|(other, _)| *other == run).map_or(0, |pair| place(*pair));
    for ((part, origin), first) in parts.iter_mut().zip(firsts) {
        match *origin {
            Origin::Log { node } => {
                let of = |line: u64, attempt: u64| {
                    let run = at(node, line);
                    place((run, attempt - first.get(&run).copied().unwrap_or(0)))
                };
                part.steps.iter_mut().for_each(|step| step.attempt = of(step.line, step.attempt));
                part.events.iter_mut().for_each(|event| event.attempt = of(event.line, event.attempt));
            }
            Origin::Summary => part.events.iter_mut().for_each(|event| {
                event.attempt =
                    if event.kind == EventKind::End { last_of(event.attempt) } else { place((event.attempt, 0)) };
            }),
            Origin::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::{Event, Step};

    fn step(number: u64, attempt: u64, line: u64) -> Step {
        Step { number, attempt, line, ..Step::default() }
    }

    fn ended(run: u64) -> Evidence {
        let event = |kind| Event {
            kind,
            attempt: run,
            at: None,
            seconds: None,
            step: None,
            rank: None,
            detail: String::new(),
            source: 0,
            line: 1,
        };
        Evidence { events: vec![event(EventKind::Start), event(EventKind::End)], ..Evidence::default() }
    }

    /// Two starts of a script; the engine was restarted within the first, and the log's reader saw that alone.
    #[test]
    fn starts_and_restarts_are_one_count() {
        let log = Evidence {
            steps: vec![step(1, 0, 2), step(2, 0, 3), step(2, 1, 5), step(3, 1, 11)],
            ..Evidence::default()
        };
        let other = Evidence { steps: vec![step(3, 0, 4)], ..Evidence::default() };
        let mut parts = vec![
            (log, Origin::Log { node: 0 }),
            (other, Origin::Log { node: 1 }),
            (ended(0), Origin::Summary),
            (ended(1), Origin::Summary),
        ];
        let runs = [
            Run { node: 0, number: 0, first: 1, last: 10 },
            Run { node: 0, number: 1, first: 11, last: u64::MAX },
            Run { node: 1, number: 0, first: 1, last: 3 },
            Run { node: 1, number: 1, first: 4, last: 9 },
        ];
        number_attempts(&mut parts, &runs);
        let attempts: Vec<u64> = parts[0].0.steps.iter().map(|step| step.attempt).collect();
        assert_eq!(attempts, [0, 0, 1, 2]);
        assert_eq!(parts[1].0.steps[0].attempt, 2);
        let of = |at: usize| -> Vec<u64> { parts[at].0.events.iter().map(|event| event.attempt).collect() };
        assert_eq!((of(2), of(3)), (vec![0, 1], vec![2, 2]));
    }

    #[test]
    fn names_of_a_log_folder() {
        assert_eq!(origin("node12.log"), Some(Origin::Log { node: 12 }));
        assert_eq!(origin("summary-node0.1.json"), Some(Origin::Summary));
        assert_eq!(origin("hook.jsonl"), Some(Origin::Other));
        for name in ["nodex.log", "torchrun", "node0.log.began", "fail"] {
            assert_eq!(origin(name), None, "{name}");
        }
    }
}
