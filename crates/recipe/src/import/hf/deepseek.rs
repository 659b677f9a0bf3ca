//! deepseek_v2, deepseek_v3: latent attention, the first layers dense, then experts.

use super::config::Config;
use super::moe::{bank, fill, interleaved, predictions, shared};
use crate::kinds::Activation;
use crate::kinds::attention::{Attention, AttentionKind};
use crate::kinds::mla::Mla;
use crate::kinds::mlp::Mlp;
use crate::kinds::moe::ScoreFunction;
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
    build(config, &defaults, &["num_experts", "n_routed_experts"], bias)
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
    }
    predictions(config, &mut recipe, 1, Layer::of(&[Mixer::Attention, Mixer::Moe]))?;
    Some(recipe)
}

fn build(config: &mut Config, defaults: &Defaults, expert_keys: &[&str], mlp_bias: bool) -> Option<Recipe> {
    let hidden = config.count("hidden_size", defaults.hidden)?;
    let attention = latent_attention(config, defaults.heads)?;
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
    let mlp = Mlp { ffn, activation: Activation::SwiGlu, bias: mlp_bias };
    let layers = interleaved(depth, |i| i >= dense_first);
    let mut recipe = config.recipe(layers, hidden, defaults.vocab, 10_000.0)?;
    fill(&mut recipe, attention, mlp, moe);
    Some(recipe)
}

fn latent_attention(config: &mut Config, heads: u64) -> Option<Attention> {
    let heads = config.count("num_attention_heads", heads)?;
    let q_rank = config.nullable("q_lora_rank", Some(1536))?;
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
        latent_norm: true,
    };
    Some(Attention { kind: AttentionKind::Mla(mla), ..Attention::gqa(heads, heads, 1) })
}
