//! Megatron-Bridge 0.6.2, as NeMo runs it: a recipe module. It is Megatron's own argument list put
//! on the Bridge's configuration objects, flag by flag; a flag without a place there is refused, so
//! nothing is lost on the way.

use super::megatron::{self, Shape};
use super::{lane_of, torchtitan::python};
use crate::emission::{Argument, Emission, File, Starter};
use crate::job::Job;
use diag::{Blame, Finding};
use serde_json::{Map, Value, json};

const FILE: &str = "bridge_recipe.py";
const CODE: &str = include_str!("../../assets/bridge/recipe.py");

/// Flags and where their value goes: section and key. `model` is the provider's.
const PLACES: &[(&str, &str, &str)] = &[
    ("--num-layers", "model", "num_layers"),
    ("--num-experts", "model", "num_moe_experts"),
    ("--num-virtual-stages-per-pipeline-rank", "model", "virtual_pipeline_model_parallel_size"),
    ("--seq-length", "model", "seq_length"),
    ("--norm-epsilon", "model", "layernorm_epsilon"),
    ("--use-rope-scaling", "model", "rope_scaling"),
    ("--rotary-seq-len-interpolation-factor", "model", "seq_len_interpolation_factor"),
    ("--micro-batch-size", "train", "micro_batch_size"),
    ("--global-batch-size", "train", "global_batch_size"),
    ("--train-iters", "train", "train_iters"),
    ("--eval-iters", "validation", "eval_iters"),
    ("--eval-interval", "validation", "eval_interval"),
    ("--seed", "rng", "seed"),
    ("--save", "checkpoint", "save"),
    ("--load", "checkpoint", "load"),
    ("--save-interval", "checkpoint", "save_interval"),
    ("--ckpt-format", "checkpoint", "ckpt_format"),
    ("--log-interval", "logger", "log_interval"),
    ("--tensorboard-dir", "logger", "tensorboard_dir"),
    ("--split", "dataset", "split"),
    ("--data-path", "dataset", "data_path"),
    ("--tokenizer-type", "tokenizer", "tokenizer_type"),
    ("--tokenizer-model", "tokenizer", "tokenizer_model"),
    ("--use-megatron-fsdp", "ddp", "use_megatron_fsdp"),
    ("--data-parallel-sharding-strategy", "ddp", "data_parallel_sharding_strategy"),
    ("--use-distributed-optimizer", "ddp", "use_distributed_optimizer"),
    ("--overlap-grad-reduce", "ddp", "overlap_grad_reduce"),
    ("--overlap-param-gather", "ddp", "overlap_param_gather"),
    ("--ddp-bucket-size", "ddp", "bucket_size"),
    ("--ddp-num-buckets", "ddp", "num_buckets"),
    ("--ddp-pad-buckets-for-high-nccl-busbw", "ddp", "pad_buckets_for_high_nccl_busbw"),
    ("--use-sharp", "dist", "use_sharp"),
    ("--lr", "optimizer", "max_lr"),
    ("--min-lr", "optimizer", "min_lr"),
    ("--lr-warmup-iters", "optimizer", "lr_warmup_iters"),
    ("--lr-decay-iters", "optimizer", "lr_decay_iters"),
    ("--weight-decay", "optimizer", "weight_decay"),
    ("--clip-grad", "optimizer", "clip_grad"),
    ("--adam-beta1", "optimizer", "adam_beta1"),
    ("--adam-beta2", "optimizer", "adam_beta2"),
    ("--override-opt-param-scheduler", "scheduler", "override_opt_param_scheduler"),
];

/// Flags whose key of the provider is the flag's own name.
const OWN_NAME: &[&str] = &[
    "--hybrid-layer-pattern",
    "--window-size",
    "--window-attn-skip-freq",
    "--hidden-size",
    "--normalization",
    "--ffn-hidden-size",
    "--num-attention-heads",
    "--num-query-groups",
    "--kv-channels",
    "--qk-layernorm",
    "--q-lora-rank",
    "--kv-lora-rank",
    "--qk-head-dim",
    "--qk-pos-emb-head-dim",
    "--v-head-dim",
    "--rope-type",
    "--rope-scaling-factor",
    "--rotary-scaling-factor",
    "--mscale",
    "--mscale-all-dim",
    "--init-method-std",
    "--position-embedding-type",
    "--rotary-base",
    "--rotary-percent",
    "--add-qkv-bias",
    "--attention-output-gate",
    "--moe-router-topk",
    "--moe-ffn-hidden-size",
    "--moe-grouped-gemm",
    "--moe-shared-expert-intermediate-size",
    "--moe-shared-expert-gate",
    "--moe-latent-size",
    "--moe-layer-freq",
    "--moe-router-score-function",
    "--moe-router-dtype",
    "--moe-router-enable-expert-bias",
    "--moe-router-pre-softmax",
    "--moe-router-topk-scaling-factor",
    "--moe-router-num-groups",
    "--moe-router-group-topk",
    "--moe-router-bias-update-rate",
    "--moe-z-loss-coeff",
    "--moe-router-load-balancing-type",
    "--moe-aux-loss-coeff",
    "--moe-permute-fusion",
    "--moe-token-dispatcher-type",
    "--moe-expert-capacity-factor",
    "--moe-pad-expert-input-to-capacity",
    "--mamba-num-heads",
    "--mamba-head-dim",
    "--mamba-state-dim",
    "--mamba-num-groups",
    "--linear-num-key-heads",
    "--linear-num-value-heads",
    "--linear-key-head-dim",
    "--linear-value-head-dim",
    "--linear-conv-kernel-dim",
    "--mtp-num-layers",
    "--mtp-use-repeated-layer",
    "--vocab-size",
    "--make-vocab-size-divisible-by",
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
    "--sequence-parallel",
    "--pipeline-model-parallel-layout",
    "--cp-comm-type",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--recompute-modules",
    "--attention-dropout",
    "--hidden-dropout",
];

