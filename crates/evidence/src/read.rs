//! Reading one source. Rehearsals and summaries of nodes so far.

use crate::{Event, EventKind, Evidence, Format, Memory, MemoryKind, Source, Step};
use diag::{Blame, Finding, quote};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;

/// Reads a source, told what it is or left to find out. `progress` is told the bytes read so far.
pub fn read(
    path: &str,
    mut bytes: impl Read,
    format: Option<Format>,
    progress: &mut dyn FnMut(u64),
) -> Result<Evidence, Finding> {
    let refuse = |message: String| Finding::error("evidence/read", Blame::Environment, path, message);
    let shown = quote::terminal(path);
    let mut text = Vec::new();
    bytes.read_to_end(&mut text).map_err(|error| refuse(format!("cannot read `{shown}`: {error}")))?;
    progress(text.len() as u64);
    let sha256 = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let found = match value["schema"].as_str() {
        Some("shardwright/summary/1") => Some(Format::Summary),
        Some("shardwright/1") if value["losses"]["all_ranks"].is_array() => Some(Format::Rehearsal),
        _ => None,
    };
    let Some(found) = found.filter(|found| format.is_none_or(|wanted| wanted == *found)) else {
        let message = format!("nothing in `{shown}` is a figure of a run");
        return Err(refuse(message).hint("`rehearse --json` and a launch's `summary-nodeN.json` are read"));
    };
    let source = Source {
        format: found,
        path: path.to_string(),
        bytes: text.len() as u64,
        sha256,
        digits: BTreeMap::new(),
        unread: 0,
    };
    let mut evidence = Evidence { sources: vec![source], ..Evidence::default() };
    if found == Format::Summary {
        summary(&value, &mut evidence)
    } else {
        rehearsal(&value, &mut evidence)
    }
    Ok(evidence)
}

fn summary(value: &Value, evidence: &mut Evidence) {
    let event = |kind, at: Option<f64>, seconds, detail: String| Event {
        kind,
        attempt: value["restarts"].as_u64().unwrap_or(0),
        at,
        seconds,
        step: None,
        rank: None,
        detail,
        source: 0,
        line: 1,
    };
    let (began, ended) = (instant(&value["started"]), instant(&value["ended"]));
    evidence.events.push(event(EventKind::Start, began, None, String::new()));
    if let Some(end) = ended {
        let state = value["state"].as_str().unwrap_or("ended");
        let status = value["exit_status"].as_i64().map_or(String::new(), |status| format!(", exit status {status}"));
        let seconds = began.map(|began| end - began);
        evidence.events.push(event(EventKind::End, Some(end), seconds, format!("{state}{status}")));
    }
    if let Some(host) = value["host"].as_str() {
        evidence.machine.insert(format!("host of node {}", value["node"]), host.to_string());
    }
}

fn rehearsal(value: &Value, evidence: &mut Evidence) {
    let first = value["first_step"].as_u64().unwrap_or(0);
    for (at, loss) in value["losses"]["all_ranks"].as_array().into_iter().flatten().enumerate() {
        let number = first + at as u64 + 1;
        evidence.steps.push(Step { number, loss: loss.as_f64(), source: 0, line: 1, ..Step::default() });
    }
    for phase in value["phases"].as_array().into_iter().flatten() {
        let Some(bytes) = phase["peak_bytes"].as_u64() else { continue };
        evidence.memory.push(Memory {
            rank: phase["rank"].as_u64(),
            kind: MemoryKind::AllocatedPeak,
            bytes,
            resolution: 0,
            phase: phase["phase"].as_str().map(str::to_string),
            step: None,
            source: 0,
            line: 1,
        });
    }
    evidence.mark_warm_up();
}

/// Seconds since 1970 of `2026-01-31T12:00:00Z`.
fn instant(value: &Value) -> Option<f64> {
    let text = value.as_str()?.strip_suffix('Z')?;
    let parts: Vec<i64> = text.split(['-', 'T', ':']).map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [year, month, day, hour, minute, second] = parts[..] else { return None };
    // Days since 1970 of a date, years beginning in March (Howard Hinnant, chrono-compatible date algorithms).
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) as f64)
}
