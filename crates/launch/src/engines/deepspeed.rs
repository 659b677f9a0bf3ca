//! DeepSpeed 0.19.8: its JSON, and the program that is started with it: ours, or a training script that the policy
//! names, which builds a model of its own.

mod program;

pub use program::{is_own, libraries};

use super::list::List;
use super::{lane_of, storage_environment};
use crate::emission::{Emission, File, Kind, Starter};
use crate::job::Job;
use crate::policy::Decay;
use crate::tree;
use case::swap::{self, Swapped};
use case::words;
use diag::{Blame, Finding};
use layout::{Engine, Recompute, ZeroStage};
use recipe::kinds::attention::QkNorm;
use recipe::kinds::moe::ScoreFunction;
use recipe::{Dtype, Mixer, Optimizer, Recipe};

const FILE: &str = "ds_config.json";

/// Writes a job down for DeepSpeed.
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    let mut list = List::default();
    let mut findings = if is_own(job) { program::refusals(job) } else { Vec::new() };
    batch(job, &mut list);
    formats(job, &mut list, &mut findings);
    zero(job, &mut list);
    axes(job, &mut list, &mut findings);
    optimizer(job, &mut list, &mut findings);
    list.set(Kind::Policy, "steps_per_print", job.policy.run.log_every, "policy.run.log_every", "log lines");
    if !findings.is_empty() {
        return Err(findings);
    }
    let file = File::new(FILE, tree::json(&tree::nested(&list.arguments)));
    let Some(script) = job.policy.job.script.clone() else {
        let emission = program::emission(job, file)?;
        return Ok(Emission { arguments: list.arguments, on_command_line: false, ..emission });
    };
    // What `deepspeed.add_config_arguments` knows.
    let entry = vec![script, "--deepspeed".to_string(), "--deepspeed_config".to_string(), FILE.to_string()];
    Ok(Emission {
        engine: Engine::Deepspeed,
        lane: lane_of(job),
        mode: job.layout.mode,
        starter: Starter::Torchrun,
        checkout: None,
        entry,
        arguments: list.arguments,
        on_command_line: false,
        environment: storage_environment(job),
        files: vec![file],
        seams: job.seams.to_vec(),
    })
}

fn batch(job: &Job, list: &mut List) {
    let layout = job.layout;
    // runtime/config.py: train == micro · accumulation · data-parallel.
    list.set(Kind::Layout, "train_batch_size", layout.global_batch, "layout.global_batch", "sequences of a step");
    let why = "sequences of a microbatch";
    list.set(Kind::Layout, "train_micro_batch_size_per_gpu", layout.micro_batch, "layout.micro_batch", why);
    let why = "microbatches of a step on one replica";
    list.set(Kind::Layout, "gradient_accumulation_steps", layout.microbatches, "layout.microbatches", why);
    list.set(Kind::Policy, "gradient_clipping", job.policy.run.clip, "policy.run.clip", "largest gradient norm");
}

fn formats(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    if job.recipe.precision.weights != Dtype::Bf16 {
        let message = format!("weights are emitted in bf16, and the recipe has {}", job.recipe.precision.weights);
        findings.push(Finding::error("deepspeed/unsayable", Blame::Engine, "precision.weights", message));
    }
    list.set(Kind::RecipeNative, "bf16.enabled", true, "precision.weights", "weights and products");
    if job.layout.zero == ZeroStage::One {
        // runtime/bf16_optimizer.py: else every gradient stays in bf16 too until the step.
        let why = "a gradient is added to its accumulator as it arrives";
        list.set(Kind::Policy, "bf16.immediate_grad_update", true, "memory", why);
    }
    // runtime/engine.py `_do_optimizer_sanity_check`: fp32 with bf16 weights under ZeRO alone ([deepspeed/accumulate]).
    let gradients = job.case.options.state.gradients;
    list.set(Kind::RecipeNative, "data_types.grad_accum_dtype", gradients, "precision.gradients", "as accumulated");
}

