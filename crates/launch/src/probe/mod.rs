//! One rank of a job on one device: a launch directory that also holds who to become, what was predicted of it and
//! the program that becomes it (`assets/probe/shardwright_probe.py`). Composes text and runs nothing.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

mod changes;
mod classes;

pub use changes::{BALANCED, Change, MOST_RANKS, changes, engine_words, worlds};
pub use classes::{Class, Correction, Held, Phase, Predicted, classes, rank_in};

use crate::emission::{Emission, File};
use crate::identity::Identity;
use crate::job::Job;
use crate::tuning::FirstStep;
use crate::{record, tree};
use case::Case;
use diag::{Blame, Finding};
use layout::Engine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Written into every `probe.json`; a key never changes meaning within it.
pub const SCHEMA: &str = "shardwright/probe/1";

const PROGRAM: &str = include_str!("../../assets/probe/shardwright_probe.py");
const SCRIPT: &str = include_str!("../../assets/probe/probe.sh");

/// Why an engine's trainer cannot be one rank by itself.
pub fn refusal(engine: Engine) -> Option<Finding> {
    let why = match engine {
        Engine::Megatron | Engine::Fsdp2 | Engine::Torchtitan => return None,
        Engine::Deepspeed => {
            "its launch runs a training script of your own, and nothing is known of what that waits for"
        }
        Engine::Nanotron => "nothing stands in for the process groups of its `ParallelContext`",
        Engine::Maxtext | Engine::XlaSpmd => "one process compiles for all devices of a slice: no rank is alone",
        Engine::Shardwright => "its ranks run on hosts: `shardwright rehearse` runs all of them",
    };
    let message = format!("`{engine}` cannot be probed: {why}");
    let finding = Finding::error("probe/engine", Blame::Engine, "engine", message);
    Some(finding.hint("--engine may be megatron, fsdp2 or torchtitan"))
}

/// What is written beside the launch.
pub struct Probe<'a> {
    /// The job as asked for.
    pub asked: &'a Case,
    /// The job whose rank runs; the launch is its.
    pub job: &'a Job<'a>,
    pub emission: &'a Emission,
    /// How the two differ.
    pub changes: &'a [Change],
    pub classes: &'a [Class],
    pub steps: u64,
    pub memory_snapshot: bool,
    /// Both jobs as typed: as asked, and as probed.
    pub typed: [&'a str; 2],
}

impl Probe<'_> {
    /// The files of a launch, and those that make a probe of it.
    pub fn files(&self, launch: Vec<File>) -> Vec<File> {
        let mut all: Vec<File> = launch.into_iter().filter(|file| file.path != record::SUMS).collect();
        let planned = serde_json::to_value(self.planned()).expect("a plan is data");
        all.push(File::new("probe.json", tree::json(&planned)));
        all.push(File::new("shardwright_probe.py", PROGRAM));
        all.push(File::script("probe.sh", SCRIPT));
        all.push(File::new(record::SUMS, record::sums(&all)));
        all
    }

    /// `probe.json`.
    pub fn planned(&self) -> Planned {
        let (job, emission) = (self.job, self.emission);
        let (asked, probed) = (&self.asked.layout, job.layout);
        Planned {
            schema: SCHEMA.to_string(),
            by: env!("CARGO_PKG_VERSION").to_string(),
            recipe: job.source.name.raw().to_string(),
            engine: emission.engine.name().to_string(),
            engine_version: record::version(job).map(str::to_string),
            lane: emission.lane.to_string(),
            mode: emission.mode.map(|mode| mode.name().to_string()),
            launch_id: Identity::of(job).launch_id,
            device: job.cluster.device.name.clone(),
            needs: needs(job),
            entry: emission.entry.clone(),
            environment: self.environment(),
            steps: self.steps,
            memory_snapshot: self.memory_snapshot,
            world: Both { asked: asked.world, probed: probed.world },
            dp: Both { asked: asked.dp.get(), probed: probed.dp.get() },
            job: Both { asked: self.typed[0].to_string(), probed: self.typed[1].to_string() },
            tokens: probed.micro_batch * probed.microbatches * job.recipe.sequence,
            first_step: FirstStep::of(job),
            changes: self.changes.to_vec(),
            classes: self.classes.to_vec(),
        }
    }

    /// What the engine reads, without the folders of a cluster's storage.
    fn environment(&self) -> BTreeMap<String, String> {
        let job = self.job;
        let places = job.policy.storage.places_on(job.cluster.device.kind);
        let is_a_place = |name: &str| places.iter().any(|place| place.variable.is_some_and(|v| v == name));
        let kept = self.emission.environment.iter().filter(|variable| !is_a_place(&variable.name));
        kept.map(|variable| (variable.name.clone(), variable.value.clone())).collect()
    }
}

/// `probe.json`: who to become, and what is predicted of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    pub schema: String,
    /// Version of this program.
    pub by: String,
    pub recipe: String,
    pub engine: String,
    pub engine_version: Option<String>,
    pub lane: String,
    pub mode: Option<String>,
    pub launch_id: String,
    /// The device that figures are predicted for.
    pub device: String,
    /// What has to be there besides, in words.
    pub needs: String,
    pub entry: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub steps: u64,
    pub memory_snapshot: bool,
    pub world: Both<u64>,
    pub dp: Both<u64>,
    /// As typed.
    pub job: Both<String>,
    /// That the rank works on in a step.
    pub tokens: u64,
    /// What the first step does that no later one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<FirstStep>,
    pub changes: Vec<Change>,
    pub classes: Vec<Class>,
}

/// Of the job asked for, and of the one that is probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Both<T> {
    pub asked: T,
    pub probed: T,
}

impl Planned {
    /// Reads a `probe.json`.
    pub fn read(text: &str) -> Result<Planned, String> {
        let planned: Planned = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match planned.schema.as_str() {
            SCHEMA => Ok(planned),
            other => Err(format!("its schema is `{}`, and `{SCHEMA}` is read", diag::quote::terminal(other))),
        }
    }
}

impl Class {
    /// The file that a probe of it writes.
    pub fn lines_file(&self) -> String {
        format!("probe-rank{}.jsonl", self.rank)
    }
}

/// What has to be there besides a device, in words.
fn needs(job: &Job) -> String {
    match crate::engines::engine_of(job) {
        Engine::Megatron => "Megatron-LM on PYTHONPATH (megatron-core 0.19.2; SHARDWRIGHT_ENGINE=its root)".to_string(),
        Engine::Torchtitan => "torchtitan 0.3.0".to_string(),
        _ => "torch 2.11 or newer".to_string(),
    }
}
