//! The record of a launch: everything that says what ran, with a hash of each file, so that a
//! receipt can later prove it. Composed here; the command line writes it.

use crate::emission::{Emission, EnvVar, File};
use crate::header::Header;
use crate::identity::Identity;
use crate::job::Job;
use crate::lanes;
use crate::packages;
use crate::schedulers::{Scheduler, command};
use crate::tree;
use case::Case;
use diag::quote;
use memory::fit::{Entry, Fit, Least, PhasePeak, RankClass, Verdict};
use replay::Unmodelled;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use units::Bytes;

/// Versions of engines the emission was written for.
pub const VERSIONS: &[(&str, &str)] = &[
    ("megatron", "megatron-core 0.19.2"),
    ("bridge", "megatron-bridge 0.6.2"),
    ("torchtitan", "torchtitan 0.3.0"),
    ("deepspeed", "deepspeed 0.19.8"),
    ("nanotron", "nanotron main 2411b02 (2026-04-07)"),
    ("maxtext", "maxtext 0.2.5"),
    ("fsdp2", "torch 2.15"),
    ("xla-spmd", "torch_xla or jax as pinned in the policy"),
];

/// What the memory model said of the plan, and whether it was overridden.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct MemoryVerdict {
    /// `fits`, `tight`, `does not fit`, or `unmodelled`.
    pub verdict: String,
    /// Headroom of the worst rank, or why nothing was priced.
    pub detail: String,
    /// Whether the launch went on against a verdict of `does not fit` or `unmodelled`.
    pub overridden: bool,
    /// Everything the device of the worst rank must hold; none where nothing was priced.
    pub total_bytes: Option<u64>,
    /// Where nothing was priced, what the fullest rank holds at least.
    #[serde(default)]
    pub at_least_bytes: Option<u64>,
    /// The most its tensors hold.
    pub allocated_peak_bytes: Option<u64>,
    /// The most its allocator holds.
    pub reserved_peak_bytes: Option<u64>,
    /// The same of every stage.
    pub by_stage: Vec<StageMemory>,
}

/// What one rank of a stage holds.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StageMemory {
    /// The stage.
    pub stage: usize,
    /// Its first rank.
    pub first_rank: u64,
    /// Its last.
    pub last_rank: u64,
    /// Everything its device must hold.
    pub total_bytes: u64,
    /// The most its tensors hold.
    pub allocated_peak_bytes: u64,
    /// The most its allocator holds.
    pub reserved_peak_bytes: u64,
    /// What its device holds besides: context, libraries, communicators.
    pub outside_bytes: u64,
    /// What its host holds for it.
    pub host_bytes: u64,
    /// What its tensors hold at their peak, by line; lines of nothing are left out.
    pub lines: BTreeMap<String, u64>,
    /// Phases in order.
    pub phases: Vec<PhaseMemory>,
}

/// What the tensors of a rank hold in one phase.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PhaseMemory {
    /// Its name, as `fit` prints it.
    pub phase: String,
    /// At its end.
    pub allocated_bytes: u64,
    /// At most.
    pub allocated_peak_bytes: u64,
}

impl StageMemory {
    fn of(class: &RankClass) -> StageMemory {
        let of_tensors = class.lines.iter().filter(|a| matches!(a.entry, Entry::Ledger(_)) && a.bytes > 0);
        let phase = |phase: &PhasePeak| PhaseMemory {
            phase: phase.kind.to_string(),
            allocated_bytes: phase.allocated,
            allocated_peak_bytes: phase.allocated_peak,
        };
        StageMemory {
            stage: class.stage,
            first_rank: class.first_rank,
            last_rank: class.first_rank + class.num_ranks - 1,
            total_bytes: class.total(),
            allocated_peak_bytes: class.allocated_peak,
            reserved_peak_bytes: class.reserved_peak,
            outside_bytes: class.outside,
            host_bytes: class.offload.host_bytes,
            lines: of_tensors.map(|amount| (amount.entry.name().to_string(), amount.bytes)).collect(),
            phases: class.phases.iter().map(phase).collect(),
        }
    }
}

impl MemoryVerdict {
    /// A priced plan.
    pub fn of(fit: &Fit, overridden: bool) -> MemoryVerdict {
        let worst = fit.worst();
        let left = worst.headroom as f64 / Bytes::GIB.0 as f64;
        let host = match fit.host.has_bytes.filter(|has| fit.host.node_bytes > *has) {
            Some(has) => format!("; a node's host {}, of {} it usually has", Bytes(fit.host.node_bytes), Bytes(has)),
            None => String::new(),
        };
        MemoryVerdict {
            verdict: fit.verdict.name().to_string(),
            detail: format!("stage {} holds {}, headroom {left:.1} GiB{host}", worst.stage, Bytes(worst.total())),
            overridden,
            total_bytes: Some(worst.total()),
            at_least_bytes: None,
            allocated_peak_bytes: Some(worst.allocated_peak),
            reserved_peak_bytes: Some(worst.reserved_peak),
            by_stage: fit.classes.iter().map(StageMemory::of).collect(),
        }
    }

