//! Lines of our own programs: `shardwright_receipt.py`, which a training script imports, the probe's, and
//! `rehearse --stats`. One JSON object a line, with `"schema": "shardwright/hook/1"` and a `kind`; docs/receipts.md lists
//! kinds and keys. Bytes are whole numbers, times are seconds. A key that nobody reads is left alone; a kind that nobody
//! knows is counted as unread.

use super::log::{Log, Point, Rounded};
use super::text::Line;
use crate::MemoryKind::{self, Allocated, AllocatedPeak, DeviceUsed, DeviceUsedPeak, HostUsed, Reserved, ReservedPeak};
use crate::{Bench, Event, EventKind, Format, Kernel, Step, TensorStat};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Of every line.
pub const SCHEMA: &str = "shardwright/hook/1";

#[derive(Default)]
pub struct Reader;

pub fn looks_like(line: &Line) -> bool {
    line.text.trim_ascii_start().starts_with(b"{") && line.has(b"shardwright/hook/1")
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        let text = line.text.trim_ascii();
        if !text.starts_with(b"{") {
            return false;
        }
        let value: Value = match serde_json::from_slice(text) {
            Ok(value @ Value::Object(_)) => value,
            _ => {
                log.unread(line, "no JSON object");
                return true;
            }
        };
        if value.get("schema").is_some_and(|schema| schema != SCHEMA) {
            log.unread(line, "a schema that is not read here");
            return true;
        }
        if one(line, &value, log).is_none() {
            log.unread(line, "a kind or a key that cannot be read");
        }
        true
    }
}

/// A word of one of our enums.
fn word<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

