//! MaxText 0.2.5: overrides of its base configuration, `key=value` on the line. File names are
//! relative to `maxtext`.

use super::decoder::{Decoder, Has};
use super::list::List;
use super::{lane_of, storage_environment};
use crate::emission::{Emission, Kind, Starter};
use crate::identity::Identity;
use crate::job::Job;
use crate::policy::Decay;
use diag::{Blame, Finding, quote};
use layout::{Engine, Recompute};
use recipe::kinds::attention::QkNorm;
use recipe::kinds::moe::{GroupScore, ScoreFunction};
use recipe::{Scaling, Yarn};
use units::gcd;

/// What its decoder blocks have (`models/llama2.py`, `mixtral.py`, `qwen3.py`, `deepseek.py`).
const HAS: Has = Has {
    latent: true,
    qk_norm: true,
    free_head_dim: true,
    aux_loss: true,
    expert_bias: true,
    shared: true,
    gate: false,
    mtp: true,
};

/// Writes a job down for MaxText.
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    let decoder = Decoder::of(job, "maxtext/model", "MaxText", HAS)?;
    let mut list = List::default();
    let mut findings = Vec::new();
    model(job, &decoder, &mut list, &mut findings);
    mesh(job, &mut list, &mut findings);
    batch(job, &mut list, &mut findings);
    run(job, &mut list, &mut findings);
    if !findings.is_empty() {
        return Err(findings);
    }
    let mut entry: Vec<String> =
        ["-m", "maxtext.trainers.pre_train.train", "src/maxtext/configs/base.yml"].map(str::to_string).to_vec();
    entry.extend(list.arguments.iter().map(|a| format!("{}={}", a.flag, a.values.join(","))));
    Ok(Emission {
        engine: Engine::Maxtext,
        lane: lane_of(job),
        mode: job.layout.mode,
        starter: Starter::Python,
        checkout: None,
        entry,
        arguments: list.arguments,
        on_command_line: false,
        environment: storage_environment(job),
        files: Vec::new(),
        seams: job.seams.to_vec(),
    })
}

fn unsayable(object: &str, message: impl Into<String>) -> Finding {
    Finding::error("maxtext/unsayable", Blame::Engine, object, message)
}

/// The decoder block of this form (`common/common_types.py`).
fn block(decoder: &Decoder) -> &'static str {
    let has_norm = decoder.attention.qk_norm == QkNorm::Head;
    match (decoder.latent(), decoder.moe, has_norm) {
        (Some(_), ..) => "deepseek",
        (None, Some(_), true) => "qwen3_moe",
        (None, Some(_), false) => "mixtral",
        (None, None, true) => "qwen3",
        (None, None, false) => "llama2",
    }
}

fn model(job: &Job, decoder: &Decoder, list: &mut List, findings: &mut Vec<Finding>) {
    let recipe = job.recipe;
    let block = block(decoder);
    let mut set = |key: &str, value: String, from: &str| {
        list.set(Kind::RecipeNative, key, value, from, "the model, over the base configuration's");
    };
    let (kv_heads, head_dim) = decoder.heads();
    let dense = decoder.mlp.map_or_else(|| decoder.moe.map_or(0, |m| m.ffn), |m| m.ffn);
    set("decoder_block", block.to_string(), "recipe.pattern");
    set("base_emb_dim", recipe.hidden.to_string(), "recipe.hidden");
    set("base_num_query_heads", decoder.attention.heads.to_string(), "attention.heads");
    set("base_num_kv_heads", kv_heads.to_string(), "attention.kv_heads");
    set("head_dim", head_dim.to_string(), "attention.head_dim");
    set("base_mlp_dim", dense.to_string(), "mlp.ffn");
    set("base_num_decoder_layers", recipe.depth().to_string(), "recipe.depth");
    set("vocab_size", recipe.vocab.to_string(), "recipe.vocab");
    set("logits_via_embedding", recipe.tied.to_string(), "recipe.tied");
    set("rope_max_timescale", super::list::number(decoder.rope.theta), "recipe.rope_theta");
    set("normalization_layer_epsilon", format!("{:?}", recipe.norm_eps), "recipe.norm_eps");
    set("use_qk_norm", (decoder.attention.qk_norm == QkNorm::Head).to_string(), "attention.qk_norm");
    set("enable_dropout", "false".to_string(), "recipe");
    if let Some(mla) = decoder.latent() {
        set("attention_type", "mla".to_string(), "attention.kind");
        set("q_lora_rank", mla.q_rank.unwrap_or(0).to_string(), "attention.q_rank");
        set("kv_lora_rank", mla.kv_rank.to_string(), "attention.kv_rank");
        set("qk_nope_head_dim", mla.qk_dim.to_string(), "attention.qk_dim");
        set("qk_rope_head_dim", mla.rope_dim.to_string(), "attention.rope_dim");
        set("v_head_dim", mla.v_dim.to_string(), "attention.v_dim");
    }
    rotation(job, decoder, list, findings);
    let mut set = |key: &str, value: String, from: &str| {
        list.set(Kind::RecipeNative, key, value, from, "the model, over the base configuration's");
    };
    if decoder.mtp_depth > 0 {
        set("mtp_num_layers", decoder.mtp_depth.to_string(), "features.mtp.depth");
    }
    if decoder.moe.is_some() {
        experts(decoder, block, list, findings);
    } else if decoder.latent().is_some() {
        findings.push(unsayable("moe", "the latent block comes with experts"));
    }
}

