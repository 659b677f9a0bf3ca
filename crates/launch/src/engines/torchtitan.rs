//! torchtitan 0.3.0: a Python module with a configuration function, started by
//! `torchtitan.train`. The module is tables of the plan followed by fixed code that builds the
//! engine's configuration objects from them (`assets/torchtitan/config.py`). Its package names no version of torch: what is
//! emitted trains with 2.15.0 (`tools/engines/check_titan_train.py`), and it does not start with 2.11.

use super::decoder::{Decoder, Has};
use super::list::List;
use super::{engine_seams, lane_of, storage_environment};
use crate::emission::{Argument, Emission, File, Kind, Starter};
use crate::job::Job;
use crate::policy::Decay;
use case::options::{Again, Dispatch, Elementwise, TpOverlap};
use diag::{Blame, Finding, quote};
use layout::{Engine, Recompute, Schedule, ZeroStage};
use recipe::kinds::attention::QkNorm;
use recipe::kinds::moe::GroupScore;
use recipe::{Scaling, Seam};
use serde_json::{Value, json};

const MODULE: &str = "titan_config";
const CODE: &str = include_str!("../../assets/torchtitan/config.py");

/// What its decoders have (`models/llama3`, `models/qwen3`, `models/deepseek_v3`). Balancing is by
/// a bias, never by a loss.
const HAS: Has = Has {
    latent: true,
    qk_norm: true,
    free_head_dim: true,
    aux_loss: false,
    expert_bias: true,
    shared: true,
    gate: false,
    mtp: true,
};

/// Writes a job down for torchtitan.
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    let mut list = List::default();
    let findings = refusals(job);
    if !findings.is_empty() {
        return Err(findings);
    }
    parallelism(job, &mut list);
    training(job, &mut list);
    run(job, &mut list);
    let (model, seams) = match Decoder::of(job, "torchtitan/model", "torchtitan", HAS) {
        Ok(decoder) => {
            let (model, findings) = model(job, &decoder);
            if !findings.is_empty() {
                return Err(findings);
            }
            (model, Vec::new())
        }
        Err(missing) => (Value::Null, engine_seams(job, missing)?),
    };
    for (key, value) in model.as_object().into_iter().flatten() {
        let why = "the model, as the recipe says it";
        list.set(Kind::RecipeNative, &format!("model.{key}"), value, &format!("recipe {key}"), why);
    }
    let all: Vec<Seam> = job.seams.iter().cloned().chain(seams.iter().cloned()).collect();
    let file = File::new(format!("{MODULE}.py"), module(job, &list.arguments, &model, &all));
    let words = ["-m", "torchtitan.train", "--module", MODULE, "--config", "train"];
    Ok(Emission {
        engine: Engine::Torchtitan,
        lane: lane_of(job),
        mode: job.layout.mode,
        starter: Starter::Torchrun,
        checkout: None,
        entry: words.map(str::to_string).to_vec(),
        arguments: list.arguments,
        on_command_line: false,
        environment: storage_environment(job),
        files: [file].into_iter().chain(read_by_default(job)).collect(),
        seams: all,
    })
}

/// A tokenizer of bytes, and text, for a policy that names none; `launch.sh` starts in their directory.
const TOKENIZER: &str = "./tokenizer";
const TEXT: &str = "./text";

/// Ids of the tokenizer: bytes, and where a text begins and ends.
const BYTES: u64 = 258;

/// What is read where the policy names nothing.
fn read_by_default(job: &Job) -> Vec<File> {
    let mut files = Vec::new();
    if job.policy.data.tokenizer.is_none() {
        let tokenizer = include_str!("../../assets/torchtitan/tokenizer.json");
        files.push(File::new("tokenizer/tokenizer.json", tokenizer));
        let config = include_str!("../../assets/torchtitan/tokenizer_config.json");
        files.push(File::new("tokenizer/tokenizer_config.json", config));
    }
    if job.policy.data.paths.is_empty() {
        let sentence = |n: u64| {
            format!(
                "{{\"text\": \"{n} is one less than {}; its double is {} and its square {}.\"}}\n",
                n + 1,
                2 * n,
                n * n
            )
        };
        files.push(File::new("text/data.json", (0..400).map(sentence).collect::<String>()));
    }
    files
}

fn is_async(job: &Job) -> bool {
    job.case.options.overlap.tp == TpOverlap::Async
}

