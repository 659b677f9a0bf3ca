//! nanotron, main of April 2026: its YAML, started by `run_train.py`. File names are relative to
//! `src/nanotron`.

use super::decoder::{Decoder, Has};
use super::list::List;
use super::{lane_of, storage_environment};
use crate::emission::{Checkout, ENGINE, Emission, EnvVar, File, Kind, Starter};
use crate::identity::Identity;
use crate::job::Job;
use crate::policy::Decay;
use crate::tree;
use diag::Finding;
use layout::{Engine, Recompute, Schedule};

const FILE: &str = "nanotron.yaml";

/// What its decoders have (`config/models_config.py`: Llama and Qwen2).
const HAS: Has = Has {
    latent: false,
    qk_norm: false,
    free_head_dim: false,
    aux_loss: true,
    expert_bias: false,
    shared: true,
    gate: true,
    mtp: false,
};

/// Writes a job down for nanotron.
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    let decoder = Decoder::of(job, "nanotron/model", "nanotron", HAS)?;
    refuse_rest(job, &decoder)?;
    let mut list = List::default();
    general(job, &mut list);
    model(job, &decoder, &mut list);
    optimizer(job, &mut list);
    parallelism(job, &mut list);
    tokens(job, &mut list);
    let config = tree::yaml(&tree::nested(&list.arguments));
    let mut environment = storage_environment(job);
    let why = "kernels of overlapping collectives must be issued in order";
    environment.insert(0, EnvVar::new("CUDA_DEVICE_MAX_CONNECTIONS", 1, why));
    let checkout = Checkout {
        what: "nanotron (git main)",
        variable: ENGINE,
        script: "run_train.py",
        places: &["/opt/nanotron", "/workspace/nanotron"],
    };
    let (entry, checkout) = checkout.entry(job.policy.job.engine_root.as_deref());
    Ok(Emission {
        engine: Engine::Nanotron,
        lane: lane_of(job),
        mode: job.layout.mode,
        starter: Starter::Torchrun,
        checkout,
        entry: vec![entry, "--config-file".to_string(), FILE.to_string()],
        arguments: list.arguments,
        on_command_line: false,
        environment,
        files: vec![File::new(FILE, config)],
        seams: job.seams.to_vec(),
    })
}

/// What the YAML has no words for.
fn refuse_rest(job: &Job, decoder: &Decoder) -> Result<(), Vec<Finding>> {
    let mut findings = Vec::new();
    let mut refuse = |object: &str, message: &str| {
        findings.push(Finding::error("nanotron/unsayable", diag::Blame::Engine, object, message));
    };
    if matches!(job.layout.recompute, Recompute::Selective(_)) {
        refuse("recompute", "nanotron recomputes whole layers or nothing");
    }
    if decoder.moe.is_some() && job.layout.cp.splits() {
        refuse("cp", "nanotron's ring attention and its experts are not run together");
    }
    if decoder.moe.is_some_and(|moe| moe.router.score == recipe::kinds::moe::ScoreFunction::Sigmoid) {
        refuse("moe.router.score", "nanotron's router is a softmax");
    }
    // nn/moe.py, `Router.top_k_softmax`: shares of all experts; `Qwen2MoELayer` gates its shared expert.
    if decoder.moe.is_some_and(|moe| moe.router.normalize) {
        refuse("moe.router.normalize", "nanotron does not divide the chosen scores by their sum");
    }
    if decoder.moe.is_some_and(|moe| moe.shared.as_ref().is_some_and(|shared| !shared.gate)) {
        refuse("moe.shared.gate", "nanotron's shared expert is gated");
    }
    if findings.is_empty() { Ok(()) } else { Err(findings) }
}

fn general(job: &Job, list: &mut List) {
    let policy = Kind::Policy;
    let text = |s: &str| serde_json::to_string(s).unwrap_or_default();
    let key = |name: &str| format!("checkpoints.{name}");
    let run = &job.policy.run;
    list.set(policy, &key("checkpoint_interval"), run.save_every, "policy.run.save_every", "steps between checkpoints");
    list.set(policy, &key("checkpoints_path"), text(&job.checkpoints()), "policy.storage.checkpoints", "not on root");
    list.set(policy, &key("checkpoints_path_is_shared_file_system"), true, "policy.storage.checkpoints", "one volume");
    list.set(policy, &key("resume_checkpoint_path"), "null", "policy.storage.checkpoints", "a first run");
    list.set(policy, &key("save_initial_state"), false, "policy.run", "nothing to keep yet");
    let dataset = match job.policy.data.paths.as_slice() {
        [] => "null".to_string(),
        paths => {
            let folder = serde_json::to_string(paths).unwrap_or_default();
            format!("{{\"dataset_folder\": {folder}, \"vocab_size\": {}}}", job.recipe.vocab)
        }
    };
    let stage = format!(
        "[{{\"data\": {{\"dataset\": {dataset}, \"num_loading_workers\": 1, \"seed\": {}}}, \
         \"name\": \"train\", \"start_training_step\": 1}}]",
        run.seed
    );
    list.set(policy, "data_stages", stage, "policy.data", "made-up tokens where no data is named");
    list.set(policy, "general.project", text("shardwright"), "policy.job", "names the run");
    list.set(policy, "general.run", text(&Identity::of(job).job_name), "identity", "names the run");
    list.set(policy, "general.seed", run.seed, "policy.run.seed", "part of the record");
    list.set(policy, "general.ignore_sanity_checks", true, "policy.run", "they copy weights between ranks each step");
    list.set(policy, "logging.iteration_step_info_interval", run.log_every, "policy.run.log_every", "log lines");
    list.set(policy, "logging.log_level", text("info"), "policy.run", "log lines");
    list.set(policy, "logging.log_level_replica", text("info"), "policy.run", "log lines");
}

