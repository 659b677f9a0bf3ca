//! One engine a file: a job in, an emission out. What the engine's own rules refuse was refused
//! before (`layout::engines`); here is only what it cannot be told.

pub mod bridge;
mod decoder;
pub mod deepspeed;
pub mod fsdp2;
mod list;
pub mod maxtext;
pub mod megatron;
pub mod nanotron;
mod reference;
pub mod torchtitan;
pub mod xla_spmd;

use crate::emission::{Emission, EnvVar};
use crate::fields;
use crate::job::{Frontend, Job};
use crate::policy::Place;
use case::{as_seam, words};
use diag::{Blame, Finding};
use layout::Engine;
use recipe::Seam;

/// Writes a job down for the engine of its layout (Megatron when none is named). Fields of the recipe that the
/// engine is not told are seams: refused with the whole list, unless they are allowed.
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    emission(job).map_err(|findings| findings.into_iter().map(hinted).collect())
}

/// What cannot be told, with the one way out that there always is where nobody named a better one.
fn hinted(finding: Finding) -> Finding {
    let hint =
        format!("change `{}`, or pick another engine: `shardwright lanes` says what each is for", finding.object);
    if finding.hint.is_some() { finding } else { finding.hint(hint) }
}

fn emission(job: &Job) -> Result<Emission, Vec<Finding>> {
    let mut emission = written(job)?;
    let missing = fields::missing(job, &emission);
    emission.seams.extend(engine_seams(job, missing)?);
    Ok(emission)
}

fn written(job: &Job) -> Result<Emission, Vec<Finding>> {
    match engine_of(job) {
        Engine::Megatron if job.frontend == Frontend::Bridge => bridge::emit(job),
        Engine::Megatron => megatron::emit(job),
        Engine::Deepspeed => deepspeed::emit(job),
        Engine::Nanotron => nanotron::emit(job),
        Engine::Maxtext => maxtext::emit(job),
        Engine::Torchtitan => torchtitan::emit(job),
        Engine::Fsdp2 => fsdp2::emit(job),
        Engine::XlaSpmd => xla_spmd::emit(job),
        engine => {
            let hint = "`shardwright rehearse` runs it; `shardwright lanes` lists the engines that are launched";
            Err(vec![refuse(engine, "nothing is emitted for it").hint(hint)])
        }
    }
}

/// The engine of a job.
pub fn engine_of(job: &Job) -> Engine {
    job.case.engine()
}

/// An engine that cannot be started.
fn refuse(engine: Engine, why: &str) -> Finding {
    Finding::error("launch/engine", Blame::Engine, engine.name(), format!("`{engine}` cannot be launched: {why}"))
}

/// What an engine has no block for, as seams where they are allowed; refused with the whole list
/// otherwise.
fn engine_seams(job: &Job, missing: Vec<Finding>) -> Result<Vec<Seam>, Vec<Finding>> {
    if missing.is_empty() || job.allows_seams() { Ok(missing.iter().map(as_seam).collect()) } else { Err(missing) }
}

/// The name of a job's lane.
fn lane_of(job: &Job) -> &'static str {
    crate::lanes::of_engine(engine_of(job)).map_or("none", |lane| lane.name)
}

/// Options that are told by variables, where compilers, kernels and libraries keep what they make, what the
/// compiler of a TPU is told, and what the policy carries along.
pub fn storage_environment(job: &Job) -> Vec<EnvVar> {
    let places = job.policy.storage.places_on(job.cluster.device.kind);
    let why = |place: &Place| match place.key {
        "hf_home" => "tokenizers and data sets are kept with the data",
        "temporary" => "temporary files never fill the root volume [preflight/root-volume]",
        _ => "compiled kernels never fill the root volume [preflight/root-volume]",
    };
    let told = words::emitted(job.layout.engine, &job.case.options);
    let told = told.filter(|(word, _)| word.place == words::Place::Environment);
    let told = told.map(|(word, value)| EnvVar::new(word.name, value, word.what));
    let kept = places.iter().filter_map(|place| Some(EnvVar::new(place.variable?, &place.path, why(place))));
    let carried = job.policy.environment.set.iter();
    told.chain(kept)
        .chain(crate::tpu::environment(job))
        .chain(carried.map(|(name, value)| EnvVar::new(name, value, "carried by the policy")))
        .collect()
}

/// The environment the job's processes are given; what the policy carries, where nothing is emitted.
pub fn environment(job: &Job) -> Vec<EnvVar> {
    emit(job).map_or_else(|_| storage_environment(job), |emission| emission.environment)
}