    /// A plan that no ledger prices: what can be counted of it still says when it cannot fit.
    pub fn unmodelled(case: &Case, reason: &Unmodelled, overridden: bool) -> MemoryVerdict {
        let least = Least::of(case);
        let device = case.cluster.as_ref().map(|cluster| &cluster.device);
        let is_over = device.is_some_and(|device| least.total() > device.visible_bytes());
        let against = device.map_or(String::new(), |device| {
            let than = if is_over { "more than" } else { "of" };
            format!(", {than} the {} that {} shows", Bytes(device.visible_bytes()), device.name)
        });
        MemoryVerdict {
            verdict: if is_over { Verdict::DoesNotFit.name() } else { "unmodelled" }.to_string(),
            detail: format!("{reason}; a rank of stage {} holds {}{against}", least.stage, least.words()),
            overridden,
            total_bytes: None,
            at_least_bytes: Some(least.total()),
            allocated_peak_bytes: None,
            reserved_peak_bytes: None,
            by_stage: Vec::new(),
        }
    }

    /// Whether nothing was priced of the plan.
    pub fn is_unmodelled(&self) -> bool {
        self.total_bytes.is_none()
    }

    /// Whether no device of the plan holds it.
    pub fn does_not_fit(&self) -> bool {
        self.verdict == Verdict::DoesNotFit.name()
    }
}

/// What was predicted of a launch.
pub struct Predicted<'a> {
    /// What its ranks hold.
    pub memory: &'a MemoryVerdict,
    /// How long a step takes, with its parts; or why nobody says.
    pub step: Value,
    /// The job itself, to be read back.
    pub case: Value,
}

/// The version of a job's engine that emissions are written for.
pub fn version(job: &Job) -> Option<&'static str> {
    let name = match crate::engines::engine_of(job) {
        layout::Engine::Megatron if job.frontend == crate::Frontend::Bridge => "bridge",
        engine => engine.name(),
    };
    VERSIONS.iter().find(|(known, _)| *known == name).map(|(_, version)| *version)
}

/// SHA-256 in hexadecimal.
pub fn hash(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What was asked of the runtime besides the model: a receipt later says what really ran beside it.
pub fn overlay(case: &Case, environment: &[EnvVar]) -> Value {
    let variables: serde_json::Map<String, Value> =
        environment.iter().map(|variable| (variable.name.clone(), json!(variable.value))).collect();
    let header = Header::of(case);
    json!({
        "compile": header.compile, "attention_backend": header.attention, "precision": header.precision,
        "dispatcher": header.dispatcher, "overlap": header.overlap, "wrapper": header.wrapper,
        "optimizer": header.optimizer, "environment": variables,
    })
}

/// Every file of the launch directory: the job's own, and the record's.
pub fn files(job: &Job, emission: &Emission, scheduler: Scheduler, predicted: &Predicted, plan: Value) -> Vec<File> {
    let mut all = emission.files.clone();
    let pretty = tree::json;
    all.push(File::new("plan.json", pretty(&plan)));
    all.push(File::new("recipe.toml", job.source.to_toml()));
    all.push(File::new("arguments.json", pretty(&json!(emission.arguments))));
    let environment: String =
        emission.environment.iter().map(|v| format!("{}={}\n", v.name, quote::shell(&v.value))).collect();
    all.push(File::new("environment.env", environment));
    let hashes: serde_json::Map<String, Value> =
        all.iter().map(|file| (file.path.clone(), hash(&file.contents).into())).collect();
    let record = json!({
        "schema": "shardwright/launch/1",
        "recipe": job.source.name, "identity": Identity::of(job).to_json(job), "engine": emission.engine.name(), "lane": emission.lane,
        "mode": emission.mode.map(|m| m.name()), "frontend": job.frontend.name(), "scheduler": scheduler.name(),
        "command": command(scheduler, job), "topology": lanes::topology(job.cluster, job.layout),
        "memory": predicted.memory, "step": predicted.step, "case": predicted.case, "seams": emission.seams,
        "unfilled_seams": job.unfilled(emission.seams.iter()),
        "packages": packages::of(job, emission).iter().map(|package| package.requirement()).collect::<Vec<_>>(),
        "overlay": overlay(job.case, &emission.environment), "pins": job.policy.pins,
        "versions": { "shardwright": env!("CARGO_PKG_VERSION"), "engine": version(job) },
        "sha256": hashes,
    });
    all.push(File::new("launch.json", pretty(&record)));
    all.push(File::new(SUMS, sums(&all)));
    all
}

/// Every other file with its hash, as `sha256sum -c` reads it.
pub(crate) const SUMS: &str = "SHA256SUMS";

pub(crate) fn sums(files: &[File]) -> String {
    files.iter().map(|file| format!("{}  {}\n", hash(&file.contents), file.path)).collect()
}
