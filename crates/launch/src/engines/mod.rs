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
use crate::policy::{Decay, Place};
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
    let refused: Vec<Finding> = rates(job).into_iter().chain(structure(job)).chain(kept(job)).collect();
    if !refused.is_empty() {
        return Err(refused);
    }
    let mut emission = written(job)?;
    let missing = fields::missing(job, &emission);
    emission.seams.extend(engine_seams(job, missing)?);
    Ok(emission)
}

/// What of the policy's learning rate and batch an engine has no word for. Megatron-Core 0.19.2 has `--lr-decay-style` and
/// `--step-batch-size-schedule`, and Bridge's recipes are of cosines; torchtitan 0.3.0 `lr_scheduler.decay_type` and
/// `decay_ratio`; DeepSpeed 0.19.8 WarmupCosineLR, WarmupDecayLR, which ends at zero, and WarmupLR; MaxText 0.2.5
/// `lr_schedule_type`; nanotron `lr_decay_starting_step`; our own programs `schedule.py`.
fn rates(job: &Job) -> Vec<Finding> {
    let (engine, run) = (engine_of(job), &job.policy.run);
    let is_bridge = engine == Engine::Megatron && job.frontend == Frontend::Bridge;
    let name = if is_bridge { "Megatron-Bridge" } else { engine.name() };
    let refuse = |rule, object: &str, message: String| Finding::error(rule, Blame::Engine, object, message);
    // The emitted program sets the rate itself, by `schedule.py`.
    let is_scheduler = engine == Engine::Deepspeed && !deepspeed::is_own(job);
    let known: &[Decay] = match engine {
        _ if is_bridge => &[Decay::Cosine],
        Engine::Deepspeed if is_scheduler => &[Decay::Cosine, Decay::Linear, Decay::Constant],
        Engine::Maxtext => &[Decay::Cosine, Decay::Constant, Decay::Wsd],
        _ => &[Decay::Cosine, Decay::Linear, Decay::Constant, Decay::Wsd],
    };
    let mut found = Vec::new();
    if !known.contains(&run.decay) {
        let words = known.iter().map(|decay| format!("`{decay}`")).collect::<Vec<_>>().join(", ");
        let finding = refuse("launch/decay", "policy.run.decay", format!("{name} has no decay `{}`", run.decay));
        found.push(finding.hint(format!("it has {words}")));
    }
    if is_scheduler && run.decay == Decay::Linear && run.least_learning_rate > 0.0 {
        let message = "DeepSpeed's line comes down to nothing, and a least learning rate is asked for".to_string();
        let finding = refuse("launch/decay", "policy.run.least_learning_rate", message);
        found.push(finding.hint("least_learning_rate = 0, or decay = \"cosine\""));
    }
    if run.decay_steps.is_some() && run.decay != Decay::Wsd {
        let message = format!("steps of a decay are said, and `{}` comes down over all of them", run.decay);
        found
            .push(refuse("launch/decay", "policy.run.decay_steps", message).hint("decay = \"wsd\", or no decay_steps"));
    }
    if let Some(ramp) = run.batch_ramp {
        let each = job.layout.micro_batch * job.layout.dp.get();
        let refused = match engine == Engine::Megatron && !is_bridge {
            true => ramp.levels(job.layout.global_batch, each).err(),
            false => Some(format!("{name} has one batch from the first step to the last")),
        };
        let finding = refused.map(|message| refuse("launch/batch-ramp", "policy.run.batch_ramp", message));
        found.extend(
            finding.map(|finding| finding.hint("--engine megatron, with steps that lead to the batch of the layout")),
        );
    }
    found
}

/// Ids of structure lie beside the tokens in Megatron's own form, and our entry to Megatron-LM reads them.
fn structure(job: &Job) -> Option<Finding> {
    let engine = engine_of(job);
    let is_read = engine == Engine::Megatron && job.frontend != Frontend::Bridge;
    if is_read || job.policy.data.structure.is_empty() {
        return None;
    }
    let name = if engine == Engine::Megatron { "Megatron-Bridge" } else { engine.name() };
    let message = format!("{name} reads no structure ids");
    let finding = Finding::error("launch/structure", Blame::Engine, "policy.data.structure", message);
    Some(finding.hint("--engine megatron, or no `structure` in the policy's [data]"))
}

/// Checkpoints that are kept, where an engine cannot be told that number.
fn kept(job: &Job) -> Option<Finding> {
    let kept = job.policy.storage.keep_last?;
    let (engine, is_bridge) = (engine_of(job), job.frontend == Frontend::Bridge);
    let (message, quote, hint) = match engine {
        Engine::Megatron if !is_bridge && kept != 1 => (
            format!("Megatron keeps the newest checkpoint or all of them, not the newest {kept}"),
            Some("other checkpoints except the last checkpoint are automatically deleted"),
            "keep_last = 1, or leave it out",
        ),
        Engine::Torchtitan if kept == 1 => (
            "torchtitan keeps two checkpoints at least".to_string(),
            Some(
                "We need to maintain at least 2 checkpoint replicas, as the last one may be in the process of being saved.",
            ),
            "keep_last = 2, or leave it out",
        ),
        Engine::Nanotron => ("nanotron keeps every checkpoint".to_string(), None, "leave it out"),
        _ => return None,
    };
    let finding = Finding::error("launch/keep-last", Blame::Engine, "policy.storage.keep_last", message).hint(hint);
    Some(match quote {
        Some(quote) => finding.quote(quote),
        None => finding,
    })
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
        .chain(crate::nccl::environment(job))
        .chain(crate::tpu::environment(job))
        .chain(carried.map(|(name, value)| EnvVar::new(name, value, "carried by the policy")))
        .collect()
}

/// The environment the job's processes are given; what the policy carries, where nothing is emitted.
pub fn environment(job: &Job) -> Vec<EnvVar> {
    emit(job).map_or_else(|_| storage_environment(job), |emission| emission.environment)
}
