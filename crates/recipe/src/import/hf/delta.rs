//! bailing_hybrid, olmo_hybrid, rwkv7: delta rules, with attention in some layers of the first two.

use super::config::Config;
use super::deepseek::latent_attention;
use super::linear::{Usual, fed, kimi_experts, mixers, put};
use super::moe::fill;
use crate::kinds::attention::{Attention, AttentionKind, QkNorm};
use crate::kinds::gated_delta::GatedDelta;
use crate::kinds::kda::Kda;
use crate::kinds::linear::Linear;
use crate::kinds::mlp::Mlp;
use crate::kinds::rwkv7::Rwkv7;
use crate::kinds::{Activation, Norm, NormPlace};
use crate::limits;
use crate::pattern::{Layer, Mixer};
use crate::recipe::Recipe;

/// Ling 3: delta attention without latents, gated latent attention every sixth layer, experts behind dense layers.
pub fn bailing_hybrid(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2560)?;
    let depth = config.count("num_hidden_layers", 42)?;
    let mut attention = latent_attention(config, 32, None)?;
    let heads = attention.heads;
    if let AttentionKind::Mla(mla) = &mut attention.kind {
        (mla.head_gate, mla.q_rank) = (true, None);
    }
    config.agrees("linear_num_heads", &heads.into());
    // The class writes both, and means the rotary slice by the second.
    let key = if config.has("linear_head_dim") { "linear_head_dim" } else { "head_dim" };
    let head_dim = config.count(key, 128)?;
    if key == "linear_head_dim" {
        config.unused(&["head_dim"], "the rotary slice says it");
    }
    let conv = config.count("short_conv_kernel_size", 4)?;
    config.agrees("linear_conv_kernel_dim", &conv.into());
    if heads.checked_mul(head_dim).is_none_or(|inner| inner > limits::WIDTH) {
        config.refuse(key, format!("{heads} heads of {head_dim} are wider than a layer may be"));
        return None;
    }
    let every = config.count("layer_group_size", 6)?;
    let mixers = mixers(config, depth, "linear_attention", |i| (i + 1).is_multiple_of(every))?;
    let layers = fed(config, &mixers, 2)?;
    let moe = match layers.iter().any(|layer| layer.has(Mixer::Moe)) {
        true => Some(kimi_experts(config, Usual { experts: 512, width: 768, scaling: 2.5, groups: 8, chosen: 4 })?),
        false => None,
    };
    let ffn = config.count("intermediate_size", 6144)?;
    let mlp = Mlp { ffn, activation: config.gated("hidden_act"), bias: false, shift: false };
    let mut recipe = config.recipe(layers, hidden, 157_184, 6_000_000.0)?;
    // The class ties nothing, whatever the config says.
    recipe.tied = false;
    config.agrees("tie_word_embeddings", &false.into());
    // A sigmoid above a lower bound makes its decays, and a recipe's are a softplus.
    if config.flag("kda_safe_gate", true) && recipe.has(Mixer::Linear) {
        config.implies("kda_safe_gate", "true");
    }
    put(&mut recipe, attention, mlp, moe, Linear::Kda(Kda { heads, head_dim, conv, latents: false }));
    Some(recipe)
}

/// OLMo Hybrid: gated delta nets behind their norms, attention every fourth layer with norms behind it.
pub fn olmo_hybrid(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 3840)?;
    let depth = config.count("num_hidden_layers", 32)?;
    let (heads, kv_heads) = config.heads(30, None)?;
    if hidden < heads {
        config.refuse("num_attention_heads", format!("hidden {hidden} leaves no width for {heads} heads"));
        return None;
    }
    let mut attention = Attention::gqa(heads, kv_heads, hidden / heads);
    let bias = config.flag("attention_bias", false);
    (attention.qkv_bias, attention.out_bias, attention.qk_norm) = (bias, bias, QkNorm::Full);
    attention.dropout = config.share("attention_dropout", 0.0);
    let key_heads = config.nullable("linear_num_key_heads", None)?.unwrap_or(heads).max(1);
    let value_heads = config.nullable("linear_num_value_heads", None)?.unwrap_or(heads).max(1);
    let usual = (0.75 * hidden as f64 / key_heads as f64) as u64;
    let key_dim = config.nullable("linear_key_head_dim", None)?.unwrap_or(usual).max(1);
    let value_dim = config.nullable("linear_value_head_dim", None)?.unwrap_or(2 * key_dim).max(1);
    let conv = config.count("linear_conv_kernel_dim", 4)?;
    let attends = |i: u64| i % 4 == 3 || (depth < 4 && i + 1 == depth);
    let mixers = mixers(config, depth, "linear_attention", attends)?;
    let mixer = |mixer: &Mixer| if *mixer == Mixer::Linear { Mixer::GatedDelta } else { *mixer };
    let layers = mixers.iter().map(|m| Layer::of(&[mixer(m), Mixer::Mlp])).collect();
    let ffn = config.count("intermediate_size", 11_008)?;
    let mlp = Mlp { ffn, activation: config.gated("hidden_act"), bias: false, shift: false };
    // Where its rotary parameters are null the class turns nothing; where they are left out it has its default.
    let turns = config
        .raw("rope_parameters")
        .is_none_or(|said| said.get("rope_theta").is_none_or(|theta| !theta.is_null()) && !said.is_null());
    let mut recipe = config.recipe(layers, hidden, 100_352, 10_000.0)?;
    if !turns {
        config.has_no_positions(&mut recipe);
    }
    recipe.norm_place = NormPlace::AfterAttention;
    fill(&mut recipe, attention, mlp, None);
    let gated_delta = GatedDelta { key_heads, value_heads, key_dim, value_dim, conv };
    recipe.gated_delta = recipe.has(Mixer::GatedDelta).then_some(gated_delta);
    if recipe.gated_delta.is_some() {
        config.implies("linear_norm_eps", "1e-05");
        if config.flag("linear_allow_neg_eigval", true) {
            config.implies("linear_allow_neg_eigval", "true");
        }
    }
    Some(recipe)
}

