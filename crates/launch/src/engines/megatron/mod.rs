//! Megatron-Core 0.19.2: the argument list, environment and script of `pretrain_hybrid.py` or
//! `pretrain_gpt.py`. Flags and defaults follow `megatron/training/arguments.py`; a value that the
//! command line would default differently is always said.

mod depth;
mod model;
mod run;
mod side;
mod spec;
mod state;
mod window;

use super::list::List;
use super::{lane_of, storage_environment};
use crate::emission::{Checkout, Emission, EnvVar, Kind, Starter};
use crate::job::Job;
use case::options::EpOverlap;
use diag::{Blame, Finding, quote};
use layout::ZeroStage;
use recipe::{Mixer, Seam};

pub use depth::Shape;
pub use model::{GLU_BLOCK, fuses_experts};
pub use spec::{MODULE as SPEC_MODULE, files as package};

/// Writes a job down for Megatron-LM's own scripts.
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    let shape = Shape::of(job);
    let arguments = arguments(job, shape)?;
    let (script, checkout) = checkout(shape.script()).entry(job.policy.job.engine_root.as_deref());
    let entry = if side::is_on(job) { side::ENTRY.to_string() } else { script };
    Ok(Emission {
        engine: layout::Engine::Megatron,
        lane: lane_of(job),
        mode: job.layout.mode,
        starter: Starter::Torchrun,
        checkout,
        entry: vec![entry],
        arguments,
        on_command_line: true,
        environment: environment(job),
        files: spec::files(job).into_iter().chain(side::files(job)).collect(),
        seams: job.seams.iter().cloned().map(behind_m).collect(),
    })
}

/// Megatron-LM's scripts, which the wheel of megatron-core does not have. Places: NeMo's images, and Megatron-LM's README.
fn checkout(script: &'static str) -> Checkout {
    Checkout {
        what: "Megatron-LM (tag core_v0.19.0)",
        variable: crate::emission::ENGINE,
        script,
        places: &["/opt/megatron-lm", "/opt/Megatron-LM", "/workspace/megatron-lm", "/workspace/Megatron-LM"],
    }
}

/// Megatron-LM's script in the folder that the policy names; our own entry imports it.
pub fn named_script(job: &Job) -> Option<String> {
    let root = job.policy.job.engine_root.as_deref();
    root.map(|root| checkout(Shape::of(job).script()).entry(Some(root)).0)
}

/// Custom mixers that are kept run where the pattern says `M`.
fn behind_m(seam: Seam) -> Seam {
    if seam.gives_up || !recipe::CUSTOM_MIXERS.contains(&seam.name) {
        return seam;
    }
    Seam { runs: "custom mixer behind the `M` symbol, one rank a replica".to_string(), ..seam }
}

/// The argument list, or every reason why there is none.
pub fn arguments(job: &Job, shape: Shape) -> Result<Vec<crate::Argument>, Vec<Finding>> {
    let mut list = List::default();
    let mut findings = side::findings(job);
    depth::arguments(job, shape, &mut list, &mut findings);
    model::arguments(job, &mut list, &mut findings);
    state::layout(job, &mut list);
    state::arguments(job, &mut list, &mut findings);
    run::arguments(job, &mut list);
    passed(job, &mut list, &mut findings);
    if findings.is_empty() { Ok(list.arguments) } else { Err(findings) }
}

/// Adds what is passed on as it was typed, in place of what the policy says of it.
fn passed(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    for words in &job.case.passed {
        let (flag, values) = (&words[0], &words[1..]);
        if let Some(said) = list.arguments.iter().find(|said| said.flag == *flag && said.kind != Kind::Policy) {
            let message = format!("`{flag}` follows from {}", said.from);
            findings.push(unsayable(flag, message).hint("change that instead"));
        }
        list.arguments.retain(|said| said.flag != *flag);
        list.many(Kind::Policy, flag, values, "--engine-args", "passed on as it stands");
    }
}

/// Whether state is shared out by Megatron-FSDP.
pub fn is_fsdp(job: &Job) -> bool {
    job.layout.zero >= ZeroStage::Two
}

/// Something the argument list has no words for.
fn unsayable(object: &str, message: impl Into<String>) -> Finding {
    Finding::error("megatron/unsayable", Blame::Engine, object, message)
}

/// Algorithms that cuBLASLt remembers by the sizes of a product. It keeps 8,192 unless told otherwise, and routed tokens
/// bring up to six products an expert and microbatch in sizes of their own.
const ALGORITHMS: u64 = 1 << 18;

/// The environment: the engine's own rule about streams, and where things are kept.
pub fn environment(job: &Job) -> Vec<EnvVar> {
    let mut all = Vec::new();
    let name = "CUDA_DEVICE_MAX_CONNECTIONS";
    if is_fsdp(job) {
        // training/arguments.py: "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS > 1 or unset."
        all.push(EnvVar::new(name, 32, "Megatron-FSDP overlaps on several queues and refuses 1"));
    } else if (job.layout.tp.splits() || job.layout.cp.splits()) && !is_blackwell(job) {
        // training/arguments.py: required before Blackwell for tensor or context parallelism.
        all.push(EnvVar::new(name, 1, "tensor or context parallel kernels must be issued in order before Blackwell"));
    } else if job.case.options.overlap.ep == EpOverlap::Microbatches {
        // training/arguments.py: "overlap_moe_expert_parallel_comm requires setting a larger CUDA_DEVICE_MAX_CONNECTIONS".
        all.push(EnvVar::new(name, 32, "expert exchanges and the compute they hide under need queues of their own"));
    }
    if fuses_experts(job) {
        // core/transformer/moe/experts.py asserts it, and Transformer Engine registers its fused operations by it.
        all.push(EnvVar::new("NVTE_CUTEDSL_FUSED_GROUPED_MLP", 1, "experts' products and activation in fused kernels"));
    }
    if job.recipe.uses(Mixer::Moe) && !fuses_experts(job) {
        let why = "products of experts have new sizes in every step: algorithms chosen once are kept";
        all.push(EnvVar::new("CUBLASLT_HEURISTICS_CACHE_CAPACITY", ALGORITHMS, why));
    }
    all.extend(crate::tuning::environment(job));
    all.extend(storage_environment(job));
    all
}

/// Whether the device is of the Blackwell generation, which the engine tests as architecture 10:
/// the first whose matrix units take block-scaled formats.
pub fn is_blackwell(job: &Job) -> bool {
    job.cluster.device.formats.iter().any(|format| format == "mxfp8")
}

/// The kind of a value that a mode put in the recipe's place: a plain flag, not a patch point.
fn replaced(job: &Job, name: &str) -> Kind {
    if job.seams.iter().any(|seam| seam.name == name) { Kind::Mode } else { Kind::RecipeNative }
}

/// Seams as comment lines.
pub fn seam_comments(job: &Job) -> String {
    job.seams
        .iter()
        .map(|s| quote::comment(&format!("# seam {}: the recipe says {}; runs: {}", s.name, s.wanted, s.runs)) + "\n")
        .collect()
}
