//! zamba, zamba2: Mamba layers, some of which run a transformer block that they share.

use super::config::Config;
use super::hybrid::{mamba2_of, period};
use crate::kinds::Activation;
use crate::kinds::mamba::Mamba;
use crate::kinds::mamba1::Mamba1;
use crate::kinds::shared::Shared;
use crate::pattern::{Layer, Mixer};
use crate::recipe::Recipe;

/// Layers by kind, `hybrid` where one runs a shared block before its Mamba mixer.
fn layers(config: &mut Config, depth: Option<u64>, usual: impl FnOnce(u64) -> Vec<&'static str>) -> Option<Vec<Layer>> {
    let kinds: Vec<&str> = match config.layer_kinds(&["layers_block_type", "layer_types"], depth) {
        Some(kinds) => kinds,
        None => usual(depth.unwrap_or(0)),
    };
    if kinds.iter().any(|kind| *kind != "linear_attention" && *kind != "hybrid") {
        config.refuse("layers_block_type", "layer kinds are `mamba` and `hybrid`");
        return None;
    }
    let mixers = |kind: &&str| if *kind == "hybrid" { &[Mixer::Shared, Mixer::Mamba][..] } else { &[Mixer::Mamba] };
    Some(kinds.iter().map(|kind| Layer::of(mixers(kind))).collect())
}

fn uses(layers: &[Layer]) -> u64 {
    layers.iter().filter(|layer| layer.has(Mixer::Shared)).count() as u64
}

/// Attention over twice the hidden width, and a gated MLP; queries are as wide as the config says, or the input.
fn shared(config: &mut Config, hidden: u64, ffn: u64, blocks: u64, usual: (u64, Option<u64>)) -> Option<Shared> {
    let (heads, kv_heads) = config.heads(usual.0, usual.1)?;
    config.agrees("attention_dropout", &0.into());
    let activation = match config.text("hidden_act") {
        None | Some("gelu") => Activation::GeGlu,
        Some("silu" | "swish") => Activation::SwiGlu,
        Some(_) => {
            config.not_carried("hidden_act");
            Activation::GeGlu
        }
    };
    let head_dim = 2 * hidden / heads;
    if head_dim == 0 {
        config.refuse("num_attention_heads", format!("hidden {hidden} leaves no width for {heads} heads"));
        return None;
    }
    let (bias, rank, adapts_attention) = (false, None, false);
    Some(Shared { blocks, heads, kv_heads, head_dim, ffn, activation, bias, rank, adapts_attention })
}

/// Zamba: Mamba-1 with two heads, one shared block. Without tied embeddings transformers ties no block either.
pub fn zamba(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 3712)?;
    let depth = config.count("num_hidden_layers", 76)?;
    let (every, offset) = period(config, "attn_layer_period", 6, "attn_layer_offset", 4)?;
    let kind = |i: u64| if i == 2 || (i > 2 && (i - 3) % every == offset) { "hybrid" } else { "linear_attention" };
    let layers = layers(config, Some(depth), |depth| (0..depth).map(kind).collect())?;
    let tied = config.flag("tie_word_embeddings", true);
    let blocks = if tied { uses(&layers).min(1) } else { uses(&layers) };
    let ffn = config.count("intermediate_size", 14_848)?;
    let mut shared = shared(config, hidden, ffn, blocks, (16, Some(16)))?;
    shared.head_dim = config.nullable("attention_head_dim", None)?.filter(|d| *d > 0).unwrap_or(shared.head_dim);
    if config.nullable("attention_hidden_size", None)?.is_some_and(|width| width != 2 * hidden && width > 0) {
        config.refuse("attention_hidden_size", format!("a shared block reads {} columns", 2 * hidden));
    }
    let mamba = zamba_mamba(config, hidden)?;
    let mut recipe = config.recipe(layers, hidden, 32_000, 10_000.0)?;
    config.has_no_positions(&mut recipe);
    config.agrees("hidden_mamba_act", &"silu".into());
    recipe.tied = tied;
    recipe.mamba = Some(Mamba::One(mamba));
    recipe.shared = recipe.has(Mixer::Shared).then_some(shared);
    Some(recipe)
}