/// ZeRO with its buckets: constants that belong to a topology, carried as they are.
fn zero(job: &Job, list: &mut List) {
    let stage = job.layout.zero;
    let section = |key: &str| format!("zero_optimization.{key}");
    list.set(Kind::Layout, &section("stage"), stage, "layout.zero", "what replicas share out");
    for word in words::of(job.layout.engine).words.iter().filter(|word| word.place == words::Place::Argument) {
        let is_of_stage_3 = word.name.contains(".stage3_") || word.name.ends_with(".sub_group_size");
        let is_overlap = word.takes == words::Takes::Switch;
        if (is_of_stage_3 && stage != ZeroStage::Three) || (is_overlap && stage == ZeroStage::Three) {
            continue;
        }
        let why = format!("{}; it belongs to a topology: measure again when that changes [lane/buckets]", word.what);
        list.set(Kind::Policy, word.name, (word.get)(&job.case.options), "options", &why);
    }
    list.set(Kind::Policy, &section("contiguous_gradients"), true, "state", "gradients in one buffer");
    if stage == ZeroStage::Three {
        let key = section("stage3_gather_16bit_weights_on_model_save");
        list.set(Kind::Policy, &key, true, "policy.storage.checkpoints", "a checkpoint holds whole weights");
    }
    offload(job, list);
}

/// State and weights that the devices do not hold.
fn offload(job: &Job, list: &mut List) {
    let options = &job.case.options;
    let nvme = job.case.asked.state.offload_nvme.as_deref();
    let parts = [
        ("offload_optimizer", options.offload > 0.0, "--offload-optimizer", "state is stepped on the host"),
        ("offload_param", options.offload_params, "--offload-params", "weights come from the host when they are used"),
    ];
    for (part, _, from, why) in parts.into_iter().filter(|(_, is_on, ..)| *is_on) {
        let key = |name: &str| format!("zero_optimization.{part}.{name}");
        list.set(Kind::Policy, &key("device"), if nvme.is_some() { "nvme" } else { "cpu" }, from, why);
        list.set(Kind::Policy, &key("pin_memory"), true, from, "page-locked, so that copies run beside compute");
        if let Some(path) = nvme {
            list.set(
                Kind::Policy,
                &key("nvme_path"),
                serde_json::Value::from(path),
                "--offload-nvme",
                "below it, a folder a rank",
            );
        }
    }
    let Some(swapped) = Swapped::of(job.case) else { return };
    if swapped.weights && swapped.weight_buffer() > swap::WEIGHT_BUFFER {
        let why = "the largest part of a weight has to fit into a buffer";
        let key = "zero_optimization.offload_param.buffer_size";
        list.set(Kind::Policy, key, swapped.weight_buffer(), "--offload-nvme", why);
    }
    // DeepSpeed's own values (`runtime/swap_tensor/constants.py`), said so that they can be tuned with
    // `ds_nvme_tune` for the drive at hand.
    for (name, value) in [("block_size", 1_048_576), ("queue_depth", 8), ("intra_op_parallelism", 1)] {
        let why = "DeepSpeed's own; `ds_nvme_tune` measures better ones for a drive";
        list.set(Kind::Policy, &format!("aio.{name}"), value, "--offload-nvme", why);
    }
    for (name, value) in [("single_submit", false), ("overlap_events", true)] {
        list.set(Kind::Policy, &format!("aio.{name}"), value, "--offload-nvme", "DeepSpeed's own");
    }
}

fn axes(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let layout = job.layout;
    if layout.tp.splits() {
        list.set(Kind::Layout, "tensor_parallel.autotp_size", layout.tp, "layout.tp", "matrices and head groups");
    }
    if layout.cp.splits() {
        list.set(Kind::Layout, "sequence_parallel_size", layout.cp, "layout.cp", "Ulysses: heads for time");
    }
    if layout.pp.splits() {
        // runtime/pipe/module.py: the script's PipelineModule takes the number of stages.
        list.set(Kind::Layout, "pipeline.stages", layout.pp, "layout.pp", "the script's PipelineModule reads it");
        if layout.recompute == Recompute::Full {
            // runtime/pipe/engine.py; without a pipeline the script recomputes its layers itself.
            let key = "pipeline.activation_checkpoint_interval";
            list.set(Kind::Layout, key, 1, "layout.recompute", "every layer computed again");
        }
    }
    if layout.ep.splits() {
        list.set(Kind::Layout, "expert_parallel.enabled", true, "layout.ep", "whole experts to ranks");
        list.set(Kind::Layout, "expert_parallel.autoep_size", layout.ep, "layout.ep", "whole experts to ranks");
        match preset(job.recipe) {
            Some(name) => {
                list.set(
                    Kind::RecipeNative,
                    "expert_parallel.preset_model",
                    name,
                    "moe",
                    "where experts and router are",
                );
            }
            None => {
                let message = "AutoEP finds experts by the names of known models, and this one is none of them";
                let finding = Finding::error("deepspeed/autoep", Blame::Engine, "ep", message);
                findings.push(finding.fix("ep", vec![1]).quote("Unknown preset_model"));
            }
        }
    }
}

