//! MLPerf's log lines. `mlperf_logging/mllog/mllog.py` of mlcommons/logging (6.1): `':::MLLOG {log_json}'` with `namespace`,
//! `time_ms`, `event_type` (`INTERVAL_START`, `INTERVAL_END`, `POINT_IN_TIME`), `key`, `value`, `metadata`; keys are those of
//! `constants.py`. Intervals become events with their length, settings become arguments. Steps have no line of their own.

use super::log::Log;
use super::text::{Line, behind};
use crate::{Event, EventKind};
use serde_json::Value;
use std::collections::HashMap;

#[derive(Default)]
pub struct Reader {
    /// When each open interval began.
    open: HashMap<String, f64>,
}

const MARK: &[u8] = b":::MLLOG ";

pub fn looks_like(line: &Line) -> bool {
    line.has(MARK)
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        let Some(json) = behind(line.text, MARK) else { return false };
        let value: Value = match serde_json::from_slice(json.trim_ascii()) {
            Ok(value @ Value::Object(_)) => value,
            _ => {
                log.unread(line, "no JSON object behind the mark");
                return true;
            }
        };
        let Some(key) = value["key"].as_str() else {
            log.unread(line, "an entry without a key");
            return true;
        };
        let at = value["time_ms"].as_f64().map(|ms| ms / 1e3).filter(|at| at.is_finite());
        self.entry(line, key, at, &value, log);
        true
    }

    fn entry(&mut self, line: &Line, key: &str, at: Option<f64>, value: &Value, log: &mut Log) {
        let (kind, is_start) = match key {
            "init_start" => (EventKind::Setup, true),
            "init_stop" => (EventKind::Setup, false),
            "eval_start" => (EventKind::Evaluation, true),
            "eval_stop" => (EventKind::Evaluation, false),
            "run_start" => (EventKind::Start, false),
            "run_stop" => (EventKind::End, false),
            "eval_accuracy" => return accuracy(line, at, value, log),
            _ => return setting(key, value, log),
        };
        let name = format!("{kind:?}");
        if is_start {
            if let Some(at) = at {
                self.open.insert(name, at);
            }
            return;
        }
        if kind == EventKind::Start {
            return log.started(line, at, "run_start");
        }
        let seconds = at.zip(self.open.remove(&name)).map(|(end, start)| end - start).filter(|s| *s >= 0.0);
        let step = step_of(value);
        let mut event = Event { at, seconds, step, ..log.event(kind, line, key.as_bytes()) };
        if kind == EventKind::End {
            let status = value["metadata"]["status"].as_str().unwrap_or("ended");
            let state = if status == "success" { "finished" } else { "stopped" };
            event.detail = format!("{state}: run_stop, {}", diag::quote::bytes(status.as_bytes(), 60));
        }
        log.push(event);
    }
}

/// A score has no time of its own; it is kept in the source's words.
fn accuracy(line: &Line, at: Option<f64>, value: &Value, log: &mut Log) {
    let detail = format!("eval_accuracy {} {}", value["value"], value["metadata"]);
    let event = log.event(EventKind::Evaluation, line, detail.as_bytes());
    log.push(Event { at, step: step_of(value), ..event });
}

fn step_of(value: &Value) -> Option<u64> {
    value["metadata"]["step_num"].as_u64()
}

/// What was set: a seed, a batch, a degree.
fn setting(key: &str, value: &Value, log: &mut Log) {
    let is_point = value["event_type"] == "POINT_IN_TIME";
    let text = match &value["value"] {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value["value"].to_string(),
        _ => return,
    };
    if is_point && key.len() < 80 && log.evidence.arguments.len() < 4096 {
        log.evidence.arguments.insert(diag::quote::terminal(key), diag::quote::bytes(text.as_bytes(), 400));
    }
}
