//! The record. A receipt is never changed: a later one supersedes it, and says why.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

use crate::canonical::{canonical, sha256};
use crate::launched::About;
use evidence::Evidence;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Written into every receipt; a key never changes meaning within it.
pub const SCHEMA: &str = "shardwright/receipt/1";

/// One run, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub schema: String,
    pub kind: Kind,
    /// When it was recorded: RFC 3339, UTC, seconds.
    pub recorded: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<Superseded>,
    pub identity: Identity,
    /// The job, as `shardwright/case/1` reads it back; none for a run that was not launched by us.
    pub case: Option<Value>,
    /// Arguments in the order they were launched with.
    pub arguments: Vec<Argument>,
    /// What was asked of the runtime besides: compile policy, attention backend, precision, dispatcher, overlap,
    /// wrapper, optimizer, and the environment that was set (`launch.json`, `overlay`).
    pub overlay: Value,
    /// Versions that the launch was written for; what ran is the evidence's.
    pub versions: BTreeMap<String, String>,
    /// What was said before it ran.
    pub prediction: Option<Prediction>,
    pub evidence: Evidence,
}

/// Why a text is no receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is none, or no longer.
    Damaged(String),
    /// A later version of this program wrote it, under this schema.
    Later(String),
}

/// How a receipt came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A job on its own devices.
    Run,
    /// One rank of a job on one device, the others stood in for: no figure of an exchange is in it.
    Probe,
    /// `shardwright rehearse`: a small model on this machine.
    Rehearsal,
}

/// A receipt that is no longer believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Superseded {
    pub id: String,
    pub reason: String,
}

/// Who a run is, layer by layer. Hashes are of canonical text; `docs/receipts.md` says what enters each, and what
/// none can catch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub recipe: String,
    /// Of the recipe as TOML, everything in it.
    pub recipe_sha256: String,
    /// Of its sizes: the recipe without name, source, pattern, depth, modes and features.
    pub shape_sha256: String,
    /// The pattern, expanded to one symbol a layer.
    pub pattern: String,
    /// Features that are on.
    pub features: Vec<String>,
    /// Of the tables of the features that are on.
    pub features_sha256: String,
    pub mode: Option<String>,
    pub lane: Option<String>,
    pub engine: Option<String>,
    /// What runs instead of what the recipe says, by name.
    pub seams: Vec<String>,
    /// Device, nodes, island and degrees in one line (`launch.json`, `topology`).
    pub topology: Option<String>,
    /// `launch.json`, `identity.launch_id`.
    pub launch_id: Option<String>,
}

/// A flag with its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argument {
    pub flag: String,
    pub values: Vec<String>,
}

/// What was promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// Version of this program.
    pub by: String,
    /// Hash of the calibrated hardware file it was made with; none for what ships.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    pub step: Option<StepPrediction>,
    /// `fits`, `tight`, `does not fit` or `unmodelled`.
    pub verdict: String,
    /// One for each class of ranks that hold the same.
    pub ranks: Vec<RankPrediction>,
}

/// A step's time as it was promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepPrediction {
    pub seconds: f64,
    /// Where 8 of 10 such runs lie; none where nobody measured such.
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub tokens: u64,
    pub devices: u64,
    /// Seconds by part, as `fit` prints them.
    pub parts: BTreeMap<String, f64>,
    /// Of a probe: kernels alone, and host alone, of one rank with the others stood in for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_seconds: Option<f64>,
}

/// What one class of ranks was promised to hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankPrediction {
    pub stage: u64,
    pub first_rank: u64,
    pub last_rank: u64,
    pub allocated_peak: u64,
    pub reserved_peak: u64,
    /// Outside torch's allocator.
    pub outside: u64,
    pub host: u64,
    /// Allocated bytes at the peak by line.
    pub lines: BTreeMap<String, u64>,
    /// Allocated after each phase, and the most within it, in the order they run.
    pub phases: Vec<(String, u64, u64)>,
}

impl Receipt {
    /// Puts together what was said of a run and what was read of it.
    pub fn new(kind: Kind, recorded: String, about: About, mut evidence: Evidence) -> Receipt {
        let About { identity, case, arguments, overlay, versions, prediction } = about;
        if kind == Kind::Run
            && let Some(step) = prediction.as_ref().and_then(|said| said.step.as_ref())
        {
            time_by_rate(&mut evidence, step);
        }
        Receipt {
            schema: SCHEMA.to_string(),
            kind,
            recorded,
            supersedes: None,
            identity,
            case,
            arguments,
            overlay,
            versions,
            prediction,
            evidence,
        }
    }

    /// Reads a receipt's text. A later schema is told apart from what is no receipt.
    pub fn read(text: &str) -> Result<Receipt, Unread> {
        let damaged = |error: serde_json::Error| Unread::Damaged(format!("it does not read: {error}"));
        let value: Value = serde_json::from_str(text).map_err(damaged)?;
        match value["schema"].as_str() {
            Some(SCHEMA) => serde_json::from_value(value).map_err(damaged),
            Some(schema) if schema.starts_with("shardwright/receipt/") => Err(Unread::Later(schema.to_string())),
            _ => Err(Unread::Damaged(format!("its schema is not `{SCHEMA}`"))),
        }
    }

    /// The hash of what it says of its run, whenever it was recorded and whatever it supersedes.
    pub fn content_sha256(&self) -> String {
        Receipt { recorded: String::new(), supersedes: None, ..self.clone() }.id()
    }

    /// The file's text: canonical JSON and a line end.
    pub fn text(&self) -> String {
        let value = serde_json::to_value(self).expect("a receipt is data");
        canonical(&value) + "\n"
    }

    /// Its name: the hash of its text.
    pub fn id(&self) -> String {
        sha256(self.text())
    }
}

/// torchtitan prints tokens a second of one device, and no time of a step.
fn time_by_rate(evidence: &mut Evidence, said: &StepPrediction) {
    let tokens = said.tokens as f64 / said.devices.max(1) as f64;
    for step in evidence.steps.iter_mut().filter(|step| step.seconds.is_none()) {
        step.seconds = step.device_tokens_per_second.filter(|rate| *rate > 0.0).map(|rate| tokens / rate);
    }
}