/// Flags said by the module's form, by what is absent, or by the Bridge's own defaults.
const IMPLIED: &[&str] = &[
    "--spec",
    "--bf16",
    "--group-query-attention",
    "--multi-latent-attention",
    "--max-position-embeddings",
    "--swiglu",
    "--squared-relu",
    "--disable-bias-linear",
    "--untie-embeddings-and-output-weights",
    "--no-gradient-accumulation-fusion",
    "--no-rope-fusion",
    "--accumulate-allreduce-grads-in-fp32",
    "--grad-reduce-in-bf16",
    "--optimizer",
    "--muon-momentum",
    "--muon-tp-mode",
    "--padded-vocab-size",
    "--mock-data",
    "--data-cache-path",
    "--lr-decay-style",
    "--no-create-attention-mask-in-dataloader",
    "--cross-entropy-loss-fusion",
    "--cross-entropy-fusion-impl",
];

/// Writes a job down as a recipe module.
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    let shape = Shape::of(job);
    let list = megatron::arguments(job, shape)?;
    let mut findings = refusals(job, shape);
    let mut tables = Map::new();
    let mut placed = Vec::new();
    for argument in &list {
        match place(&argument.flag) {
            Some((section, key)) => {
                let value = value(argument, &key);
                tables.entry(section.to_string()).or_insert_with(|| json!({}))[key.as_str()] = value.clone();
                let flag = format!("{section}.{key}");
                placed.push(Argument { flag, values: vec![python(&value)], ..argument.clone() });
            }
            None if IMPLIED.contains(&argument.flag.as_str()) => {}
            None => findings.push(unsayable(&argument.flag, "has no place in Megatron-Bridge's configuration")),
        }
    }
    if let Some(kept) = job.policy.storage.keep_last {
        // training/checkpointing.py removes all but so many of the newest behind every save.
        tables.entry("checkpoint").or_insert_with(|| json!({}))["most_recent_k"] = json!(kept);
        placed.push(Argument {
            flag: "checkpoint.most_recent_k".to_string(),
            values: vec![kept.to_string()],
            kind: crate::Kind::Policy,
            from: "policy.storage.keep_last".to_string(),
            why: "checkpoints kept".to_string(),
        });
    }
    if !findings.is_empty() {
        return Err(findings);
    }
    let base = megatron::emit(job)?;
    let mut files = base.files;
    let text = module(job, shape, &list, tables, !files.is_empty());
    files.push(File::new(FILE, text));
    Ok(Emission {
        engine: layout::Engine::Megatron,
        lane: lane_of(job),
        mode: job.layout.mode,
        starter: Starter::Torchrun,
        checkout: None,
        entry: vec![FILE.to_string()],
        arguments: placed,
        on_command_line: false,
        environment: base.environment,
        files,
        seams: base.seams,
    })
}

fn unsayable(object: &str, message: &str) -> Finding {
    Finding::error("bridge/unsayable", Blame::Engine, object, format!("`{object}` {message}"))
}

fn refusals(job: &Job, shape: Shape) -> Vec<Finding> {
    let mut findings = Vec::new();
    if shape == Shape::Hybrid && job.recipe.is_latent() {
        let message = "has no provider in Megatron-Bridge together with a hybrid stack";
        findings.push(unsayable("latent attention", message));
    }
    if job.recipe.features.sides().next().is_some() {
        let message = "are built by an entry of ours to Megatron-LM, which Megatron-Bridge does not start";
        findings.push(unsayable("side embeddings", message).hint("--frontend megatron-lm"));
    }
    if job.case.options.scaling.is_some() {
        let message = "is a named recipe of Megatron-Bridge's mixed precision, which is not emitted";
        findings.push(unsayable("precision", message).hint("leave --precision out, or take --frontend megatron-lm"));
    }
    findings
}

