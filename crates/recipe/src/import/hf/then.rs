//! What a description in [`super::models`] cannot say as data.

use super::config::Config;
use crate::features::Switch;
use crate::kinds::attention::{AttentionKind, Window};
use crate::kinds::dsa::Dsa;
use crate::kinds::moe::ScoreFunction;
use crate::kinds::{Norm, NormPlace};
use crate::pattern::{Block, Layer, Mixer, Pattern};
use crate::recipe::Recipe;
use crate::rope::Positions;

fn put_layers(recipe: &mut Recipe, layers: Vec<Layer>) {
    recipe.pattern = Pattern::describe(&layers);
    recipe.layers = layers;
}

fn beside(layers: &[Layer]) -> Vec<Layer> {
    layers.iter().map(|layer| Layer::of_blocks(vec![Block { mixers: layer.mixers().collect() }])).collect()
}

/// Granite's four factors; logits are divided by theirs.
pub fn granite(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    recipe.multipliers.embedding = config.positive("embedding_multiplier").unwrap_or(1.0);
    recipe.multipliers.residual = config.positive("residual_multiplier").unwrap_or(1.0);
    recipe.multipliers.attention = config.positive("attention_multiplier").or(Some(1.0));
    recipe.multipliers.logits = config.positive("logits_scaling").map_or(1.0, |x| 1.0 / x);
    Some(())
}

pub fn granite_swa(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    granite(config, recipe)?;
    let theta = recipe.positions.rope().map(|rope| rope.theta);
    let by_layer = config.list("layer_rope_theta").unwrap_or_default();
    if by_layer.iter().any(|value| value.as_f64() != theta) {
        config.not_carried("layer_rope_theta");
    }
    Some(())
}

/// Granite's, but logits are multiplied; a norm behind each block by `use_post_norm`.
pub fn hyperclovax(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    granite(config, recipe)?;
    recipe.multipliers.logits = config.positive("logits_scaling").unwrap_or(1.0);
    let attention = config.positive("attention_multiplier");
    recipe.multipliers.attention = attention;
    if config.flag("use_post_norm", true) {
        recipe.norm_place = NormPlace::Both;
    }
    Some(())
}

/// Token embeddings times the root of their width.
pub fn root_embedding(_: &mut Config, recipe: &mut Recipe) -> Option<()> {
    recipe.multipliers.embedding = (recipe.hidden as f64).sqrt();
    Some(())
}

pub fn scaled_embedding(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    if config.flag("scale_embedding", true) {
        root_embedding(config, recipe)?;
    }
    Some(())
}

pub fn afmoe(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    if config.flag("mup_enabled", false) {
        root_embedding(config, recipe)?;
    }
    if recipe.attention.as_ref().is_some_and(|attention| attention.qkv_bias) {
        config.refuse("attention_bias", "a gate without a bias beside queries, keys and values with one has no recipe");
    }
    Some(())
}

/// Helium projects out of the hidden width whatever its heads come to.
pub fn square_output(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    let attention = recipe.attention.as_ref()?;
    if let AttentionKind::Gqa { head_dim, .. } = attention.kind
        && head_dim * attention.heads != recipe.hidden
    {
        let message = format!(
            "{} heads of {head_dim} are not {} wide, and the class cannot run it",
            attention.heads, recipe.hidden
        );
        config.refuse("head_dim", message);
    }
    Some(())
}

pub fn gemma(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    root_embedding(config, recipe)?;
    Some(())
}

/// Scores over the root of `query_pre_attn_scalar`.
pub fn gemma2(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    gemma(config, recipe)?;
    let scale = config.positive("query_pre_attn_scalar").unwrap_or(256.0);
    recipe.multipliers.attention = Some(scale.powf(-0.5));
    Some(())
}

pub fn cohere(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    recipe.multipliers.logits = config.positive("logit_scale").unwrap_or(0.0625);
    if config.flag("use_qk_norm", false) {
        // A scale of its own for every head, over a norm of each head by itself.
        config.not_carried("use_qk_norm");
    }
    Some(())
}

pub fn cohere_moe(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    cohere(config, recipe)?;
    let sigmoid = config.text("expert_selection_fn") == Some("sigmoid");
    if let Some(moe) = &mut recipe.moe {
        if sigmoid {
            moe.router.score = ScoreFunction::Sigmoid;
        }
        match moe.shared {
            Some(_) => config.implies("shared_expert_combination_strategy", "average"),
            None => config.unused(&["shared_expert_combination_strategy"], "there is no shared expert"),
        }
    }
    Some(())
}