fn model(job: &Job, decoder: &Decoder, list: &mut List) {
    let native = Kind::RecipeNative;
    let recipe = job.recipe;
    list.set(native, "model.ddp_bucket_cap_mb", 25, "state", "belongs to a topology [lane/buckets]");
    list.set(native, "model.dtype", "\"bfloat16\"", "precision.weights", "weights and products");
    let std = recipe.init_std.unwrap_or(0.02);
    list.set(native, "model.init_method.std", std, "recipe.init_std", "0.02 where the recipe says nothing");
    let why = "the padded vocabulary is a multiple of this times tp";
    let key = "model.make_vocab_size_divisible_by";
    list.set(Kind::Layout, key, job.layout.vocab_multiple, "layout.vocab_multiple", why);
    let key = |name: &str| format!("model.model_config.{name}");
    let mut set = |name: &str, value: String, from: &str| list.set(native, &key(name), value, from, "the model");
    let (kv_heads, _) = decoder.heads();
    let dense = decoder.mlp.map_or_else(|| decoder.moe.map_or(0, |m| m.ffn), |m| m.ffn);
    // config/models_config.py: experts stand in the Qwen2 form only.
    let form = if decoder.moe.is_some() || job.layout.cp.splits() { "is_qwen2_config" } else { "is_llama_config" };
    set(form, "true".to_string(), "recipe.pattern");
    set("hidden_act", "\"silu\"".to_string(), "activation");
    set("hidden_size", recipe.hidden.to_string(), "recipe.hidden");
    set("intermediate_size", dense.to_string(), "mlp.ffn");
    set("max_position_embeddings", job.layout.sequence.to_string(), "layout.sequence");
    set("num_attention_heads", decoder.attention.heads.to_string(), "attention.heads");
    set("num_hidden_layers", recipe.depth().to_string(), "recipe.depth");
    set("num_key_value_heads", kv_heads.to_string(), "attention.kv_heads");
    set("rms_norm_eps", format!("{:?}", recipe.norm_eps), "recipe.norm_eps");
    set("rope_theta", format!("{:?}", decoder.rope.theta), "recipe.rope_theta");
    set("rope_interleaved", "false".to_string(), "recipe.rope_theta");
    set("tie_word_embeddings", recipe.tied.to_string(), "recipe.tied");
    set("vocab_size", recipe.vocab.to_string(), "recipe.vocab");
    if job.layout.cp.splits() {
        set("_attn_implementation", "\"llama3_ring_attention\"".to_string(), "layout.cp");
        set("ring_attn_heads_k_stride", "1".to_string(), "layout.cp");
    }
    if let Some(moe) = decoder.moe {
        let layers: Vec<usize> = (decoder.dense_first..recipe.depth()).collect();
        set("moe_config.num_experts", moe.experts.to_string(), "moe.experts");
        set("moe_config.top_k", moe.top_k.to_string(), "moe.top_k");
        set("moe_config.moe_intermediate_size", moe.ffn.to_string(), "moe.ffn");
        set("moe_config.layers", serde_json::to_string(&layers).unwrap_or_default(), "recipe.pattern");
        set(
            "moe_config.router_aux_loss_coef",
            format!("{:?}", moe.router.aux_loss.unwrap_or(0.0)),
            "moe.router.aux_loss",
        );
        set("moe_config.enable_shared_expert", moe.shared.is_some().to_string(), "moe.shared");
        if let Some(shared) = &moe.shared {
            set("moe_config.shared_expert_intermediate_size", shared.ffn.to_string(), "moe.shared.ffn");
        }
        set("moe_config.token_dispatcher_type", "\"alltoall\"".to_string(), "lane.dispatcher");
    }
}

