//! qwen3_next, qwen3_5_text, qwen3_5_moe_text: gated delta nets with gated attention every fourth layer.

use super::config::Config;
use super::moe::{balance, bank, fill, qwen_sparsity, shared, weights};
use crate::kinds::attention::{Attention, QkNorm};
use crate::kinds::gated_delta::GatedDelta;
use crate::kinds::mlp::Mlp;
use crate::pattern::{Layer, Mixer};
use crate::recipe::Recipe;

/// What a class defaults to.
struct Usual {
    hidden: u64,
    depth: u64,
    kv_heads: u64,
    vocab: u64,
    experts: u64,
    top_k: u64,
    ffn: u64,
}

/// Qwen3.5's dense text model.
pub fn dense(config: &mut Config) -> Option<Recipe> {
    next(config, &Usual { hidden: 4096, depth: 32, kv_heads: 4, vocab: 248_320, experts: 0, top_k: 1, ffn: 12_288 })
}

/// Qwen3.5's text model with experts.
pub fn routed(config: &mut Config) -> Option<Recipe> {
    next(config, &Usual { hidden: 2048, depth: 40, kv_heads: 2, vocab: 248_320, experts: 256, top_k: 8, ffn: 5632 })
}

/// Qwen3-Next: experts in every layer.
pub fn qwen3_next(config: &mut Config) -> Option<Recipe> {
    next(config, &Usual { hidden: 2048, depth: 48, kv_heads: 2, vocab: 151_936, experts: 512, top_k: 10, ffn: 5632 })
}

fn next(config: &mut Config, usual: &Usual) -> Option<Recipe> {
    let hidden = config.count("hidden_size", usual.hidden)?;
    let (heads, kv_heads) = config.heads(16, Some(usual.kv_heads))?;
    let bias = config.flag("attention_bias", false);
    let mut attention = Attention::gqa(heads, kv_heads, config.count("head_dim", 256)?);
    (attention.qkv_bias, attention.out_bias) = (bias, bias);
    (attention.qk_norm, attention.output_gate) = (QkNorm::Head, true);
    attention.dropout = config.share("attention_dropout", 0.0);
    let experts = match usual.experts {
        0 => 0,
        usual => config.natural("num_experts", usual)?,
    };
    let is_moe = qwen_sparsity(config, experts)?;
    let depth = config.count("num_hidden_layers", usual.depth)?;
    let mixers = qwen_mixers(config, depth)?;
    let feed = |i: usize| if is_moe(i as u64) { Mixer::Moe } else { Mixer::Mlp };
    let layers: Vec<Layer> = mixers.iter().enumerate().map(|(i, m)| Layer::of(&[*m, feed(i)])).collect();
    let width = config.natural("moe_intermediate_size", 512)?;
    let shared_width = config.natural("shared_expert_intermediate_size", 512)?;
    let moe = match layers.iter().any(|l| l.has(Mixer::Moe)) {
        true => {
            let mut moe = bank(config, experts, width, usual.top_k)?;
            moe.shared = shared(shared_width, true, false);
            balance(config, &mut moe, 0.001);
            weights(config, &mut moe, true, 1.0);
            if moe.shared.is_none() {
                config
                    .refuse("shared_expert_intermediate_size", "a gate over a shared expert of no width has no recipe");
            }
            Some(moe)
        }
        false => None,
    };
    let gated_delta = GatedDelta {
        key_heads: config.count("linear_num_key_heads", 16)?,
        value_heads: config.count("linear_num_value_heads", 32)?,
        key_dim: config.count("linear_key_head_dim", 128)?,
        value_dim: config.count("linear_value_head_dim", 128)?,
        conv: config.count("linear_conv_kernel_dim", 4)?,
    };
    if !gated_delta.value_heads.is_multiple_of(gated_delta.key_heads) {
        config.refuse("linear_num_value_heads", "value heads do not share the key heads evenly");
    }
    let ffn = config.count("intermediate_size", usual.ffn)?;
    let mlp = Mlp { ffn, activation: config.gated("hidden_act"), bias: false, shift: false };
    let mut recipe = config.recipe(layers, hidden, usual.vocab, 10_000.0)?;
    fill(&mut recipe, attention, mlp, moe);
    recipe.gated_delta = recipe.has(Mixer::GatedDelta).then_some(gated_delta);
    Some(recipe)
}

fn qwen_mixers(config: &mut Config, depth: u64) -> Option<Vec<Mixer>> {
    let Some(kinds) = config.layer_kinds(&["layer_types"], Some(depth)) else {
        let interval = config.count("full_attention_interval", 4)?;
        let mixer = |i| if (i + 1) % interval == 0 { Mixer::Attention } else { Mixer::GatedDelta };
        return Some((0..depth).map(mixer).collect());
    };
    let mixers: Option<Vec<Mixer>> = kinds
        .iter()
        .map(|kind| match *kind {
            "linear_attention" => Some(Mixer::GatedDelta),
            "full_attention" => Some(Mixer::Attention),
            _ => None,
        })
        .collect();
    if mixers.is_none() {
        config.refuse("layer_types", "layer kinds are `linear_attention` and `full_attention`");
    }
    mixers
}