/// MiniCPM: embeddings times `scale_emb`, blocks times `scale_depth` over the root of the depth, the head over
/// the width in units of `dim_model_base`.
pub fn minicpm(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    recipe.multipliers.embedding = config.positive("scale_emb").unwrap_or(12.0);
    let depth = recipe.depth() as f64;
    recipe.multipliers.residual = config.positive("scale_depth").unwrap_or(1.4) / depth.sqrt();
    let base = config.positive("dim_model_base").unwrap_or(256.0);
    recipe.multipliers.logits = base / recipe.hidden as f64;
    Some(())
}

/// ERNIE: dense and shared blocks have the bias, routed experts never.
pub fn ernie_moe(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    config.agrees("moe_use_aux_free", &true.into());
    plain_experts(config, recipe)
}

/// Routed experts without the bias that dense and shared blocks have.
pub fn plain_experts(_: &mut Config, recipe: &mut Recipe) -> Option<()> {
    if let Some(moe) = &mut recipe.moe {
        moe.bias = false;
    }
    Some(())
}

/// Aria: only shared experts look at `mlp_bias`.
pub fn aria(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    let bias = config.flag("mlp_bias", false);
    if let Some(shared) = recipe.moe.as_mut().and_then(|moe| moe.shared.as_mut()) {
        shared.bias = bias;
    }
    Some(())
}

/// Columns of a head that turn, as a number instead of a share.
pub fn rotary_dim(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    let usual = matches!(config.model_type.as_str(), "gptj" | "codegen").then_some(64);
    let width = config.nullable("rotary_dim", usual)?;
    let Some(AttentionKind::Gqa { head_dim, .. }) = recipe.attention.as_ref().map(|a| &a.kind) else { return Some(()) };
    if let (Some(width), Positions::Rope(rope)) = (width, &mut recipe.positions) {
        if width == 0 || width > *head_dim {
            config.refuse("rotary_dim", format!("`rotary_dim` {width} columns of a head of {head_dim}"));
            return None;
        }
        rope.fraction = width as f64 / *head_dim as f64;
    }
    Some(())
}

/// GPT-NeoX: attention and MLP side by side, each behind a norm of its own, which no pattern says.
pub fn parallel_residual(config: &mut Config, _: &mut Recipe) -> Option<()> {
    if config.flag("use_parallel_residual", true) {
        config.implies("use_parallel_residual", "true");
    }
    Some(())
}

pub fn stablelm(config: &mut Config, _: &mut Recipe) -> Option<()> {
    if config.flag("qk_layernorm", false) {
        config.refuse("qk_layernorm", "a norm of its own for every head (`qk_layernorm`) has no recipe");
    }
    Some(())
}

/// One KV head for all by `multi_query`.
pub fn multi_query(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    let one = config.flag("multi_query", true);
    let attention = recipe.attention.as_mut()?;
    if let AttentionKind::Gqa { kv_heads, .. } = &mut attention.kind {
        *kv_heads = if one { 1 } else { attention.heads };
    }
    config.unused(&["num_key_value_heads"], "`multi_query` says it");
    Some(())
}

/// Falcon: KV heads, norms and positions by its three architectures.
pub fn falcon(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    let new = config.flag("new_decoder_architecture", false);
    let one = config.flag("multi_query", true);
    let attention = recipe.attention.as_mut()?;
    if let AttentionKind::Gqa { kv_heads, .. } = &mut attention.kind
        && !new
    {
        *kv_heads = if one { 1 } else { attention.heads };
        config.unused(&["num_kv_heads", "n_head_kv"], "`multi_query` says it");
    }
    let two = config.nullable("num_ln_in_parallel_attn", if new { Some(2) } else { None })?.unwrap_or(1) == 2;
    match (new || config.flag("parallel_attn", true), new && two) {
        // Side by side, each behind a norm of its own, which no pattern says.
        (true, true) => config.implies("parallel_attn", "true"),
        (true, false) => {
            let layers = beside(&recipe.layers);
            put_layers(recipe, layers);
        }
        (false, _) => {}
    }
    if config.flag("alibi", false) {
        config.has_no_positions(recipe);
        config.not_carried("alibi");
    }
    Some(())
}

/// GPT-Neo: every second layer sees a window, and scores are not scaled.
pub fn gpt_neo(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    let depth = recipe.depth() as u64;
    let tokens = config.count("sliding_window", 256)?;
    let kinds = config.layer_kinds(&["attention_layers"], Some(depth));
    let mut pairs = config.list("attention_types").unwrap_or_default().iter();
    let regular = pairs.len() <= 1
        && pairs.all(|pair| pair.get(0).is_some_and(|kinds| *kinds == serde_json::json!(["global", "local"])));
    let full = |i: u64| match &kinds {
        Some(kinds) => kinds.get(i as usize).is_none_or(|kind| *kind == "global"),
        None => i.is_multiple_of(2),
    };
    if kinds.is_none() && !regular {
        config
            .refuse("attention_types", "`attention_types` other than global and local in turn need `attention_layers`");
        return None;
    }
    let full_layers: Vec<u64> = (0..depth).filter(|i| full(*i)).collect();
    if (full_layers.len() as u64) < depth {
        recipe.attention.as_mut()?.window = Some(Window::sliding(tokens, full_layers));
    }
    recipe.multipliers.attention = Some(1.0);
    Some(())
}

