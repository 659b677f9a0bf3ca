//! Lanes: engine, wrapper, optimizer, compile policy and modes that belong together, each with its
//! reason, and the rules they come with.

mod advice;

pub use advice::{Asked, Recommendation, engines, recommend};
pub use case::machines::{Goal, usual_goal};

use crate::job::Job;
use diag::{Blame, Finding, did_you_mean};
use hardware::Cluster;
use layout::{Engine, Layout, Recompute, ZeroStage};
use recipe::{Mixer, Mode};
use serde::Serialize;

/// A way to run a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lane {
    /// Its name.
    pub name: &'static str,
    /// The engine that hosts it; a lane has one.
    #[serde(serialize_with = "by_name")]
    pub engine: Engine,
    /// What wraps the model.
    pub wrapper: &'static str,
    /// What steps it.
    pub optimizer: &'static str,
    /// What is compiled, and by what.
    pub compile: &'static str,
    /// How tokens reach their experts.
    pub dispatcher: &'static str,
    /// Modes it may run.
    #[serde(serialize_with = "modes_by_name")]
    pub modes: &'static [Mode],
    /// Why one would take it.
    pub reason: &'static str,
    /// What it is not for.
    pub not_for: &'static str,
}

fn by_name<S: serde::Serializer>(engine: &Engine, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(engine.name())
}

fn modes_by_name<S: serde::Serializer>(modes: &&[Mode], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(modes.iter().map(|m| m.name()))
}

const BOTH: &[Mode] = &[Mode::NemoNative, Mode::AuthorDp];
const CUSTOM: &[Mode] = &[Mode::AuthorDp];

/// Every lane. The first three are the ones the survey this follows assigns; the others are hosts
/// with a niche of their own, or sources of patterns.
pub const LANES: &[Lane] = &[
    Lane {
        name: "nvidia-pretraining",
        engine: Engine::Megatron,
        wrapper: "Megatron-Core DDP with the distributed optimizer",
        optimizer: "distributed AdamW, or TP-Muon for matrices",
        compile: "Transformer Engine kernels; no torch.compile on the hot path",
        dispatcher: "alltoall; allgather or flex by --engine-args",
        modes: BOTH,
        reason: "fused kernels, FP8, and collectives that overlap (`launch` says which are on): the ceiling on NVIDIA devices",
        not_for: "blocks without a ModuleSpec, and models that change every day",
    },
    Lane {
        name: "nvidia-wide-moe-lora",
        engine: Engine::Fsdp2,
        wrapper: "FSDP2 (fully_shard) outside the compiled core",
        optimizer: "AdamW with hooks for each parameter group",
        compile: "torch.compile on small models of experts only",
        dispatcher: "alltoall",
        modes: CUSTOM,
        reason: "PyTorch's own surface: blocks of one's own run as they are, adapters are added with explicit hooks",
        not_for: "the last part of the throughput ceiling",
    },
    Lane {
        name: "tpu-pretraining",
        engine: Engine::XlaSpmd,
        wrapper: "XLA SPMD ZeRO-3 over (data), (data, model), (data, expert) or (data, expert, model)",
        optimizer: "distributed AdamW and Muon with scalars on the device",
        compile: "torch_xla.compile around each micro-step; torch.compile off",
        dispatcher: "the compiler places it",
        modes: CUSTOM,
        reason: "the compiler owns layout and collectives; one annotation a parameter",
        not_for: "GPUs, pipeline stages and context parts",
    },
    Lane {
        name: "offload",
        engine: Engine::Deepspeed,
        wrapper: "DeepSpeed ZeRO 3, state and weights on the host (or on NVMe: --offload-nvme)",
        optimizer: "AdamW on the host, or DeepSpeed's Muon",
        compile: "none",
        dispatcher: "alltoall (AutoEP)",
        modes: CUSTOM,
        reason: "state on the host gets a model under the devices' memory when nothing else does",
        not_for: "throughput: the link to the host is in every step",
    },
    Lane {
        name: "torchtitan",
        engine: Engine::Torchtitan,
        wrapper: "FSDP2 with TP, PP, CP and EP as torchtitan composes them",
        optimizer: "AdamW",
        compile: "torch.compile a block, where it was measured",
        dispatcher: "alltoall",
        modes: CUSTOM,
        reason: "a plain transformer in native PyTorch without code of one's own",
        not_for: "Mamba and recurrent blocks, which it does not have",
    },
    Lane {
        name: "nanotron",
        engine: Engine::Nanotron,
        wrapper: "nanotron's DDP with ZeRO 1",
        optimizer: "AdamW",
        compile: "none",
        dispatcher: "alltoall, experts whole on every rank",
        modes: &[],
        reason: "a readable 3D-parallel reference for dense models",
        not_for: "latent attention, experts over ranks, hybrids",
    },
    Lane {
        name: "maxtext",
        engine: Engine::Maxtext,
        wrapper: "JAX SPMD over MaxText's mesh",
        optimizer: "AdamW (optax)",
        compile: "XLA compiles the step",
        dispatcher: "the compiler places it",
        modes: &[],
        reason: "the JAX flagship: published models on TPUs, and the flags that tune them",
        not_for: "models with blocks of their own, which would have to be written again in JAX",
    },
];

