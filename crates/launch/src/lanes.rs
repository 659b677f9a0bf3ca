//! Lanes: engine, wrapper, optimizer, compile policy and modes that belong together, each with its
//! reason; which one suits a model, a cluster and a goal, and what would change that.

use crate::job::Job;
use diag::{Blame, Finding, did_you_mean};
use hardware::Cluster;
use layout::{Engine, Layout};
use recipe::{Mixer, Mode, Recipe};
use serde::Serialize;
use units::named;

named! {
    /// What a run is for.
    pub enum Goal {
        /// The most tokens a second on NVIDIA devices.
        Throughput = "throughput",
        /// PyTorch-native control: debugging, adapters, blocks of one's own.
        Control = "control",
        /// A model that does not fit the devices.
        Offload = "offload",
        /// TPUs.
        Tpu = "tpu",
    }
}

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
        dispatcher: "alltoall",
        modes: BOTH,
        reason: "fused kernels, FP8, and collectives of tp and ep that overlap: the ceiling on NVIDIA devices",
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
        not_for: "NVIDIA devices, pipeline stages and context parts",
    },
    Lane {
        name: "offload",
        engine: Engine::Deepspeed,
        wrapper: "DeepSpeed ZeRO with offload",
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

/// A lane for a model, a cluster and a goal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// The lane.
    pub lane: &'static Lane,
    /// The mode to run in, where the recipe has any.
    #[serde(serialize_with = "mode_by_name")]
    pub mode: Option<Mode>,
    /// Why, fact by fact.
    pub because: Vec<String>,
    /// What would lead to another lane.
    pub would_change: Vec<String>,
}

fn mode_by_name<S: serde::Serializer>(mode: &Option<Mode>, serializer: S) -> Result<S::Ok, S::Error> {
    match mode {
        Some(mode) => serializer.serialize_str(mode.name()),
        None => serializer.serialize_none(),
    }
}

/// Recommends a lane.
pub fn recommend(recipe: &Recipe, cluster: &Cluster, goal: Goal) -> Recommendation {
    let custom: Vec<Mixer> =
        [Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta].into_iter().filter(|mixer| recipe.uses(*mixer)).collect();
    let names: Vec<&str> = custom.iter().map(|m| m.table()).collect();
    let mut because = vec![format!("the goal is {goal}")];
    let device = &cluster.device.name;
    let name = match goal {
        Goal::Throughput => {
            because.push(format!("{device} is an NVIDIA device, where fused kernels and overlap decide throughput"));
            if recipe.uses(Mixer::Moe) {
                because.push("experts want the framework's own dispatcher and overlap".to_string());
            }
            "nvidia-pretraining"
        }
        Goal::Control if custom.is_empty() && recipe.modes.is_empty() => {
            because.push("the model is plain attention and feed-forward blocks, which torchtitan has".to_string());
            "torchtitan"
        }
        Goal::Control => {
            because.push(format!("the blocks {} run as written in PyTorch", names.join(", ")));
            "nvidia-wide-moe-lora"
        }
        Goal::Offload => {
            because.push("state that does not fit moves to the host, and ZeRO does that best".to_string());
            "offload"
        }
        Goal::Tpu if custom.is_empty() && recipe.modes.is_empty() => {
            because.push("the model is one that MaxText has blocks for".to_string());
            "maxtext"
        }
        Goal::Tpu => {
            because.push(format!(
                "MaxText has no block for {}; annotated PyTorch keeps the model one source",
                names.join(", ")
            ));
            "tpu-pretraining"
        }
    };
    let lane = LANES.iter().find(|lane| lane.name == name).unwrap_or(&LANES[0]);
    let mode = lane.modes.iter().copied().find(|mode| recipe.modes.contains(mode));
    because.push(lane.reason.to_string());
    Recommendation { lane, mode, because, would_change: would_change(recipe, goal, &names) }
}

/// What would lead elsewhere, each with where to.
fn would_change(recipe: &Recipe, goal: Goal, custom: &[&str]) -> Vec<String> {
    let mut list = Vec::new();
    if goal == Goal::Throughput {
        if recipe.modes.contains(&Mode::AuthorDp) {
            list.push(
                "keeping the custom mixers: mode author_dp at tp 1, or the lane nvidia-wide-moe-lora".to_string(),
            );
        }
        list.push(
            "finer control than Megatron gives, or adapters added after sharding: nvidia-wide-moe-lora".to_string(),
        );
    } else if goal != Goal::Tpu {
        list.push("peak throughput with Transformer Engine: nvidia-pretraining".to_string());
    }
    if goal != Goal::Offload {
        list.push("a model that does not fit the devices however it is split: offload".to_string());
    }
    if goal == Goal::Tpu {
        list.push("NVIDIA devices: nvidia-pretraining".to_string());
    } else {
        list.push("TPUs: tpu-pretraining, or maxtext for a model it has".to_string());
    }
    if goal == Goal::Tpu && !custom.is_empty() {
        list.push(format!("a model without {}: maxtext", custom.join(", ")));
    }
    list.push("never one MFU number: it does not rank lanes with different hardware, batch or precision".to_string());
    list
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
    buckets(job, &mut findings);
    mode(job, engine, &mut findings);
    adapters(job, engine, &mut findings);
    own_program(job, engine, &mut findings);
    let missing: Vec<&str> = TPU_PINS.iter().copied().filter(|name| !job.policy.pins.contains_key(*name)).collect();
    if engine == Engine::XlaSpmd && !missing.is_empty() {
        let message = format!("a TPU run is pinned to its runtime, and the policy pins no {}", missing.join(", "));
        let finding = Finding::warning("lane/tpu-pins", Blame::Environment, "pins", message);
        findings.push(finding.hint("write the versions into the policy's [pins]; never upgrade during a run"));
    }
    findings
}

