//! llama, mistral, qwen2, qwen3: attention and a gated MLP in every layer.

use super::config::Config;
use crate::kinds::attention::{Attention, QkNorm};
use crate::kinds::mlp::Mlp;
use crate::pattern::{Layer, Mixer};
use crate::recipe::Recipe;

/// A transformer of `depth` equal layers.
fn transformer(config: &mut Config, hidden: u64, vocab: u64, attention: Attention, mlp: Mlp) -> Option<Recipe> {
    let depth = config.count("num_hidden_layers", 32)?;
    let layers = vec![Layer::of(&[Mixer::Attention, Mixer::Mlp]); depth as usize];
    let mut recipe = config.recipe(layers, hidden, vocab, 10_000.0)?;
    recipe.attention = Some(attention);
    recipe.mlp = Some(mlp);
    Some(recipe)
}

fn gated(config: &mut Config, ffn: u64, bias: bool) -> Mlp {
    Mlp { ffn, activation: config.gated("hidden_act"), bias, shift: false }
}

/// LLaMA: every projection biased by `attention_bias`, the MLP by `mlp_bias`.
pub fn llama(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let (heads, kv_heads) = config.heads(32, None)?;
    if hidden % heads != 0 {
        config.refuse("hidden_size", format!("hidden {hidden} is not a multiple of {heads} heads"));
    }
    let bias = config.flag("attention_bias", false);
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    (attention.qkv_bias, attention.out_bias) = (bias, bias);
    attention.dropout = config.share("attention_dropout", 0.0);
    let (ffn, bias) = (config.count("intermediate_size", 11_008)?, config.flag("mlp_bias", false));
    let mlp = gated(config, ffn, bias);
    transformer(config, hidden, 32_000, attention, mlp)
}

/// Mistral: no biases whatever the config says, a sliding window.
pub fn mistral(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let (heads, kv_heads) = config.heads(32, Some(8))?;
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    config.window(&mut attention, true);
    let ffn = config.count("intermediate_size", 14_336)?;
    let mlp = gated(config, ffn, false);
    transformer(config, hidden, 32_000, attention, mlp)
}

/// Qwen2: queries, keys and values always biased, the output never.
pub fn qwen2(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let (heads, kv_heads) = config.heads(32, Some(32))?;
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    attention.qkv_bias = true;
    let windowed = config.flag("use_sliding_window", false);
    config.window(&mut attention, windowed);
    let ffn = config.count("intermediate_size", 22_016)?;
    let mlp = gated(config, ffn, false);
    transformer(config, hidden, 151_936, attention, mlp)
}

/// Qwen3: a norm of queries and keys per head; a head is 128 wide unless said.
pub fn qwen3(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let (heads, kv_heads) = config.heads(32, Some(32))?;
    let bias = config.flag("attention_bias", false);
    let mut attention = Attention::gqa(heads, kv_heads, config.count("head_dim", 128)?);
    (attention.qkv_bias, attention.out_bias, attention.qk_norm) = (bias, bias, QkNorm::Head);
    let windowed = config.flag("use_sliding_window", false);
    config.window(&mut attention, windowed);
    let ffn = config.count("intermediate_size", 22_016)?;
    let mlp = gated(config, ffn, false);
    transformer(config, hidden, 151_936, attention, mlp)
}
