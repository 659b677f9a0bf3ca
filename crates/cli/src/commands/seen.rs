//! `--trace` and `--memory-snapshot` of `fit` and `plan`: a job written down for viewers.

use super::fit::allowed;
use super::typed;
use crate::args::SeenArgs;
use crate::files::{write_bytes, write_file};
use crate::outcome::Refusal;
use crate::table::wrap;
use crate::{perfetto, snapshot};
use case::Case;
use cost::Unpriced;
use diag::{Blame, Finding};
use memory::fit::record;
use replay::Unmodelled;
use serde_json::{Value, json};
use std::path::Path;
use units::exact;
use work::{Limit, Work};

/// Nanoseconds of one core for a simulated pass: twice what a step of 16 million takes (`fit llama3-8b --on 8xH200
/// --pp 8 --microbatches 1000000 --trace`, an optimised build).
const NANOSECONDS: u64 = 100;

/// What was written: sentences for people, and keys for machines.
#[derive(Default)]
pub struct Written {
    text: String,
    json: Vec<(&'static str, Value)>,
}

impl Written {
    /// The sentences, apart from what stands above them.
    pub fn paragraph(&self) -> String {
        if self.text.is_empty() { String::new() } else { format!("\n{}", self.text) }
    }

    /// Adds the keys to an answer.
    pub fn into_json(self, answer: &mut Value) {
        self.json.into_iter().for_each(|(key, value)| answer[key] = value);
    }
}

/// Writes what is asked for of a job whose worst ranks are those of `stage`.
pub fn write(args: &SeenArgs, case: &Case, stage: usize, limit: &Limit) -> Result<Written, Refusal> {
    let mut written = Written::default();
    if let Some(path) = &args.trace {
        let (text, json) = write_trace(path, case, limit)?;
        written.text += &text;
        written.json.push(("trace", json));
    }
    if let Some(path) = &args.memory_snapshot {
        let (text, json) = write_snapshot(path, case, stage, limit)?;
        written.text += &text;
        written.json.push(("memory_snapshot", json));
    }
    Ok(written)
}

fn unpriced(reason: &Unpriced) -> Refusal {
    Finding::error("trace/unpriced", Blame::Engine, reason.what.clone(), format!("there is no step to draw: {reason}"))
        .hint("leave --trace out, or price another engine or device; docs/time.md says what has a price")
        .into()
}

fn unrecorded(reason: &Unmodelled) -> Refusal {
    let message = format!("there is no history of {} to write: {}", reason.what, reason.why);
    Finding::error("snapshot/unmodelled", Blame::Engine, reason.what.clone(), message)
        .hint("leave --memory-snapshot out, or price another engine with --engine")
        .into()
}

fn write_trace(path: &Path, case: &Case, limit: &Limit) -> Result<(String, Value), Refusal> {
    let blocks = cost::trace::blocks(&case.layout).map_err(|reason| unpriced(&reason))?;
    let predicted = Work { bytes: 0, operations: blocks.saturating_mul(NANOSECONDS) };
    limit.check("simulating every pass of a step", predicted, "fewer --microbatches")?;
    let trace = cost::trace(case, perfetto::MOST_SLICES).map_err(|reason| unpriced(&reason))?;
    let ranks = case.layout.world / case.layout.pp.get();
    let has_chunks = case.stages.chunks.len() > trace.stages.len();
    write_file(path, &perfetto::json(&trace, &typed(case), ranks, has_chunks))?;
    let (slices, drawn) = (trace.slices.len() as u64, perfetto::drawn(trace.detail));
    let text = format!(
        "`{}` has the step in {} slices ({drawn}): open it in ui.perfetto.dev",
        diag::quote::terminal(&path.display().to_string()),
        exact(slices)
    );
    let json = json!({ "file": path.display().to_string(), "slices": slices, "drawn": drawn });
    Ok((wrap(&text, "", 80), json))
}

fn write_snapshot(path: &Path, case: &Case, stage: usize, limit: &Limit) -> Result<(String, Value), Refusal> {
    allowed(case, limit, 1)?;
    let recorded = record(case, stage, snapshot::MOST_EVENTS).map_err(|reason| unrecorded(&reason))?;
    let recording = recorded.recorder.read();
    write_bytes(path, &snapshot::pickle(&recording, &typed(case)))?;
    let mut notes = vec![format!("stage {stage}'s")];
    if recording.forgotten > 0 {
        notes.push(format!("the last, after {} that are left out", exact(recording.forgotten)));
    }
    if recorded.leaves_out {
        notes.push("without microbatches that repeat what others did".to_string());
    }
    let (events, said) = (recording.events.len() as u64, notes.join(", "));
    let text = format!(
        "`{}` has {} events of the allocator ({said}): open it in pytorch.org/memory_viz",
        diag::quote::terminal(&path.display().to_string()),
        exact(events)
    );
    let json = json!({
        "file": path.display().to_string(), "stage": stage, "events": events,
        "events_left_out": recording.forgotten, "leaves_out_microbatches": recorded.leaves_out,
    });
    Ok((wrap(&text, "", 80), json))
}
