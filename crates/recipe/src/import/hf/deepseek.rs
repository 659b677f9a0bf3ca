//! deepseek_v2, deepseek_v3: latent attention, the first layers dense, then experts.

use super::config::Config;
use super::moe::{bank, fill, groups, interleaved, predictions, shared, weights};
use crate::kinds::attention::{Attention, AttentionKind};
use crate::kinds::mla::Mla;
use crate::kinds::mlp::Mlp;
use crate::kinds::moe::{BalanceOver, GroupScore, ScoreFunction};
use crate::pattern::{Layer, Mixer};
use crate::recipe::Recipe;

/// What the two versions' classes default to.
struct Defaults {
    hidden: u64,
    heads: u64,
    ffn: u64,
    expert_ffn: u64,
    depth: u64,
    vocab: u64,
    experts: u64,
    shared: u64,
    dense_first: u64,
}

/// DeepSeek-V2: softmax router, `mlp_bias` reaches dense and shared experts.
pub fn v2(config: &mut Config) -> Option<Recipe> {
    let defaults = Defaults {
        hidden: 4096,
        heads: 32,
        ffn: 11_008,
        expert_ffn: 1407,
        depth: 32,
        vocab: 102_400,
        experts: 64,
        shared: 2,
        dense_first: 0,
    };
    let bias = config.flag("mlp_bias", false);
    let hidden = config.count("hidden_size", defaults.hidden)?;
    let heads = config.count("num_attention_heads", defaults.heads)?;
    if hidden % heads != 0 {
        config.refuse("hidden_size", format!("hidden {hidden} is not a multiple of {heads} heads"));
    }
    let mut recipe = build(config, &defaults, &["num_experts", "n_routed_experts"], bias)?;
    let method = config.text("topk_method").unwrap_or("greedy");
    if let Some(moe) = &mut recipe.moe {
        // `DeepseekV2TopkRouter` scales without normalising, whatever the config says.
        moe.router.scaling = config.positive("routed_scaling_factor").unwrap_or(1.0);
        moe.router.normalize = false;
        config.agrees("norm_topk_prob", &false.into());
        config.agrees("scoring_func", &"softmax".into());
        if method == "group_limited_greedy" {
            groups(config, moe, 1, 1)?;
            if moe.router.groups > 1 {
                moe.router.group_score = GroupScore::Max;
            }
        } else {
            config.unused(&["n_group", "topk_group"], "the router is greedy: it chooses among all experts");
            if method != "greedy" {
                config.not_carried("topk_method");
            }
        }
    }
    balancing(config, &mut recipe);
    Some(recipe)
}

/// The balancing loss of DeepSeek's own configs, which transformers does not build.
fn balancing(config: &mut Config, recipe: &mut Recipe) {
    let Some(moe) = &mut recipe.moe else { return };
    moe.router.aux_loss = Some(config.share("aux_loss_alpha", 0.0)).filter(|c| *c > 0.0);
    let by_sequence = config.flag("seq_aux", true);
    if moe.router.aux_loss.is_some() && by_sequence {
        moe.router.aux_loss_over = BalanceOver::Sequence;
    }
}

/// DeepSeek-V3: sigmoid router with a balancing bias, no MLP biases, one prediction depth.
pub fn v3(config: &mut Config) -> Option<Recipe> {
    let defaults = Defaults {
        hidden: 7168,
        heads: 128,
        ffn: 18_432,
        expert_ffn: 2048,
        depth: 61,
        vocab: 129_280,
        experts: 256,
        shared: 1,
        dense_first: 3,
    };
    let mut recipe = build(config, &defaults, &["num_local_experts", "n_routed_experts"], false)?;
    if let Some(moe) = &mut recipe.moe {
        (moe.router.score, moe.router.expert_bias) = (ScoreFunction::Sigmoid, true);
        weights(config, moe, true, 2.5);
        groups(config, moe, 8, 4)?;
        config.agrees("scoring_func", &"sigmoid".into());
        config.agrees("topk_method", &"noaux_tc".into());
    }
    balancing(config, &mut recipe);
    predictions(config, &mut recipe, 1, Layer::of(&[Mixer::Attention, Mixer::Moe]))?;
    Some(recipe)
}

fn build(config: &mut Config, defaults: &Defaults, expert_keys: &[&str], mlp_bias: bool) -> Option<Recipe> {
    let hidden = config.count("hidden_size", defaults.hidden)?;
    let attention = latent_attention(config, defaults.heads, Some(1536))?;
    let depth = config.count("num_hidden_layers", defaults.depth)?;
    let dense_first = config.natural("first_k_dense_replace", defaults.dense_first)?;
    let width = config.natural("moe_intermediate_size", defaults.expert_ffn)?;
    let experts = config.either(expert_keys, defaults.experts)?;
    let shared_experts = config.natural("n_shared_experts", defaults.shared)?;
    let moe = match dense_first < depth {
        true => {
            let mut moe = bank(config, experts, width, 8)?;
            moe.shared = shared(width * shared_experts, false, mlp_bias);
            if moe.shared.is_none() && mlp_bias {
                config.refuse("n_shared_experts", "a shared expert of no width with a bias has no recipe");
            }
            Some(moe)
        }
        false => None,
    };
    let ffn = config.count("intermediate_size", defaults.ffn)?;
    let mlp = Mlp { ffn, activation: config.gated("hidden_act"), bias: mlp_bias, shift: false };
    let layers = interleaved(depth, |i| i >= dense_first);
    let mut recipe = config.recipe(layers, hidden, defaults.vocab, 10_000.0)?;
    fill(&mut recipe, attention, mlp, moe);
    Some(recipe)
}

/// Latent attention; a config without `q_lora_rank` has the class's own.
pub(super) fn latent_attention(config: &mut Config, heads: u64, q_rank: Option<u64>) -> Option<Attention> {
    let heads = config.count("num_attention_heads", heads)?;
    let q_rank = config.nullable("q_lora_rank", q_rank)?;
    if q_rank == Some(0) {
        config.refuse("q_lora_rank", "`q_lora_rank` is 0; null means no query latent");
        return None;
    }
    let mla = Mla {
        q_rank,
        kv_rank: config.count("kv_lora_rank", 512)?,
        qk_dim: config.count("qk_nope_head_dim", 128)?,
        rope_dim: config.count("qk_rope_head_dim", 64)?,
        v_dim: config.count("v_head_dim", 128)?,
        bias: config.flag("attention_bias", false),
        head_gate: false,
        latent_norm: true,
    };
    config.agrees("qk_head_dim", &(mla.qk_dim + mla.rope_dim).into());
    // Ling's delta attention has heads as wide as this says.
    let unused = if config.model_type == "bailing_hybrid" { 1 } else { 2 };
    let keys = &["num_key_value_heads", "head_dim"][..unused];
    config.unused(keys, "latent attention has no key/value heads of its own");
    let dropout = config.share("attention_dropout", 0.0);
    Some(Attention { kind: AttentionKind::Mla(mla), dropout, ..Attention::gqa(heads, heads, 1) })
}