/// What the options and the policy ask for and cannot be told.
fn refusals(job: &Job) -> Vec<Finding> {
    let mut findings = Vec::new();
    if is_async(job) && job.case.options.kernels.elementwise != Elementwise::Compiled {
        let message = "collectives beside their products are the compiler's work, and nothing is compiled";
        let object = "compile.enable_async_tensor_parallel";
        let finding = Finding::error("torchtitan/unsayable", Blame::Engine, object, message);
        let quote = "Async TP requires 'model' in --compile.components and --compile.enable";
        findings.push(finding.quote(quote).hint("say compile.enable too"));
    }
    if job.case.options.again == Again::ByOperator && job.layout.recompute != Recompute::None {
        let message = "it is one of FullAC and SelectiveAC, and both were asked for";
        findings.push(Finding::error("torchtitan/unsayable", Blame::Engine, "activation_checkpoint", message));
    }
    if job.policy.data.tokenizer.is_none() && job.recipe.vocab < BYTES {
        let message =
            format!("the tokenizer that is written has {BYTES} ids, and the model knows {}", job.recipe.vocab);
        let finding = Finding::error("torchtitan/unsayable", Blame::Engine, "policy.data.tokenizer", message);
        findings.push(finding.hint("name a tokenizer of the model's own in the policy's [data]"));
    }
    if job.policy.data.paths.len() > 1 {
        let message = "torchtitan's text loader reads one data set, and the policy names several";
        findings.push(Finding::error("torchtitan/unsayable", Blame::Engine, "policy.data.paths", message));
    }
    findings
}

fn parallelism(job: &Job, list: &mut List) {
    let layout = job.layout;
    let kind = Kind::Layout;
    let mut set = |key: &str, value: Value, from: &str, why: &str| {
        list.set(kind, &format!("parallelism.{key}"), value, from, why);
    };
    let (replicate, shard) = match layout.zero {
        ZeroStage::Zero => (layout.dp.get(), 1),
        _ => (1, layout.dp.get()),
    };
    set("data_parallel_replicate_degree", json!(replicate), "layout.zero", "replicas that hold everything");
    set("data_parallel_shard_degree", json!(shard), "layout.dp", "replicas that share state out");
    let reshard = if layout.zero == ZeroStage::Three { "always" } else { "never" };
    set("fsdp_reshard_after_forward", json!(reshard), "layout.zero", "zero 3 gives weights back after forward");
    set("tensor_parallel_degree", json!(layout.tp.get()), "layout.tp", "matrices and head groups");
    set("enable_sequence_parallel", json!(layout.sp), "layout.sp", "activations sharded on the tensor axis");
    set("context_parallel_degree", json!(layout.cp.get()), "layout.cp", "parts of the timeline");
    set("expert_parallel_degree", json!(layout.ep.get()), "layout.ep", "whole experts to ranks");
    set("pipeline_parallel_degree", json!(layout.pp.get()), "layout.pp", "depth");
    if !layout.pp.splits() {
        return;
    }
    let schedule = match layout.schedule {
        Schedule::GPipe => "GPipe",
        Schedule::Interleaved => "Interleaved1F1B",
        Schedule::DualPipeV => "DualPipeV",
        _ => "1F1B",
    };
    set("pipeline_parallel_schedule", json!(schedule), "layout.schedule", "the order of microbatches");
    set("pipeline_parallel_microbatch_size", json!(layout.micro_batch), "layout.micro_batch", "sequences");
    let last = job.stages.chunks.len() - 1;
    let chunk = |c: &layout::stages::Chunk| {
        let mut names: Vec<String> = c.layers.clone().map(|i| format!("layers.{i}")).collect();
        if c.index == 0 {
            names.insert(0, "tok_embeddings".to_string());
        }
        if c.index == last {
            names.extend(["norm".to_string(), "lm_head".to_string()]);
        }
        names
    };
    let parts: Vec<Vec<String>> = job.stages.chunks.iter().map(chunk).collect();
    set("module_fqns_per_model_part", json!(parts), "stages", "the plan's cuts, chunk by chunk");
}

fn training(job: &Job, list: &mut List) {
    let layout = job.layout;
    let mut set = |kind, key: &str, value: Value, from: &str, why: &str| {
        list.set(kind, &format!("training.{key}"), value, from, why);
    };
    let local = if layout.pp.splits() { layout.micro_batch * layout.microbatches } else { layout.micro_batch };
    set(Kind::Layout, "local_batch_size", json!(local), "layout.micro_batch", "what enters a rank at once");
    set(Kind::Layout, "global_batch_size", json!(layout.global_batch), "layout.global_batch", "sequences of a step");
    set(Kind::Layout, "seq_len", json!(layout.sequence), "layout.sequence", "tokens of a sequence");
    set(Kind::Policy, "max_norm", json!(job.policy.run.clip), "policy.run.clip", "largest gradient norm");
    set(Kind::Policy, "steps", json!(job.policy.run.steps), "policy.run.steps", "steps");
    let why = "captured graphs were not priced, and exclude pp and most of ep";
    set(Kind::Policy, "disable_cuda_graphs", json!(true), "memory", why);
    set(Kind::RecipeNative, "dtype", json!("float32"), "precision.main", "the weights that are stepped");
    set(Kind::RecipeNative, "mixed_precision_param", json!("bfloat16"), "precision.weights", "weights as gathered");
    set(Kind::RecipeNative, "mixed_precision_reduce", json!("float32"), "precision.gradients", "as reduced");
}

