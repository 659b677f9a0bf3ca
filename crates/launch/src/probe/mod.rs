//! One rank of a job on one device: a launch directory that also holds who to become, what was predicted of it and
//! the program that becomes it (`assets/probe/shardwright_probe.py`). Composes text and runs nothing.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

mod changes;
mod classes;

pub use changes::{BALANCED, Change, MOST_RANKS, changes, engine_words, worlds};
pub use classes::{Class, classes, rank_in};

use crate::emission::{Emission, File};
use crate::identity::Identity;
use crate::job::Job;
use crate::{record, tree};
use case::Case;
use diag::{Blame, Finding};
use layout::Engine;
use serde_json::{Map, Value, json};

/// Written into every `probe.json`; a key never changes meaning within it.
pub const SCHEMA: &str = "shardwright/probe/1";

const PROGRAM: &str = include_str!("../../assets/probe/shardwright_probe.py");
const SCRIPT: &str = include_str!("../../assets/probe/probe.sh");

/// Why an engine's trainer cannot be one rank by itself.
pub fn refusal(engine: Engine) -> Option<Finding> {
    let why = match engine {
        Engine::Megatron | Engine::Fsdp2 | Engine::Torchtitan => return None,
        Engine::Deepspeed => "its launch runs a training script of your own, and nothing is known of what that waits for",
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
        all.push(File::new("probe.json", tree::json(&self.json())));
        all.push(File::new("shardwright_probe.py", PROGRAM));
        all.push(File::script("probe.sh", SCRIPT));
        all.push(File::new(record::SUMS, record::sums(&all)));
        all
    }

    /// `probe.json`.
    pub fn json(&self) -> Value {
        let (job, emission) = (self.job, self.emission);
        let version = record::version(job);
        let (asked, probed) = (&self.asked.layout, job.layout);
        json!({
            "schema": SCHEMA, "by": env!("CARGO_PKG_VERSION"), "recipe": job.source.name,
            "engine": emission.engine.name(), "engine_version": version, "lane": emission.lane,
            "mode": emission.mode.map(|mode| mode.name()), "launch_id": Identity::of(job).launch_id,
            "device": job.cluster.device.name, "needs": needs(job),
            "entry": emission.entry, "environment": self.environment(),
            "steps": self.steps, "memory_snapshot": self.memory_snapshot,
            "world": { "asked": asked.world, "probed": probed.world },
            "dp": { "asked": asked.dp.get(), "probed": probed.dp.get() },
            "job": { "asked": self.typed[0], "probed": self.typed[1] },
            "changes": self.changes, "classes": self.classes,
        })
    }

    /// What the engine reads, without the folders of a cluster's storage.
    fn environment(&self) -> Map<String, Value> {
        let job = self.job;
        let places = job.policy.storage.places_on(job.cluster.device.kind);
        let is_a_place = |name: &str| places.iter().any(|place| place.variable.is_some_and(|v| v == name));
        let kept = self.emission.environment.iter().filter(|variable| !is_a_place(&variable.name));
        kept.map(|variable| (variable.name.clone(), json!(variable.value))).collect()
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