/// What the reader must bring: data for the emitted programs of native PyTorch and XLA, which draw tokens
/// without it; a program for DeepSpeed, which has none of its own.
fn own_program(job: &Job, engine: Engine, findings: &mut Vec<Finding>) {
    match engine {
        Engine::Fsdp2 | Engine::XlaSpmd => own_data(&job.policy.data.paths, findings),
        Engine::Deepspeed if job.policy.job.script.is_none() => {
            let message = "DeepSpeed wraps a model that a script of yours builds, and none is named: `train.py` is not in the directory";
            let finding = Finding::warning("lane/own-script", Blame::Engine, "job.script", message);
            findings.push(finding.hint("name it in the policy's [job] script"));
        }
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
/// gradients. Other engines must have them before state is shared out.
fn adapters(job: &Job, engine: Engine, findings: &mut Vec<Finding>) {
    if !job.policy.run.adapters {
        return;
    }
    let rule = "lane/lora-after-sharding";
    findings.push(match engine {
        Engine::Fsdp2 => {
            let message =
                "adapters added after fully_shard need gradient hooks of their own; the emitted module registers them";
            Finding::note(rule, Blame::Engine, "run.adapters", message)
        }
        _ => {
            let message =
                format!("`{engine}` shares state out when it wraps the model, and later adapters are not in it");
            Finding::error(rule, Blame::Engine, "run.adapters", message).hint("the lane nvidia-wide-moe-lora has hooks")
        }
    });
}

/// Tensor and expert parallelism stay inside the fast island; stages and replicas cross it.
fn island(job: &Job, findings: &mut Vec<Finding>) {
    let (layout, cluster) = (job.layout, job.cluster);
    let island = cluster.device.island_devices.min(cluster.devices_per_node);
    let expert = layout.etp.get() * layout.ep.get();
    for (key, span, what) in [("tp", layout.tp.get(), "tensor"), ("ep", expert, "expert")] {
        let used = key == "tp" || job.recipe.uses(Mixer::Moe);
        if used && span > island {
            let message = format!("{what} groups span {span} ranks, and {island} devices share the fast fabric");
            let finding = Finding::warning("lane/island", Blame::Layout, key, message);
            findings.push(finding.hint("keep tp and ep inside the island; let pp and dp cross it"));
        }
    }
}

/// Buckets and padding belong to a topology; constants of another one are named.
fn buckets(job: &Job, findings: &mut Vec<Finding>) {
    let here = topology(job.cluster, job.layout);
    if let Some(tuned) = job.policy.run.tuned_for.as_ref().filter(|tuned| **tuned != here) {
        let message = format!("bucket and padding constants were tuned for `{tuned}`, and this is `{here}`");
        let finding = Finding::error("lane/buckets", Blame::Environment, "run.tuned_for", message);
        findings.push(finding.hint("measure again, then name this topology, or take `tuned_for` out"));
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

    fn advice(name: &str, goal: Goal) -> (&'static str, Option<Mode>) {
        let cluster = Cluster::parse("8xH200").unwrap();
        let found = recommend(&recipe::builtin::find(name).unwrap(), &cluster, goal);
        assert!(found.because.len() >= 2 && found.would_change.len() >= 2);
        (found.lane.name, found.mode)
    }

    #[test]
    fn a_goal_leads_to_a_lane() {
        assert_eq!(advice("nam56r", Goal::Throughput), ("nvidia-pretraining", Some(Mode::NemoNative)));
        assert_eq!(advice("nam56r", Goal::Control), ("nvidia-wide-moe-lora", Some(Mode::AuthorDp)));
        assert_eq!(advice("nam56r", Goal::Tpu), ("tpu-pretraining", Some(Mode::AuthorDp)));
        assert_eq!(advice("llama3-8b", Goal::Control), ("torchtitan", None));
        assert_eq!(advice("llama3-8b", Goal::Tpu), ("maxtext", None));
        assert_eq!(advice("deepseek-v3", Goal::Offload), ("offload", None));
    }

    #[test]
    fn every_engine_but_ours_has_one_lane() {
        for (name, engine) in Engine::ALL {
            let count = LANES.iter().filter(|lane| lane.engine == *engine).count();
            assert_eq!(count, usize::from(*engine != Engine::Shardwright), "{name}");
        }
        assert!(find("nvidia-pretrainin").unwrap_err().hint.unwrap().contains("nvidia-pretraining"));
    }
}