fn run(job: &Job, list: &mut List) {
    let (run, data) = (&job.policy.run, &job.policy.data);
    let mut set = |key: &str, value: Value, from: &str, why: &str| list.set(Kind::Policy, key, value, from, why);
    set("optimizer.lr", json!(run.learning_rate), "policy.run.learning_rate", "peak");
    set("optimizer.weight_decay", json!(run.weight_decay), "policy.run.weight_decay", "decay");
    set("lr_scheduler.warmup_steps", json!(run.warmup_steps.min(run.steps)), "policy.run.warmup_steps", "warm-up");
    let shape = if run.decay == Decay::Cosine { "cosine" } else { "linear" };
    set("lr_scheduler.decay_type", json!(shape), "policy.run.decay", "the default is linear");
    if matches!(run.decay, Decay::Constant | Decay::Wsd) {
        let ratio = run.decaying() as f64 / run.steps as f64;
        set(
            "lr_scheduler.decay_ratio",
            json!(ratio),
            "policy.run.decay",
            "the share of steps that decay, the last ones",
        );
    }
    let least = run.last_rate() / run.learning_rate;
    set("lr_scheduler.min_lr_factor", json!(least), "policy.run.least_learning_rate", "share of the peak left");
    let is_compiled = job.case.options.kernels.elementwise == Elementwise::Compiled;
    set("compile.enable", json!(is_compiled), "options", "each block compiled, as it was priced [lane/compile]");
    let is_async = is_async(job);
    set("compile.enable_async_tensor_parallel", json!(is_async), "options", "collectives beside their products");
    set("checkpoint.enable", json!(true), "policy.storage.checkpoints", "a restart goes on from there");
    set("checkpoint.folder", json!(job.checkpoints()), "policy.storage.checkpoints", "never on the root volume");
    set("checkpoint.interval", json!(run.save_every), "policy.run.save_every", "steps between checkpoints");
    // components/checkpointer/base.py: its own default removes all but ten, and 0 removes none.
    let kept = job.policy.storage.keep_last.unwrap_or(0);
    set("checkpoint.keep_latest_k", json!(kept), "policy.storage.keep_last", "checkpoints kept; 0 is all");
    set("metrics.log_freq", json!(run.log_every), "policy.run.log_every", "steps between log lines");
    set("metrics.enable_tensorboard", json!(true), "policy.storage.logs", "below the dump folder");
    set("dump_folder", json!(job.logs()), "policy.storage.logs", "never on the root volume");
    // hf_datasets/text_datasets.py: `c4_test` reads the texts of a local folder, and is where the path goes. Its own
    // folder and tokenizer are in the engine's sources alone, not in the package.
    let (dataset, path) = match data.paths.first() {
        Some(name) if !name.contains('/') => (name.as_str(), None),
        Some(path) => ("c4_test", Some(path.clone())),
        None => ("c4_test", Some(TEXT.to_string())),
    };
    set(
        "data.dataset",
        json!(dataset),
        "policy.data.paths",
        "a data set it knows by name, or the loader of local text",
    );
    set("data.dataset_path", json!(path), "policy.data.paths", "sentences about numbers where none is named");
    let assets = data.tokenizer.clone().unwrap_or_else(|| TOKENIZER.to_string());
    set("hf_assets_path", json!(assets), "policy.data.tokenizer", "a tokenizer of bytes where none is named");
    let recompute = match (job.case.options.again, &job.layout.recompute) {
        (Again::ByOperator, _) => json!("SelectiveAC"),
        (_, Recompute::Full) => json!("FullAC"),
        _ => Value::Null,
    };
    let why = "every layer computed again, operators chosen by torchtitan, or nothing";
    list.set(Kind::Layout, "recompute", recompute, "layout.recompute", why);
}