/// OPT as all but its 350M is: norms before blocks, embeddings as wide as the model.
pub fn opt(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    if !config.flag("do_layer_norm_before", true) {
        config.refuse("do_layer_norm_before", "norms on the residual stream itself (OPT-350M) have no recipe");
    }
    if config.flag("_remove_final_layer_norm", false) {
        config.refuse("_remove_final_layer_norm", "a model without a last norm has no recipe");
    }
    let width = config.count("word_embed_proj_dim", recipe.hidden)?;
    if width != recipe.hidden {
        let message =
            format!("embeddings of {width} projected to a model of {} (OPT-350M) have no recipe", recipe.hidden);
        config.refuse("word_embed_proj_dim", message);
    }
    if !config.flag("layer_norm_elementwise_affine", true) {
        recipe.norm = Norm::LayerNormBare;
    }
    Some(())
}

/// Layers whose queries and keys do not turn; no recipe says which.
pub fn no_rope(config: &mut Config, _: &mut Recipe) -> Option<()> {
    let turns = config.list("no_rope_layers").unwrap_or_default();
    if turns.iter().any(|value| value.as_u64() != Some(1)) {
        config.not_carried("no_rope_layers");
    } else if turns.is_empty() {
        config.implies("no_rope_layers", "every fourth");
    }
    Some(())
}

/// Llama 4: a norm of queries and keys without a scale, and a temperature on layers that do not turn.
pub fn llama4(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    no_rope(config, recipe)?;
    if config.flag("use_qk_norm", true) {
        config.implies("use_qk_norm", "true");
    }
    config.implies("attn_temperature_tuning", "true");
    config.unused(&["floor_scale", "attn_scale"], "figures of `attn_temperature_tuning`");
    if !recipe.has(Mixer::Mlp) {
        config.unused(&["intermediate_size_mlp"], "every layer routes");
    }
    Some(())
}

/// DeepSeek-V3.2: sparse attention on every layer, with an indexer, or with the last one's choice where
/// `indexer_types` says shared. GLM's class makes them of a pattern, or of a frequency and an offset.
pub fn indexed(config: &mut Config, recipe: &mut Recipe) -> Option<()> {
    let heads = if config.model_type == "glm_moe_dsa" { 32 } else { 64 };
    let depth = recipe.depth() as u64;
    let of_kinds = config.layer_kinds(&["indexer_types"], Some(depth));
    let is_shared: Vec<bool> = of_kinds.unwrap_or_default().iter().map(|kind| *kind == "shared").collect();
    let schedule = ["index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"];
    let is_shared = match is_shared.is_empty() && config.model_type == "glm_moe_dsa" {
        true => scheduled(config, depth)?,
        false => {
            config.unused(&schedule, "`indexer_types` says it");
            is_shared
        }
    };
    let reuse = is_shared.iter().enumerate().filter(|(_, shared)| **shared).map(|(at, _)| at as u64).collect();
    let dsa = Dsa {
        heads: config.count("index_n_heads", heads)?,
        head_dim: config.count("index_head_dim", 128)?,
        top_k: config.count("index_topk", 2048)?,
        layers: Vec::new(),
        reuse,
    };
    recipe.features.dsa = Some(Switch { on: true, value: dsa });
    Some(())
}

/// Which layers share a choice by `GlmMoeDsaConfig`'s schedule: a pattern such as `FSSF`, or every so many behind an
/// offset.
fn scheduled(config: &mut Config, depth: u64) -> Option<Vec<bool>> {
    if let Some(pattern) = config.text("index_topk_pattern").map(str::to_string) {
        if pattern.len() as u64 != depth || pattern.chars().any(|letter| !"FS".contains(letter)) {
            config.refuse("index_topk_pattern", format!("it has an `F` or an `S` for each of {depth} layers"));
            return None;
        }
        return Some(pattern.chars().map(|letter| letter == 'S').collect());
    }
    let frequency = config.natural("index_topk_freq", 1)?.max(1);
    let offset = config.natural("index_skip_topk_offset", 2)?;
    Some((0..depth).map(|layer| !(layer + 1).saturating_sub(offset).is_multiple_of(frequency)).collect())
}