/// AutoEP's name for the form of a model's experts (`module_inject/auto_ep_presets`).
fn preset(recipe: &Recipe) -> Option<&'static str> {
    let moe = recipe.moe.as_ref()?;
    let others = [Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta, Mixer::Linear];
    if others.iter().any(|m| recipe.uses(*m)) {
        return None;
    }
    let normed = recipe.attention().is_some_and(|a| a.qk_norm == QkNorm::Head);
    match (recipe.is_latent(), moe.shared.is_some(), moe.router.score, normed) {
        (true, true, ScoreFunction::Sigmoid, _) => Some("deepseek_v3"),
        (true, true, ScoreFunction::Softmax, _) => Some("deepseek_v2"),
        (false, false, ScoreFunction::Softmax, true) => Some("qwen3_moe"),
        (false, false, ScoreFunction::Softmax, false) => Some("mixtral"),
        _ => None,
    }
}

fn optimizer(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let tensors = job.recipe.tensors();
    let steps = |optimizer| tensors.iter().any(|t| t.optimizer == optimizer);
    if steps(Optimizer::Sgd) {
        let message = "SGD for some tensors and another optimizer for the rest has no key";
        findings.push(Finding::error("deepspeed/unsayable", Blame::Engine, "optimizer", message));
    }
    let run = &job.policy.run;
    let name = if steps(Optimizer::Muon) { "Muon" } else { "AdamW" };
    let why = "Muon needs every parameter tagged with `use_muon` by the script";
    let why = if name == "Muon" { why } else { "AdamW throughout" };
    if name == "Muon" && job.layout.zero == ZeroStage::Three {
        // runtime/zero/stage3.py: "Muon and reduce scatter cannot be used together".
        let why = "Muon sees whole gradients, and DeepSpeed refuses it with reduce-scatter";
        list.set(Kind::RecipeNative, "zero_optimization.reduce_scatter", false, "recipe.optimizer", why);
    }
    list.set(Kind::RecipeNative, "optimizer.type", name, "recipe.optimizer", why);
    list.set(Kind::Policy, "optimizer.params.lr", run.learning_rate, "policy.run.learning_rate", "peak");
    if name == "AdamW" {
        let betas = ["0.9", "0.95"];
        list.many(Kind::Policy, "optimizer.params.betas", betas, "policy.run", "usual for language models");
    }
    list.set(Kind::Policy, "optimizer.params.weight_decay", run.weight_decay, "policy.run.weight_decay", "decay");
    if name == "AdamW" {
        // DeepSpeed's FusedAdam and CPUAdam are compiled on the machine, the first with nvcc; torch's fused AdamW comes
        // with torch, steps flat fp32 tensors in one kernel on either, and makes no temporaries.
        for key in ["torch_adam", "fused"] {
            list.set(Kind::Policy, &format!("optimizer.params.{key}"), true, "policy.run", "torch's own kernel");
        }
        list.set(Kind::Policy, "optimizer.params.eps", 1e-8, "policy.run", "AdamW's own");
    }
    if is_own(job) {
        // The program sets the rate of every step.
        return;
    }
    let key = |name: &str| format!("scheduler.params.{name}");
    let (name, why) = match run.decay {
        Decay::Linear => ("WarmupDecayLR", "warm up, then a line"),
        Decay::Constant => ("WarmupLR", "warm up, then no change"),
        Decay::Cosine | Decay::Wsd => ("WarmupCosineLR", "warm up, then cosine"),
    };
    list.set(Kind::Policy, "scheduler.type", name, "policy.run.decay", why);
    if run.decay != Decay::Constant {
        list.set(Kind::Policy, &key("total_num_steps"), run.steps, "policy.run.steps", "over the whole run");
    }
    list.set(Kind::Policy, &key("warmup_num_steps"), run.warmup_steps, "policy.run.warmup_steps", "warm-up");
    if run.decay != Decay::Cosine {
        list.set(Kind::Policy, &key("warmup_max_lr"), run.learning_rate, "policy.run.learning_rate", "peak");
        list.set(Kind::Policy, &key("warmup_type"), "linear", "policy.run.warmup_steps", "the default is log");
        return;
    }
    let ratio = run.least_learning_rate / run.learning_rate;
    list.set(Kind::Policy, &key("cos_min_ratio"), ratio, "policy.run.least_learning_rate", "share of the peak left");
}
