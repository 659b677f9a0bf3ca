//! JSON documents: `shardwright rehearse --json`, a launch's `summary-nodeN.json`, and `torch.cuda.memory_stats()`.

use super::log::{Log, Point, Rounded};
use super::text::{Line, moment};
use crate::MemoryKind::{Allocated, AllocatedPeak, Reserved, ReservedPeak};
use crate::{Event, EventKind, Format, Step};
use serde_json::Value;

/// Which document it is.
pub fn format_of(value: &Value) -> Option<Format> {
    match value["schema"].as_str() {
        Some("shardwright/summary/1") => return Some(Format::Summary),
        Some("shardwright/1") => {
            let is_rehearsal = value["losses"]["all_ranks"].is_array() || value["ended"].is_array();
            return is_rehearsal.then_some(Format::Rehearsal);
        }
        _ => {}
    }
    (!stats_of(value).is_empty()).then_some(Format::TorchMemoryStats)
}

/// The whole file counts as one line.
fn line() -> Line<'static> {
    Line { number: 1, rank: None, stream: 0, text: b"" }
}

/// Reads a document of a known kind.
pub fn read(value: &Value, log: &mut Log) {
    match log.format {
        Format::Summary => summary(value, log),
        Format::Rehearsal => rehearsal(value, log),
        _ => stats_of(value).into_iter().for_each(|(rank, stats)| memory_stats(rank, stats, log)),
    }
}

/// `launch/src/schedulers/summary.rs` writes it: state, status, signal, and when the node began and ended.
fn summary(value: &Value, log: &mut Log) {
    let time = |key: &str| value[key].as_str().and_then(|text| moment(text.as_bytes()));
    let (began, ended) = (time("started"), time("ended"));
    log.of_attempt(value["restarts"].as_u64().unwrap_or(0).min(1 << 32));
    log.push(Event { at: began, ..log.event(EventKind::Start, &line(), b"") });
    if let Some(end) = ended {
        let mut event = Event { at: ended, ..log.event(EventKind::End, &line(), b"") };
        event.seconds = began.map(|began| end - began);
        event.detail = diag::quote::terminal(value["state"].as_str().unwrap_or("ended"));
        if let Some(status) = value["exit_status"].as_i64() {
            event.detail += &format!(", exit status {status}");
        }
        if let Some(signal) = value["signal"].as_str() {
            event.detail += &format!(", signal {}", diag::quote::terminal(signal));
        }
        log.push(event);
    }
    if let (Some(host), Some(node)) = (value["host"].as_str(), value["node"].as_u64()) {
        log.evidence.machine.insert(format!("host of node {node}"), diag::quote::terminal(host));
    }
}

/// Losses of the run over all ranks, peaks of each rank and phase, and how ranks ended that did not finish.
fn rehearsal(value: &Value, log: &mut Log) {
    let first = value["first_step"].as_u64().unwrap_or(0).min(1 << 40);
    for (at, loss) in value["losses"]["all_ranks"].as_array().into_iter().flatten().enumerate() {
        let number = first + at as u64 + 1;
        log.step(&line(), Step { number, loss: loss.as_f64(), nan: loss.is_null(), ..Step::default() });
    }
    for phase in value["phases"].as_array().into_iter().flatten() {
        if let Some(bytes) = phase["peak_bytes"].as_u64() {
            let point = Point { phase: phase["phase"].as_str().map(diag::quote::terminal), step: None };
            log.memory(&line(), phase["rank"].as_u64(), AllocatedPeak, Rounded { bytes, resolution: 0 }, point);
        }
    }
    for ending in value["ended"].as_array().into_iter().flatten() {
        let message = ending["finding"]["message"].as_str().unwrap_or_default();
        let mut event = log.event(EventKind::Failure, &line(), message.as_bytes());
        event.rank = ending["ranks"].as_array().and_then(|ranks| ranks.first()?.as_u64());
        log.push(event);
    }
    let mut event = log.event(EventKind::End, &line(), b"");
    event.detail = if value["ended"].is_array() { "failed" } else { "finished" }.to_string();
    event.seconds = value["seconds"]["all_ranks"].as_f64();
    log.push(event);
    for key in ["dtype", "seed", "steps"] {
        let text = value[key].as_str().map_or_else(|| value[key].to_string(), diag::quote::terminal);
        log.evidence.arguments.insert(key.to_string(), text);
    }
}

/// One rank's statistics, or those of several by rank: an array, or an object whose keys end in the rank.
fn stats_of(value: &Value) -> Vec<(Option<u64>, &Value)> {
    if stat(value, "allocated_bytes", "peak").is_some() {
        return vec![(None, value)];
    }
    let all: Vec<(Option<u64>, &Value)> = match value {
        Value::Array(all) => all.iter().enumerate().map(|(rank, stats)| (Some(rank as u64), stats)).collect(),
        Value::Object(all) => all.iter().map(|(name, stats)| (rank_of(name), stats)).collect(),
        _ => Vec::new(),
    };
    let is_stats =
        |(rank, stats): &(Option<u64>, &Value)| rank.is_some() && stat(stats, "allocated_bytes", "peak").is_some();
    if all.iter().all(is_stats) { all } else { Vec::new() }
}

fn rank_of(name: &str) -> Option<u64> {
    name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

/// `memory_stats()` is flat (`allocated_bytes.all.peak`), `memory_stats_as_nested_dict()` is not.
fn stat(value: &Value, name: &str, of: &str) -> Option<u64> {
    value.get(format!("{name}.all.{of}")).or_else(|| value.get(name)?.get("all")?.get(of))?.as_u64()
}

/// `torch/cuda/memory.py`, `memory_stats`: bytes as torch's allocator holds them; retries and failures since the start.
fn memory_stats(rank: Option<u64>, stats: &Value, log: &mut Log) {
    for (name, of, kind) in [
        ("allocated_bytes", "current", Allocated),
        ("allocated_bytes", "peak", AllocatedPeak),
        ("reserved_bytes", "current", Reserved),
        ("reserved_bytes", "peak", ReservedPeak),
    ] {
        if let Some(bytes) = stat(stats, name, of) {
            log.memory(&line(), rank, kind, Rounded { bytes, resolution: 0 }, Point::default());
        }
    }
    for (key, kind) in [("num_alloc_retries", EventKind::AllocationRetry), ("num_ooms", EventKind::OutOfMemory)] {
        if let Some(count) = stats[key].as_u64().filter(|count| *count > 0) {
            let mut event = log.event(kind, &line(), b"");
            event.detail = format!("{key} {count}");
            event.rank = rank;
            log.push(event);
        }
    }
}