/// Where a flag's value goes.
fn place(flag: &str) -> Option<(&'static str, String)> {
    let named = PLACES.iter().find(|(known, ..)| *known == flag).map(|(_, section, key)| (*section, key.to_string()));
    let own = || OWN_NAME.contains(&flag).then(|| ("model", flag.trim_start_matches('-').replace('-', "_")));
    named.or_else(own)
}

/// Keys whose value is text, however much it looks like a number: a tokenizer may be called `1e5`.
const TEXTS: &[&str] = &[
    "ckpt_format",
    "data_path",
    "hybrid_layer_pattern",
    "load",
    "pipeline_model_parallel_layout",
    "save",
    "split",
    "tensorboard_dir",
    "tokenizer_model",
    "tokenizer_type",
];

/// A flag's value: a switch is true, numbers are numbers, lists are lists, text is text.
fn value(argument: &Argument, key: &str) -> Value {
    let number = |text: &str| serde_json::from_str(text).ok().filter(|value: &Value| value.is_number());
    let one = |text: &String| number(text).filter(|_| !TEXTS.contains(&key)).unwrap_or_else(|| json!(text));
    match argument.values.as_slice() {
        [] => json!(true),
        _ if matches!(key, "recompute_modules" | "data_path") => argument.values.iter().map(one).collect(),
        [text] if matches!(key, "moe_layer_freq" | "window_attn_skip_freq") => frequency(text),
        [text] if key == "window_size" => text.split(',').map(|side| json!(side.parse::<u64>().ok())).collect(),
        [text] => one(text),
        many => many.iter().map(one).collect(),
    }
}

/// Megatron's list expression, such as `([0]*3+[1]*58)`, as the list it means.
fn frequency(text: &str) -> Value {
    let runs = text.trim_matches(['(', ')']).split('+').filter_map(|run| {
        let (bit, count) = run.split_once("]*")?;
        Some(vec![bit.trim_start_matches('[').parse::<u64>().ok()?; count.parse().ok()?])
    });
    match text.parse::<u64>() {
        Ok(n) => json!(n),
        Err(_) => json!(runs.flatten().collect::<Vec<u64>>()),
    }
}

/// The module: the plan's tables, then the fixed code.
fn module(job: &Job, shape: Shape, list: &[Argument], mut tables: Map<String, Value>, is_custom: bool) -> String {
    let has = |flag: &str| list.iter().any(|a| a.flag == flag);
    let mut take = |key: &str| tables.remove(key).unwrap_or_else(|| json!({}));
    let (mut model, optimizer) = (take("model"), take("optimizer"));
    let activation = match (has("--swiglu"), has("--squared-relu")) {
        (true, _) => "silu",
        (_, true) => "squared_relu",
        _ => "gelu",
    };
    model["activation_func"] = json!(activation);
    model["gated_linear_unit"] = json!(has("--swiglu"));
    model["add_bias_linear"] = json!(!has("--disable-bias-linear"));
    model["share_embeddings_and_output_weights"] = json!(!has("--untie-embeddings-and-output-weights"));
    model["gradient_accumulation_fusion"] = json!(!has("--no-gradient-accumulation-fusion"));
    model["apply_rope_fusion"] = json!(!has("--no-rope-fusion"));
    model["cross_entropy_loss_fusion"] = json!(has("--cross-entropy-loss-fusion"));
    let mut ddp = take("ddp");
    for switch in ["use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"] {
        ddp[switch] = json!(ddp[switch] == json!(true));
    }
    ddp["grad_reduce_in_fp32"] = json!(has("--accumulate-allreduce-grads-in-fp32"));
    tables.insert("ddp".to_string(), ddp);
    let dataset = tables.entry("dataset".to_string()).or_insert_with(|| json!({}));
    dataset["seq_length"] = json!(job.layout.sequence);
    if job.policy.data.tokenizer.is_none() {
        let tokenizer = tables.entry("tokenizer".to_string()).or_insert_with(|| json!({}));
        tokenizer["vocab_size"] = json!(job.recipe.vocab);
    }
    let form = match (shape, job.recipe.is_latent()) {
        (Shape::Hybrid, _) => "hybrid",
        (Shape::Gpt, true) => "mla",
        (Shape::Gpt, false) => "gpt",
    };
    let muon = list.iter().any(|a| a.flag == "--optimizer" && a.values == ["muon"]);
    let mut out =
        String::from("\"\"\"Megatron-Bridge recipe of one plan: `recipe()` returns its configuration.\"\"\"\n");
    out += &megatron::seam_comments(job);
    for (name, value) in [
        ("FORM", json!(form)),
        ("CUSTOM_SPEC", if is_custom { json!(megatron::SPEC_MODULE) } else { Value::Null }),
        ("OPTIMIZER_NAME", json!(if muon { "muon" } else { "adam" })),
        ("MODEL", model),
        ("OPTIMIZER", optimizer),
        ("SECTIONS", Value::Object(tables)),
    ] {
        out += &format!("{name} = {}\n", python(&value));
    }
    out + "\n" + CODE
}
