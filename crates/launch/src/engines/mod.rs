//! One engine a file: a job in, an emission out. What the engine's own rules refuse was refused
//! before (`layout::engines`); here is only what it cannot be told.

mod list;
pub mod megatron;

use crate::emission::{Emission, EnvVar};
use crate::job::Job;
use crate::policy::Place;
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
    let places = job.policy.storage.places();
    let why = |place: &Place| match place.key {
        "hf_home" => "tokenizers and data sets are kept with the data",
        "temporary" => "temporary files never fill the root volume [preflight/root-volume]",
        _ => "compiled kernels never fill the root volume [preflight/root-volume]",
    };
    let kept = places.iter().filter_map(|place| Some(EnvVar::new(place.variable?, &place.path, why(place))));
    let carried = job.policy.environment.set.iter();
    kept.chain(carried.map(|(name, value)| EnvVar::new(name, value, "carried by the policy"))).collect()
}

/// The environment the job's processes are given, without composing the rest of the emission.
pub fn environment(job: &Job) -> Vec<EnvVar> {
    match engine_of(job) {
        Engine::Megatron => megatron::environment(job),
        _ => storage_environment(job),
    }
}