/// Scaled rotary frequencies: `layers/embeddings.py`, and the score scale of `layers/attention_mla.py`, which
/// reads the two lengths whatever the kind.
fn rotation(job: &Job, decoder: &Decoder, list: &mut List, findings: &mut Vec<Finding>) {
    let mut set = |key: &str, value: String, from: &str| {
        list.set(Kind::RecipeNative, key, value, from, "rotary positions");
    };
    let length = job.layout.sequence;
    match (decoder.rope.scaling, decoder.latent()) {
        (None, _) => {
            set("rope_type", "default".to_string(), "rope.scaling.kind");
            set("max_position_embeddings", length.to_string(), "layout.sequence");
            set("original_max_position_embeddings", length.to_string(), "layout.sequence");
        }
        (Some(Scaling::Linear { factor }), None) => {
            set("rope_type", "default".to_string(), "rope.scaling.kind");
            set("rope_linear_scaling_factor", format!("{factor:?}"), "rope.scaling.factor");
        }
        // `LLaMARotaryEmbedding` has these figures.
        (Some(Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 }), None) => {
            set("rope_type", "llama3.1".to_string(), "rope.scaling.kind");
            set("rope_use_scale", "true".to_string(), "rope.scaling.factor");
        }
        (Some(Scaling::Yarn(yarn)), Some(_)) if is_deepseeks(&yarn) => {
            set("rope_type", "yarn".to_string(), "rope.scaling.kind");
            set("rope_factor", format!("{:?}", yarn.factor), "rope.scaling.factor");
            set("original_max_position_embeddings", yarn.original.to_string(), "rope.scaling.original");
            let longest = (yarn.original as f64 * yarn.factor).ceil() as u64;
            set("max_position_embeddings", longest.to_string(), "rope.scaling.factor");
            set("beta_fast", format!("{:?}", yarn.beta_fast), "rope.scaling.beta_fast");
            set("beta_slow", format!("{:?}", yarn.beta_slow), "rope.scaling.beta_slow");
            set("mscale", format!("{:?}", yarn.mscale.unwrap_or(0.0)), "rope.scaling.mscale");
            set("rope_truncate", yarn.rounds.to_string(), "rope.scaling.rounds");
        }
        (Some(other), _) => {
            let message = format!("no keys say this `{}` scaling of rotary frequencies here", other.kind());
            findings.push(unsayable("rope.scaling", message));
        }
    }
}

/// The one `mscale` scales scores; rotated columns stay as they are where both of the recipe's agree.
fn is_deepseeks(yarn: &Yarn) -> bool {
    yarn.mscale.is_some() && yarn.mscale == yarn.mscale_all_dim && yarn.attention_factor.is_none() && yarn.factor > 1.0
}

