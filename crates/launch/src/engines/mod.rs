//! One engine a file: a job in, an emission out. What the engine's own rules refuse was refused
//! before (`layout::engines`); here is only what it cannot be told.

mod list;
pub mod megatron;

use crate::emission::{Emission, EnvVar};
use crate::job::Job;
use diag::{Blame, Finding};
use layout::Engine;

/// Writes a job down for the engine of its layout (Megatron when none is named).
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    match engine_of(job) {
        Engine::Megatron => megatron::emit(job),
        engine => Err(vec![refuse(engine, "nothing is emitted for it")]),
    }
}

/// The engine of a job.
pub fn engine_of(job: &Job) -> Engine {
    job.layout.engine.unwrap_or(Engine::Megatron)
}

/// An engine that cannot be started.
fn refuse(engine: Engine, why: &str) -> Finding {
    Finding::error("launch/engine", Blame::Engine, engine.name(), format!("`{engine}` cannot be launched: {why}"))
}

/// The lane of a job.
fn lane_of(_job: &Job) -> &'static str {
    "nvidia-pretraining"
}

/// Where compilers, kernels and libraries keep what they make, and what the policy carries along.
pub fn storage_environment(job: &Job) -> Vec<EnvVar> {
    let storage = &job.policy.storage;
    let below = |folder: &str, name: &str| format!("{}/{name}", folder.trim_end_matches('/'));
    let cache = "compiled kernels never fill the root volume [policy/root-volume]";
    let mut all = vec![
        EnvVar::new("TRITON_CACHE_DIR", below(&storage.caches, "triton"), cache),
        EnvVar::new("TORCHINDUCTOR_CACHE_DIR", below(&storage.caches, "inductor"), cache),
        EnvVar::new("CUDA_CACHE_PATH", below(&storage.caches, "cuda"), cache),
        EnvVar::new("HF_HOME", below(&storage.data, "huggingface"), "tokenizers and data sets are kept with the data"),
        EnvVar::new("TMPDIR", &storage.temporary, "temporary files never fill the root volume [policy/root-volume]"),
    ];
    all.extend(job.policy.environment.iter().map(|(name, value)| EnvVar::new(name, value, "carried by the policy")));
    all
}