/// Packages whose versions a TPU run is pinned to, once for its whole length.
const TPU_PINS: &[&str] = &["torch", "torch_xla", "libtpu"];

/// The lane of an engine; our own runtime has none.
pub fn of_engine(engine: Engine) -> Option<&'static Lane> {
    LANES.iter().find(|lane| lane.engine == engine)
}

/// The lane of a name.
pub fn find(name: &str) -> Result<&'static Lane, Finding> {
    LANES.iter().find(|lane| lane.name == name).ok_or_else(|| {
        let names = LANES.iter().map(|l| l.name).collect::<Vec<_>>().join(", ");
        let hint = match did_you_mean(name, LANES.iter().map(|l| l.name)) {
            Some(close) => format!("did you mean `{close}`? lanes are {names}"),
            None => format!("lanes are {names}"),
        };
        Finding::error("lane/unknown", Blame::Usage, name, format!("there is no lane `{name}`")).hint(hint)
    })
}

/// A topology by what bucket and padding constants depend on.
pub fn topology(cluster: &Cluster, layout: &Layout) -> String {
    let device = &cluster.device;
    format!(
        "{}x{}x{}/island{}/tp{}-cp{}-pp{}-ep{}-dp{}-zero{}",
        cluster.nodes,
        cluster.devices_per_node,
        device.name,
        device.island_devices,
        layout.tp,
        layout.cp,
        layout.pp,
        layout.ep,
        layout.dp,
        layout.zero
    )
}

/// Sets the flags that a goal implies, the engine apart.
pub fn pin(goal: Goal, asked: &mut case::Asked) {
    match goal {
        // What is left on the devices is activations, and the link is slower than computing them again.
        Goal::Offload => {
            (asked.layout.zero, asked.layout.recompute) = (Some(ZeroStage::Three), Some(Recompute::Full));
            (asked.state.offload_optimizer, asked.state.offload_params) = (Some(1.0), true);
        }
        Goal::Throughput | Goal::Control | Goal::Tpu => {}
    }
}

/// The rules of lanes, each a check with an id: what a job breaks, and what it should know.
pub fn check(job: &Job, asked: Option<&Lane>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let engine = crate::engines::engine_of(job);
    if let Some(lane) = asked.filter(|lane| lane.engine != engine) {
        let message = format!("lane `{}` is hosted by `{}`, and the engine is `{engine}`", lane.name, lane.engine);
        let hint = format!("one host framework a lane: leave --engine out, or take --engine {}", lane.engine);
        findings.push(Finding::error("lane/one-host", Blame::Usage, "engine", message).hint(hint));
    }
    if job.frontend != crate::job::Frontend::MegatronLm && engine != Engine::Megatron {
        let message = format!("`{}` is a way to Megatron-Core, and the engine is `{engine}`", job.frontend);
        findings.push(Finding::error("lane/one-host", Blame::Usage, "frontend", message).hint("leave --frontend out"));
    }
    island(job, &mut findings);
    mode(job, engine, &mut findings);
    adapters(job, engine, &mut findings);
    own_program(job, engine, &mut findings);
    crate::tpu::check(job, &mut findings);
    let missing: Vec<&str> = TPU_PINS.iter().copied().filter(|name| !job.policy.pins.contains_key(*name)).collect();
    if engine == Engine::XlaSpmd && !missing.is_empty() {
        let message = format!("a TPU run is pinned to its runtime, and the policy pins no {}", missing.join(", "));
        let finding = Finding::warning("lane/tpu-pins", Blame::Environment, "pins", message);
        findings.push(finding.hint("write the versions into the policy's [pins]; never upgrade during a run"));
    }
    findings
}