fn experts(decoder: &Decoder, block: &str, list: &mut List, findings: &mut Vec<Finding>) {
    let Some(moe) = decoder.moe else { return };
    let mut set = |key: &str, value: String, from: &str| {
        list.set(Kind::RecipeNative, key, value, from, "the experts");
    };
    set("num_experts", moe.experts.to_string(), "moe.experts");
    set("num_experts_per_tok", moe.top_k.to_string(), "moe.top_k");
    set("base_moe_mlp_dim", moe.ffn.to_string(), "moe.ffn");
    set("load_balance_loss_weight", format!("{:?}", moe.router.aux_loss.unwrap_or(0.0)), "moe.router.aux_loss");
    if block == "deepseek" {
        let shared = moe.shared.as_ref().map_or(0, |s| s.ffn);
        if !shared.is_multiple_of(moe.ffn) {
            let message = format!("shared experts are whole experts, and {shared} is no multiple of {}", moe.ffn);
            findings.push(unsayable("moe.shared", message));
        }
        set("first_num_dense_layers", decoder.dense_first.to_string(), "recipe.pattern");
        set("shared_experts", (shared / moe.ffn).to_string(), "moe.shared.ffn");
        set("routed_score_func", moe.router.score.to_string(), "moe.router.score");
        set("routed_bias", moe.router.expert_bias.to_string(), "moe.router.expert_bias");
        let rate = if moe.router.expert_bias { moe.router.bias_update_rate.unwrap_or(1e-3) } else { 0.0 };
        set("routed_bias_update_rate", format!("{rate:?}"), "moe.router.bias_update_rate");
        set("routed_scaling_factor", format!("{:?}", moe.router.scaling), "moe.router.scaling");
        if moe.router.groups > 1 {
            set("n_routing_groups", moe.router.groups.to_string(), "moe.router.groups");
            set("topk_routing_group", moe.router.group_top_k.to_string(), "moe.router.group_top_k");
        }
        // `deepseek_scale_weights`: sigmoid scores are divided by their sum, shares of a softmax are not.
        if moe.router.normalize != (moe.router.score == ScoreFunction::Sigmoid) {
            let message = format!("the `deepseek` block normalises sigmoid scores, and {} ones not", moe.router.score);
            findings.push(unsayable("moe.router.normalize", message));
        }
        if moe.router.groups > 1 && moe.router.group_score != GroupScore::TopTwo {
            findings.push(unsayable("moe.router.group_score", "groups are scored by their two best experts"));
        }
        return;
    }
    // `get_topk`: a softmax over the chosen logits, which sums to one whatever `norm_topk_prob` says.
    set("norm_topk_prob", "true".to_string(), "moe.router.normalize");
    if !moe.router.normalize || moe.router.scaling != 1.0 || moe.router.groups > 1 {
        let message = format!("the `{block}` block's weights sum to one, unscaled and without groups");
        findings.push(unsayable("moe.router", message));
    }
    if moe.shared.is_some() || decoder.dense_first > 0 || moe.router.expert_bias {
        let message = format!("the `{block}` block has experts in every layer, none of them shared, and no bias");
        findings.push(unsayable("moe", message));
    }
    if moe.router.score != ScoreFunction::Softmax {
        findings.push(unsayable("moe.router.score", format!("the `{block}` block's router is a softmax")));
    }
}