fn optimizer(job: &Job, list: &mut List) {
    let run = &job.policy.run;
    let policy = Kind::Policy;
    let from = "policy.run";
    let fp32 = job.recipe.precision.gradients == recipe::Dtype::Fp32;
    let key = |name: &str| format!("optimizer.{name}");
    list.set(Kind::RecipeNative, &key("accumulate_grad_in_fp32"), fp32, "precision.gradients", "as accumulated");
    list.set(policy, &key("clip_grad"), format!("{:?}", run.clip), from, "largest gradient norm");
    list.set(policy, &key("weight_decay"), format!("{:?}", run.weight_decay), from, "decay");
    list.set(Kind::Layout, &key("zero_stage"), job.layout.zero, "layout.zero", "what replicas share out");
    let factory = |name: &str| format!("optimizer.optimizer_factory.{name}");
    list.set(Kind::RecipeNative, &factory("name"), "\"adamW\"", "recipe.optimizer", "AdamW throughout");
    for (name, value) in [("adam_beta1", "0.9"), ("adam_beta2", "0.95"), ("adam_eps", "1e-8")] {
        list.set(policy, &factory(name), value, from, "usual for language models");
    }
    list.set(policy, &factory("torch_adam_is_fused"), true, from, "one kernel a step");
    let schedule = |name: &str| format!("optimizer.learning_rate_scheduler.{name}");
    let rate = |x: f64| format!("{x:?}");
    let (warmup, decaying) = (run.warmup(), run.decaying());
    list.set(policy, &schedule("learning_rate"), rate(run.learning_rate), from, "peak");
    list.set(policy, &schedule("lr_warmup_steps"), warmup, from, "warm-up");
    list.set(policy, &schedule("lr_warmup_style"), "\"linear\"", from, "warm-up");
    let style = if run.decay == Decay::Cosine { "\"cosine\"" } else { "\"linear\"" };
    list.set(policy, &schedule("lr_decay_style"), style, from, "decay");
    // A constant rate comes down to itself.
    let over = if run.decay == Decay::Constant { run.steps - warmup } else { decaying };
    list.set(policy, &schedule("lr_decay_steps"), over, from, "decay");
    match run.decay {
        Decay::Wsd => {
            list.set(policy, &schedule("lr_decay_starting_step"), run.steps - decaying, from, "the last steps");
        }
        _ => list.set(policy, &schedule("lr_decay_starting_step"), "null", from, "behind the warm-up"),
    }
    list.set(policy, &schedule("min_decay_lr"), rate(run.last_rate()), from, "learning rate at the end");
}

fn parallelism(job: &Job, list: &mut List) {
    let layout = job.layout;
    let key = |name: &str| format!("parallelism.{name}");
    for (name, degree, from) in
        [("dp", layout.dp, "layout.dp"), ("pp", layout.pp, "layout.pp"), ("tp", layout.tp, "layout.tp")]
    {
        list.set(Kind::Layout, &key(name), degree, from, "degrees");
    }
    list.set(Kind::Layout, &key("context_parallel_size"), layout.cp, "layout.cp", "parts of the timeline");
    list.set(Kind::Layout, &key("expert_parallel_size"), layout.ep, "layout.ep", "whole experts to ranks");
    let engine = if layout.schedule == Schedule::GPipe { "\"afab\"" } else { "\"1f1b\"" };
    list.set(Kind::Layout, &key("pp_engine"), engine, "layout.schedule", "afab is all forwards, then all backwards");
    let mode = if layout.sp { "\"REDUCE_SCATTER\"" } else { "\"ALL_REDUCE\"" };
    list.set(Kind::Layout, &key("tp_mode"), mode, "layout.sp", "reduce-scatter is sequence parallelism");
    list.set(Kind::Policy, &key("tp_linear_async_communication"), layout.sp, "layout.sp", "overlaps the gather");
    let recompute = layout.recompute == Recompute::Full;
    list.set(Kind::Layout, &key("recompute_layer"), recompute, "layout.recompute", "whole layers or nothing");
}

fn tokens(job: &Job, list: &mut List) {
    let layout = job.layout;
    let tokenizer = job.policy.data.tokenizer.as_ref().map(|t| serde_json::to_string(t).unwrap_or_default());
    // A made-up tokenizer's name is never loaded where data is made up too.
    let tokenizer = tokenizer.unwrap_or_else(|| "null".to_string());
    list.set(
        Kind::Policy,
        "tokenizer.tokenizer_name_or_path",
        tokenizer,
        "policy.data.tokenizer",
        "named in the policy",
    );
    list.set(Kind::Policy, "tokenizer.tokenizer_max_length", "null", "policy.data.tokenizer", "no limit");
    let key = |name: &str| format!("tokens.{name}");
    let steps = job.policy.run.steps;
    let why = "microbatches of a step on one replica";
    list.set(Kind::Layout, &key("batch_accumulation_per_replica"), layout.microbatches, "layout.microbatches", why);
    list.set(Kind::Layout, &key("micro_batch_size"), layout.micro_batch, "layout.micro_batch", "sequences");
    list.set(Kind::Layout, &key("sequence_length"), layout.sequence, "layout.sequence", "tokens");
    list.set(Kind::Policy, &key("train_steps"), steps, "policy.run.steps", "steps");
    list.set(Kind::Policy, &key("val_check_interval"), -1, "policy.run", "evaluation is a run of its own");
    list.set(Kind::Policy, &key("limit_val_batches"), 0, "policy.run", "evaluation is a run of its own");
    list.set(Kind::Policy, &key("limit_test_batches"), 0, "policy.run", "evaluation is a run of its own");
}