/// RWKV-7 as flash-linear-attention has it: time mixing and a shifted MLP of squared ReLU in every layer.
pub fn rwkv7(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2048)?;
    let depth = config.count("num_hidden_layers", 24)?;
    if config.raw("attn").is_some_and(|said| !said.is_null()) {
        config.refuse("attn", "attention between RWKV-7 layers has no recipe: layers share the first one's values");
        return None;
    }
    let linear = rwkv7_mixer(config, hidden, depth)?;
    let ratio = config.positive("hidden_ratio").unwrap_or(4.0);
    let usual = ((hidden as f64 * ratio) as u64).max(1).next_multiple_of(32);
    let ffn = config.nullable("intermediate_size", None)?.unwrap_or(usual);
    if !matches!(config.text("hidden_act"), None | Some("sqrelu" | "relu2")) {
        config.not_carried("hidden_act");
    }
    let layers = vec![Layer::of(&[Mixer::Linear, Mixer::Mlp]); depth as usize];
    let mut recipe = config.recipe(layers, hidden, 32_000, 10_000.0)?;
    config.has_no_positions(&mut recipe);
    recipe.norm = if config.flag("norm_bias", true) { Norm::LayerNorm } else { Norm::LayerNormScale };
    recipe.embedding_norm = config.flag("norm_first", true);
    if config.flag("use_l2warp", true) {
        config.implies("use_l2warp", "true");
    }
    recipe.mlp = Some(Mlp { ffn, activation: Activation::Relu2, bias: false, shift: true });
    recipe.linear = Some(Linear::Rwkv7(linear));
    Some(recipe)
}

fn rwkv7_mixer(config: &mut Config, hidden: u64, depth: u64) -> Option<Rwkv7> {
    let asked = config.nullable("num_heads", None)?.filter(|heads| *heads > 0);
    // `RWKV7Attention`: a head's width says how many there are, unless it is null.
    let width = config.nullable("head_dim", Some(64))?.filter(|width| *width > 0);
    let head_dim = width.or(asked.map(|heads| hidden / heads)).unwrap_or(0);
    if head_dim == 0 || !hidden.is_multiple_of(head_dim) {
        config.refuse("head_dim", format!("hidden {hidden} does not divide into heads of {head_dim}"));
        return None;
    }
    let heads = hidden / head_dim;
    config.agrees("num_heads", &heads.into());
    let values = match config.raw("value_dim") {
        Some(serde_json::Value::Array(items))
            if items.len() as u64 == depth && items.iter().all(|v| *v == items[0]) =>
        {
            items[0].as_u64().unwrap_or(0)
        }
        Some(serde_json::Value::Number(number)) => number.as_u64().unwrap_or(0),
        None | Some(serde_json::Value::Null) => hidden,
        Some(_) => 0,
    };
    if values != hidden {
        config.refuse("value_dim", format!("values are {hidden} wide in every layer; the class does not run others"));
        return None;
    }
    let mut rank = |key, usual, by: f64, factor: f64| {
        let own = ((by * (hidden as f64).sqrt() * factor / 32.0).round_ties_even() as u64 * 32).max(32);
        config.nullable(key, Some(usual)).map(|said| said.unwrap_or(own).max(1))
    };
    let factor = head_dim as f64 / 64.0;
    Some(Rwkv7 {
        heads,
        head_dim,
        v_dim: values / heads,
        decay_rank: rank("decay_low_rank_dim", 64, 2.5, factor)?,
        rate_rank: rank("a_low_rank_dim", 64, 2.5, factor)?,
        value_rank: rank("v_low_rank_dim", 16, 1.7, factor)?,
        gate_rank: rank("gate_low_rank_dim", 128, 5.0, 1.0)?,
    })
}