/// The mesh: what fits an island goes to its own fabric (`ici`), stages and replicas cross (`dcn`). An
/// island is a slice of TPUs, or a node of GPUs.
fn mesh(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let layout = job.layout;
    let (dp, ep, pp) = (layout.dp.get(), layout.ep.get(), layout.pp.get());
    if !dp.is_multiple_of(ep) {
        let message = format!("the expert axis takes ranks from dp={dp}, which is no multiple of ep={ep}");
        findings
            .push(Finding::error("maxtext/expert-mesh", Blame::Engine, "ep", message).fix("ep", units::divisors(dp)));
        return;
    }
    if ep > 1 && layout.etp != layout.tp {
        let message = format!("the tensor axis cuts experts too, and etp={} is not tp={}", layout.etp, layout.tp);
        findings.push(Finding::error("maxtext/etp", Blame::Engine, "etp", message).fix("etp", vec![layout.tp.get()]));
        return;
    }
    let is_tpu = job.cluster.device.kind == hardware::Kind::Tpu;
    let (islands, island) = if is_tpu { (job.cluster.islands(), "slice") } else { (job.cluster.nodes, "node") };
    let dcn_pp = gcd(pp, islands);
    let dcn_fsdp = islands / dcn_pp;
    let fsdp = dp / ep;
    if !fsdp.is_multiple_of(dcn_fsdp) {
        let message =
            format!("{islands} {island}s are filled by stages and replicas, and pp={pp}, dp/ep={fsdp} do not");
        let inside = [("tp", layout.tp), ("cp", layout.cp), ("ep", layout.ep)];
        let inside: Vec<&str> = inside.iter().filter(|(_, degree)| degree.splits()).map(|(axis, _)| *axis).collect();
        let hint = match inside.as_slice() {
            [] => format!("a pp that {islands} {island}s and the replicas fill"),
            axes => format!("lower {}, which stay inside a {island} [lane/island]", axes.join(" or ")),
        };
        findings.push(unsayable("dp", message).hint(hint));
        return;
    }
    let why = &format!("inside a {island} [lane/island]");
    let mut set = |key: &str, degree: u64, from: &str, why: &str| list.set(Kind::Layout, key, degree, from, why);
    set("ici_data_parallelism", 1, "layout.dp", why);
    set("ici_fsdp_parallelism", fsdp / dcn_fsdp, "layout.dp", why);
    set("ici_expert_parallelism", ep, "layout.ep", why);
    set("ici_tensor_parallelism", layout.tp.get(), "layout.tp", why);
    set("ici_context_parallelism", layout.cp.get(), "layout.cp", why);
    set("ici_pipeline_parallelism", pp / dcn_pp, "layout.pp", why);
    let why = &format!("between {island}s [lane/island]");
    // configs/base.yml: TPU slices are determined automatically.
    if !is_tpu {
        let what = "devices that reach one another over the fast fabric make a slice";
        set("num_slices", islands, "cluster.nodes", what);
    }
    set("dcn_data_parallelism", 1, "layout.dp", why);
    set("dcn_fsdp_parallelism", dcn_fsdp, "layout.dp", why);
    set("dcn_pipeline_parallelism", dcn_pp, "layout.pp", why);
}

fn batch(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let layout = job.layout;
    let world = layout.world as f64;
    let kind = Kind::Layout;
    // Under a pipeline a step is one batch cut into microbatches; without one it is accumulated.
    let (accumulate, at_once) = match layout.pp.splits() {
        true => (1, layout.global_batch),
        false => (layout.microbatches, layout.global_batch / layout.microbatches),
    };
    let per_device = super::list::number(at_once as f64 / world);
    list.set(kind, "per_device_batch_size", per_device, "layout.micro_batch", "sequences at once, over all devices");
    list.set(kind, "gradient_accumulation_steps", accumulate, "layout.microbatches", "microbatches");
    list.set(kind, "max_target_length", layout.sequence, "layout.sequence", "tokens of a sequence");
    if layout.pp.splits() {
        let layers = job.recipe.depth() as u64 / layout.chunks();
        list.set(kind, "num_layers_per_pipeline_stage", layers, "stages", "layers of a chunk");
        list.set(kind, "num_pipeline_microbatches", layout.microbatches, "layout.microbatches", "microbatches");
        let counts = job.stages.layer_counts();
        if counts.iter().any(|n| *n as u64 != layers) {
            findings.push(unsayable("boundaries", "MaxText's chunks are equal, and the plan's are not"));
        }
    }
    let policy = match layout.recompute {
        Recompute::None => "null",
        Recompute::Full => "full",
        Recompute::Selective(_) => {
            let message = "MaxText's policies name its own tensors, not the modules named";
            findings.push(unsayable("recompute", message));
            "null"
        }
    };
    list.set(kind, "remat_policy", policy, "layout.recompute", "what backward computes again");
}