/// The model's table, and what the engine's forms have no words for.
fn model(job: &Job, decoder: &Decoder) -> (Value, Vec<Finding>) {
    let recipe = job.recipe;
    let (kv_heads, head_dim) = decoder.heads();
    let has_norm = decoder.attention.qk_norm == QkNorm::Head;
    let form = match (decoder.latent(), decoder.moe, has_norm) {
        (Some(_), ..) => "deepseek_v3",
        (None, None, false) => "llama3",
        _ => "qwen3",
    };
    let mut findings = Vec::new();
    if decoder.mtp_depth > 0 && form != "deepseek_v3" {
        let message = "torchtitan has prediction heads behind latent attention only";
        findings.push(Finding::error("torchtitan/model", Blame::Engine, "features.mtp", message));
    }
    let scaling = match decoder.rope.scaling {
        None => json!({}),
        // models/common/rope.py: `llama` has every figure of the kind.
        Some(Scaling::Llama3 { factor, low, high, original }) => json!({
            "scaling": "llama", "scaling_factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }),
        Some(other) => {
            let message = format!("torchtitan's forms are not told a `{}` scaling of rotary frequencies", other.kind());
            findings.push(Finding::error("torchtitan/model", Blame::Engine, "rope.scaling", message));
            json!({})
        }
    };
    if decoder.moe.is_some_and(|moe| moe.router.groups > 1 && moe.router.group_score != GroupScore::TopTwo) {
        let message = "torchtitan scores groups by their two best experts";
        findings.push(Finding::error("torchtitan/model", Blame::Engine, "moe.router.group_score", message));
    }
    let latent = decoder.latent().map(|mla| {
        json!({ "q_lora_rank": mla.q_rank.unwrap_or(0), "kv_lora_rank": mla.kv_rank, "qk_nope_head_dim": mla.qk_dim,
            "qk_rope_head_dim": mla.rope_dim, "v_head_dim": mla.v_dim })
    });
    let moe = decoder.moe.map(|moe| {
        // models/common/moe.py: the rate of the balancing bias; none switches it off.
        let backend = match job.case.options.kernels.dispatch {
            Dispatch::DeepEp => "deepep",
            Dispatch::HybridEp => "hybridep",
            Dispatch::AllToAll | Dispatch::AllGather => "standard",
        };
        json!({ "experts": moe.experts, "comm_backend": backend, "top_k": moe.top_k, "ffn": moe.ffn, "score": moe.router.score.name(),
            "shared_ffn": moe.shared.as_ref().map_or(0, |s| s.ffn),
            "route_norm": moe.router.normalize, "route_scale": moe.router.scaling,
            "groups": (moe.router.groups > 1).then_some(moe.router.groups),
            "limited_groups": (moe.router.groups > 1).then_some(moe.router.group_top_k),
            "expert_bias_rate": moe.router.expert_bias.then_some(moe.router.bias_update_rate.unwrap_or(1e-3)) })
    });
    let table = json!({
        "form": form, "hidden": recipe.hidden, "vocab": recipe.vocab, "tied": recipe.tied, "depth": recipe.depth(),
        "dense_first": decoder.dense_first, "heads": decoder.attention.heads, "kv_heads": kv_heads,
        "head_dim": head_dim, "theta": decoder.rope.theta, "rope_scaling": scaling, "norm_eps": recipe.norm_eps,
        "init_std": recipe.init_std.unwrap_or(0.02), "qk_norm": has_norm, "latent": latent,
        "ffn": decoder.mlp.map(|m| m.ffn), "moe": moe, "mtp_depth": decoder.mtp_depth,
    });
    (table, findings)
}

/// The module: the plan's tables, then the fixed code.
fn module(job: &Job, arguments: &[Argument], model: &Value, seams: &[Seam]) -> String {
    let tree = crate::tree::nested(arguments);
    let table = |key: &str| python(&tree[key]);
    let mut out = String::from("\"\"\"torchtitan configuration of one plan: `train()` returns it.\"\"\"\n");
    for seam in seams {
        out += &(quote::comment(&format!("# seam {}: {}; runs: {}", seam.name, seam.wanted, seam.runs)) + "\n");
    }
    out += &format!("MODEL = {}\n", python(model));
    for (name, key) in [
        ("VOCAB", ""),
        ("PARALLELISM", "parallelism"),
        ("TRAINING", "training"),
        ("OPTIMIZER", "optimizer"),
        ("LR_SCHEDULER", "lr_scheduler"),
        ("COMPILE", "compile"),
        ("CHECKPOINT", "checkpoint"),
        ("METRICS", "metrics"),
        ("DATA", "data"),
        ("DUMP", "dump_folder"),
        ("ASSETS", "hf_assets_path"),
        ("RECOMPUTE", "recompute"),
    ] {
        let value = if key.is_empty() { job.recipe.vocab.to_string() } else { table(key) };
        out += &format!("{name} = {value}\n");
    }
    let kept: Vec<Value> = if model.is_null() {
        seams.iter().map(|s| json!([s.name, recipe::megatron::numbers(&s.layers)])).collect()
    } else {
        Vec::new()
    };
    out += &format!("SEAMS = {}\n", python(&Value::Array(kept)));
    let target = job.policy.seams.get("model").map_or("None".to_string(), |t| quote::python(t));
    out + &format!("MODEL_SEAM = {target}\n\n") + CODE
}

/// JSON as a Python literal.
pub(super) fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_string(),
        Value::Bool(true) => "True".to_string(),
        Value::Bool(false) => "False".to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quote::python(text),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let members: Vec<String> =
                map.iter().map(|(k, v)| format!("{}: {}", quote::python(k), python(v))).collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}