fn float(value: &Value) -> Option<f64> {
    // JSON has no word for what is no number; Python's writer puts `NaN` there, which is not JSON, ours a text.
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn finite(value: &Value) -> Option<f64> {
    float(value).filter(|number| number.is_finite())
}

fn one(line: &Line, value: &Value, log: &mut Log) -> Option<()> {
    let rank = value["rank"].as_u64();
    let at = finite(&value["at"]);
    match value["kind"].as_str()? {
        "start" => start(line, value, log),
        "step" => step(line, value, at, log)?,
        "memory" => memory(line, value, rank, log)?,
        "tensor" => {
            let nonfinite = value["nonfinite"].as_u64().unwrap_or(0);
            let stat = TensorStat {
                step: value["step"].as_u64()?,
                path: diag::quote::terminal(value["path"].as_str()?),
                kind: word(&value["tensor"])?,
                // Where elements are no numbers, neither is their norm.
                norm: finite(&value["norm"]).or((nonfinite > 0).then_some(f64::INFINITY))?,
                nonfinite,
                source: 0,
                line: line.number,
            };
            log.evidence.tensors.push(stat);
        }
        "ran" => {
            let what = diag::quote::terminal(value["what"].as_str()?);
            log.evidence.ran.insert(what, diag::quote::terminal(value["value"].as_str()?));
        }
        "kernel" => log.evidence.kernels.push(Kernel {
            rank: rank.unwrap_or(0),
            name: diag::quote::terminal(value["name"].as_str()?),
            calls: value["calls"].as_u64()?,
            seconds: finite(&value["seconds"])?,
            source: 0,
        }),
        "bench" => bench(line, value, rank, log)?,
        "profile" => profile(line, value, rank, log)?,
        "event" => {
            let kind: EventKind = word(&value["event"])?;
            let mut event = Event { at, rank, ..log.event(kind, line, b"") };
            event.seconds = finite(&value["seconds"]);
            event.step = value["step"].as_u64();
            event.detail = said(value);
            log.push(event);
        }
        "end" => {
            let status = value["status"].as_str()?;
            let mut event = Event { at, rank, ..log.event(EventKind::End, line, b"") };
            let said = said(value);
            let is_whole = matches!(status, "ok" | "finished");
            event.detail = if is_whole { "finished".to_string() } else { diag::quote::terminal(status) };
            if !said.is_empty() && !is_whole {
                event.detail += &format!(": {said}");
            }
            log.push(event);
        }
        _ => return None,
    }
    Some(())
}

/// The phase and the words of an event.
fn said(value: &Value) -> String {
    let text = |key: &str| value[key].as_str().map(|text| diag::quote::bytes(text.as_bytes(), 400)).unwrap_or_default();
    let (phase, detail) = (text("phase"), text("detail"));
    match (phase.as_str(), detail.as_str()) {
        ("", _) => detail,
        (_, "") => format!("in {phase}"),
        _ => format!("in {phase}: {detail}"),
    }
}

fn start(line: &Line, value: &Value, log: &mut Log) {
    if value.get("asked_world").is_some() {
        log.format = Format::Probe;
    }
    if let Some(attempt) = value["attempt"].as_u64().filter(|attempt| *attempt < 1 << 32) {
        log.of_attempt(attempt);
    }
    let at = finite(&value["at"]);
    let detail = value["engine"].as_str().map(diag::quote::terminal).unwrap_or_default();
    log.started(line, at, &detail);
    for (key, into) in [("versions", &mut log.evidence.versions), ("machine", &mut log.evidence.machine)] {
        for (name, text) in value[key].as_object().into_iter().flatten() {
            let text = text.as_str().map_or_else(|| text.to_string(), str::to_string);
            into.insert(diag::quote::terminal(name), diag::quote::terminal(&text));
        }
    }
    if let Some(world) = value["world"].as_u64() {
        log.evidence.machine.insert("world".to_string(), world.to_string());
    }
}

fn step(line: &Line, value: &Value, at: Option<f64>, log: &mut Log) -> Option<()> {
    let mut step = Step { number: value["number"].as_u64().or_else(|| value["step"].as_u64())?, at, ..Step::default() };
    step.seconds = finite(&value["seconds"]);
    step.loss = float(&value["loss"]);
    step.grad_norm = float(&value["grad_norm"]);
    step.tokens_per_second = finite(&value["tokens_per_second"]);
    step.device_tokens_per_second = finite(&value["device_tokens_per_second"]);
    step.tflops = finite(&value["tflops"]);
    step.learning_rate = finite(&value["learning_rate"]);
    step.samples = value["samples"].as_u64();
    step.skipped = value["skipped"] == true;
    step.nan = value["nan"] == true;
    if let Some(is_warm_up) = value["warm_up"].as_bool() {
        log.has_warm_up = true;
        step.warm_up = is_warm_up;
    }
    if let Some(seconds) = finite(&value["host_seconds"]) {
        step.others.insert("host_seconds".to_string(), seconds);
    }
    for (name, figure) in value["others"].as_object().into_iter().flatten().take(64) {
        if let Some(figure) = float(figure) {
            step.others.insert(diag::quote::terminal(name), figure);
        }
    }
    log.step(line, step);
    Some(())
}

fn memory(line: &Line, value: &Value, rank: Option<u64>, log: &mut Log) -> Option<()> {
    const KINDS: [(&str, MemoryKind); 7] = [
        ("allocated", Allocated),
        ("allocated_peak", AllocatedPeak),
        ("reserved", Reserved),
        ("reserved_peak", ReservedPeak),
        ("device_used", DeviceUsed),
        ("device_used_peak", DeviceUsedPeak),
        ("host_used", HostUsed),
    ];
    let (phase, step) = (value["phase"].as_str().map(diag::quote::terminal), value["step"].as_u64());
    let mut is_any = false;
    for (key, kind) in KINDS {
        if let Some(bytes) = value[key].as_u64() {
            is_any = true;
            let held = Rounded { bytes, resolution: 0 };
            log.memory_as_it_is(line, rank, kind, held, Point { phase: phase.clone(), step });
        }
    }
    if let Some(retries) = value["retries"].as_u64().filter(|count| *count > 0) {
        let mut event = log.event(EventKind::AllocationRetry, line, b"");
        event.detail = format!("{retries} since the start");
        (event.rank, event.step) = (rank, step);
        log.push_repeated("allocation retries", event);
    }
    is_any.then_some(())
}

fn bench(line: &Line, value: &Value, rank: Option<u64>, log: &mut Log) -> Option<()> {
    let name = diag::quote::terminal(value["name"].as_str()?);
    if value.get("absent").is_some() {
        return Some(());
    }
    log.evidence.benches.push(Bench {
        rank: rank.unwrap_or(0),
        name,
        calls: value["calls"].as_u64().unwrap_or(1),
        seconds: finite(&value["seconds"])?,
        issue_seconds: finite(&value["issue_seconds"]),
        bytes: value["bytes"].as_u64(),
        flops: value["flops"].as_u64(),
        source: 0,
        line: line.number,
    });
    Some(())
}

/// What the time of a profiled step is kept as in which the device had something to do.
pub const DEVICE_BUSY: &str = "profiled step, device busy";

/// The step under the profiler: its length, and how long the device was busy in it.
fn profile(line: &Line, value: &Value, rank: Option<u64>, log: &mut Log) -> Option<()> {
    for (name, key) in [("profiled step", "seconds"), (DEVICE_BUSY, "busy_seconds")] {
        log.evidence.benches.push(Bench {
            rank: rank.unwrap_or(0),
            name: name.to_string(),
            calls: 1,
            seconds: finite(&value[key])?,
            issue_seconds: None,
            bytes: None,
            flops: None,
            source: 0,
            line: line.number,
        });
    }
    Some(())
}