fn run(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    if job.policy.data.paths.len() > 1 {
        findings.push(unsayable("policy.data.paths", "`hf_path` is one data set, and the policy names several"));
    }
    let (run, storage, data) = (&job.policy.run, &job.policy.storage, &job.policy.data);
    let mut text = |key: &str, value: &str, from: &str, why: &str| {
        if is_taken(value) {
            findings.push(unsayable(from, format!("`{key}` cannot be the text `{}`", quote::terminal(value))));
        }
        list.set(Kind::Policy, key, yaml_text(value), from, why);
    };
    // MaxText keeps checkpoints and its log below base_output_directory/run_name, and goes on from there.
    let name = Identity::of(job).checkpoint_name;
    text("run_name", &name, "identity", "names the folder of this model's checkpoints");
    text("base_output_directory", &storage.checkpoints, "policy.storage.checkpoints", "never on the root volume");
    let cache = format!("{}/jax", storage.caches.trim_end_matches('/'));
    text("jax_cache_dir", &cache, "policy.storage.caches", "never on the root volume");
    if let Some(path) = data.paths.first() {
        text("hf_path", path, "policy.data.paths", "named in the policy");
    }
    if let Some(tokenizer) = &data.tokenizer {
        text("tokenizer_path", tokenizer, "policy.data.tokenizer", "named in the policy");
    }
    let mut set = |key: &str, value: String, from: &str, why: &str| list.set(Kind::Policy, key, value, from, why);
    set("hardware", job.cluster.device.kind.to_string(), "cluster.device.kind", "what the devices are");
    set("steps", run.steps.to_string(), "policy.run.steps", "steps");
    set("learning_rate", format!("{:?}", run.learning_rate), "policy.run.learning_rate", "peak");
    let share = |steps: u64| format!("{:?}", steps as f64 / run.steps as f64);
    set("warmup_steps_fraction", share(run.warmup()), "policy.run.warmup_steps", "the default is a tenth");
    if run.decay == Decay::Wsd {
        set("lr_schedule_type", "wsd".to_string(), "policy.run.decay", "the default is cosine");
        set("wsd_decay_steps_fraction", share(run.decaying()), "policy.run.decay_steps", "the last steps");
    }
    let least = run.last_rate() / run.learning_rate;
    set(
        "learning_rate_final_fraction",
        format!("{least:?}"),
        "policy.run.least_learning_rate",
        "share of the peak left",
    );
    set("gradient_clipping_threshold", format!("{:?}", run.clip), "policy.run.clip", "largest gradient norm");
    set("adam_weight_decay", format!("{:?}", run.weight_decay), "policy.run.weight_decay", "decay");
    set("opt_type", "adamw".to_string(), "recipe.optimizer", "AdamW throughout");
    set("checkpoint_period", run.save_every.to_string(), "policy.run.save_every", "steps between checkpoints");
    if let Some(kept) = job.policy.storage.keep_last {
        set("max_num_checkpoints_to_keep", kept.to_string(), "policy.storage.keep_last", "checkpoints kept");
    }
    set("log_period", run.log_every.to_string(), "policy.run.log_every", "steps between log lines");
    set("dtype", "bfloat16".to_string(), "precision.weights", "products");
    set("weight_dtype", "float32".to_string(), "precision.main", "the weights that are stepped");
    match data.paths.first() {
        None => set("dataset_type", "synthetic".to_string(), "policy.data.paths", "no data is named in the policy"),
        Some(_) => set("dataset_type", "hf".to_string(), "policy.data.paths", "named in the policy"),
    }
    if data.tokenizer.is_some() {
        set("tokenizer_type", "huggingface".to_string(), "policy.data.tokenizer", "named in the policy");
    }
}

/// A text as a value of the command line, which omegaconf 2.4 reads as YAML 1.1 (`OmegaConf.from_cli`): bare
/// where no reader takes it for anything else, in quotes otherwise.
fn yaml_text(text: &str) -> String {
    let words = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let is_bare = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        && !words.contains(&text.to_lowercase().as_str());
    if is_bare { text.to_string() } else { quote::yaml(text) }
}

/// Whether MaxText or omegaconf takes a text for something else, quotes or not: a reference, the mark of a
/// missing value, and `none` (`configs/pyconfig.py`, `_prepare_for_pydantic`).
fn is_taken(text: &str) -> bool {
    text.contains("${") || text == "???" || text.to_lowercase() == "none" || text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_texts() {
        assert_eq!(yaml_text("meta-llama/Llama-3.1-8B"), "meta-llama/Llama-3.1-8B");
        for (text, said) in [("null", "\"null\""), ("1e5", "\"1e5\""), ("a: b", "\"a: b\""), ("~", "\"~\"")] {
            assert_eq!(yaml_text(text), said);
        }
        assert!(["None", "${x}", "a${b}", "???", ""].into_iter().all(is_taken));
        assert!(!is_taken("$(x)"));
    }
}