fn zamba_mamba(config: &mut Config, hidden: u64) -> Option<Mamba1> {
    let auto = config.text("mamba_dt_rank") == Some("auto") || !config.has("mamba_dt_rank");
    let inner = config.count("mamba_expand", 2)? * hidden;
    let heads = config.count("n_mamba_heads", 2)?;
    if !inner.is_multiple_of(heads) {
        config.refuse("n_mamba_heads", format!("inner width {inner} does not divide into {heads} heads"));
        return None;
    }
    Some(Mamba1 {
        inner,
        heads,
        state: config.count("mamba_d_state", 16)?,
        dt_rank: if auto { hidden.div_ceil(16) } else { config.count("mamba_dt_rank", 1)? },
        conv: config.count("mamba_d_conv", 4)?,
        conv_bias: config.flag("mamba_conv_bias", true),
        proj_bias: config.flag("mamba_proj_bias", false),
        inner_norms: false,
    })
}

/// Zamba2: Mamba-2, shared blocks in turn, factors of every layer's own beside their projections.
pub fn zamba2(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2560)?;
    let layers = layers(config, None, |_| zamba2_layers())?;
    config.agrees("num_hidden_layers", &layers.len().into());
    let tied = config.flag("tie_word_embeddings", true);
    if !tied && uses(&layers) > 1 {
        let why = "without tied embeddings transformers shares no block either, and gives every block the factors of all layers";
        config.refuse("tie_word_embeddings", why);
        return None;
    }
    let blocks = config.count("num_mem_blocks", 1)?.min(uses(&layers));
    let ffn = config.nullable("intermediate_size", None)?.filter(|width| *width > 0).unwrap_or(4 * hidden);
    let bias = config.flag("add_bias_linear", false);
    let mut shared = shared(config, hidden, ffn, blocks, (32, None))?;
    (shared.bias, shared.rank) = (bias, Some(config.count("adapter_rank", 128)?));
    shared.adapts_attention = config.flag("use_shared_attention_adapter", false);
    if shared.adapts_attention && shared.inner() != 2 * hidden {
        config.refuse("use_shared_attention_adapter", format!("factors of queries are {} wide", 2 * hidden));
    }
    config.agrees("attention_head_dim", &shared.head_dim.into());
    config.agrees("attention_hidden_size", &(2 * hidden).into());
    let inner = config.count("mamba_expand", 2)? * hidden;
    let heads = config.count("n_mamba_heads", 8)?;
    if !inner.is_multiple_of(heads) {
        config.refuse("n_mamba_heads", format!("inner width {inner} does not divide into {heads} heads"));
        return None;
    }
    let (state, groups) = (config.count("mamba_d_state", 64)?, config.count("mamba_ngroups", 1)?);
    let mut mamba = mamba2_of(config, heads, inner / heads, state, groups)?;
    (mamba.conv, mamba.conv_bias) = (config.count("mamba_d_conv", 4)?, true);
    (mamba.in_bias, mamba.out_bias) = (bias, bias);
    mamba.chunk = config.count("chunk_size", 256)?;
    config.agrees("mamba_headdim", &(inner / heads).into());
    let mut recipe = config.recipe(layers, hidden, 32_000, 10_000.0)?;
    if !config.flag("use_mem_rope", false) || !recipe.has(Mixer::Shared) {
        config.has_no_positions(&mut recipe);
    }
    recipe.tied = tied;
    recipe.mamba = Some(Mamba::Two(mamba));
    recipe.shared = recipe.has(Mixer::Shared).then_some(shared);
    Some(recipe)
}

/// `Zamba2Config.__post_init__`, whatever the depth.
fn zamba2_layers() -> Vec<&'static str> {
    let hybrid = [6, 12, 18, 24, 30, 36, 42, 47, 51];
    (0..54).map(|i| if hybrid.contains(&i) { "hybrid" } else { "linear_attention" }).collect()
}