/// What the reader must bring: data for the emitted programs, which draw tokens without it.
fn own_program(job: &Job, engine: Engine, findings: &mut Vec<Finding>) {
    match engine {
        Engine::Fsdp2 | Engine::XlaSpmd => own_data(&job.policy.data.paths, findings),
        Engine::Deepspeed if job.policy.job.script.is_none() => own_data(&job.policy.data.paths, findings),
        _ => {}
    }
}

/// The emitted programs read token files, each as often as its size says: a number among them, which
/// Megatron takes for the weight of the path behind it, is none.
fn own_data(paths: &[String], findings: &mut Vec<Finding>) {
    if paths.is_empty() {
        let message =
            "the policy names no data: the emitted train.py draws its tokens, and a loss on them proves little";
        let hint = "name token files in its [data] paths: Megatron's .bin with .idx, .npy, .u16 or .u32";
        findings.push(Finding::warning("lane/own-data", Blame::Environment, "data.paths", message).hint(hint));
    }
    for weight in paths.iter().filter(|path| path.parse::<f64>().is_ok()) {
        let message = format!("`{weight}` is a weight, and the emitted train.py mixes files by their size alone");
        let hint = "leave the weights out; name a file twice to read it twice as often";
        findings.push(Finding::error("lane/data-weights", Blame::Engine, "data.paths", message).hint(hint));
    }
}

/// Adapters added after `fully_shard` are not its parameters: without hooks nobody reduces their
/// gradients. A policy may insist on adapters; what they are is the recipe's to say.
fn adapters(job: &Job, engine: Engine, findings: &mut Vec<Finding>) {
    let rule = "lane/lora-after-sharding";
    if let Some(adapters) = job.recipe.adapters().filter(|_| engine == Engine::Fsdp2) {
        let message = format!(
            "adapters of rank {} are added after fully_shard, which does not know them: lora.py registers a hook for \
             each factor's gradient, and the optimizer steps nothing else",
            adapters.rank
        );
        findings.push(Finding::note(rule, Blame::Engine, "adapters", message));
    } else if job.policy.run.adapters {
        let (object, message) = ("run.adapters", "the policy asks for adapters, and the recipe has none that are on");
        let hint = match (&job.recipe.features.adapters, engine) {
            (Some(_), Engine::Fsdp2) => "switch them on: --with adapters",
            (None, Engine::Fsdp2) => "give the recipe `[adapters]` with rank and targets, or take the key out",
            _ => "the lane nvidia-wide-moe-lora trains them: --engine fsdp2, and `[adapters]` in the recipe",
        };
        findings.push(Finding::error(rule, Blame::Usage, object, message).hint(hint));
    }
}

/// Tensor and expert parallelism stay inside the fast island; stages and replicas cross it.
fn island(job: &Job, findings: &mut Vec<Finding>) {
    let (layout, cluster) = (job.layout, job.cluster);
    let island = cluster.island_devices();
    let expert = layout.etp.get() * layout.ep.get();
    for (key, span, what) in [("tp", layout.tp.get(), "tensor"), ("ep", expert, "expert")] {
        let used = key == "tp" || job.recipe.uses(Mixer::Moe);
        if used && span > island {
            let message = format!("{what} groups span {span} ranks, and {island} devices share the fast fabric");
            let finding = Finding::warning("lane/island", Blame::Layout, key, message);
            let product = if key == "ep" && layout.etp.splits() { "ep·etp" } else { key };
            findings.push(
                finding.hint(format!("keep {product} at {island} or below, inside the island; let pp and dp cross it")),
            );
        }
    }
}

/// A mode a lane does not run.
fn mode(job: &Job, engine: Engine, findings: &mut Vec<Finding>) {
    let (Some(mode), Some(lane)) = (job.layout.mode, of_engine(engine)) else { return };
    if !lane.modes.contains(&mode) {
        let message = format!("lane `{}` does not run mode `{mode}`", lane.name);
        let known: Vec<String> = lane.modes.iter().map(|m| format!("`{m}`")).collect();
        let finding = Finding::error("lane/mode", Blame::Engine, "mode", message);
        let hint =
            if known.is_empty() { "it has no modes".to_string() } else { format!("it has {}", known.join(", ")) };
        findings.push(finding.hint(hint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_but_ours_has_one_lane() {
        for (name, engine) in Engine::ALL {
            let count = LANES.iter().filter(|lane| lane.engine == *engine).count();
            assert_eq!(count, usize::from(*engine != Engine::Shardwright), "{name}");
        }
        assert!(find("nvidia-pretrainin").unwrap_err().hint.unwrap().contains("nvidia-pretraining"));
    }
}
