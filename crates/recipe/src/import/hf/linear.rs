//! kimi_linear, lfm2, lfm2_moe, minimax, recurrent_gemma, xlstm: linear mixers, with attention in some layers.

use super::config::Config;
use super::deepseek::latent_attention;
use super::moe::{balance, bank, fill, shared, weights};
use crate::kinds::Activation;
use crate::kinds::attention::{Attention, QkNorm, Window};
use crate::kinds::kda::Kda;
use crate::kinds::lightning::Lightning;
use crate::kinds::linear::Linear;
use crate::kinds::mlp::Mlp;
use crate::kinds::mlstm::Mlstm;
use crate::kinds::moe::{Moe, ScoreFunction};
use crate::kinds::rg_lru::RgLru;
use crate::kinds::short_conv::ShortConv;
use crate::limits;
use crate::pattern::{Layer, Mixer};
use crate::recipe::Recipe;

/// Layers of attention or a linear mixer by `layer_types`, or by a rule where the config does not list them.
pub(super) fn mixers(config: &mut Config, depth: u64, name: &str, usual: impl Fn(u64) -> bool) -> Option<Vec<Mixer>> {
    let attends: Vec<bool> = match config.layer_kinds(&["layer_types"], Some(depth)) {
        Some(kinds) if kinds.iter().all(|kind| *kind == "full_attention" || *kind == name) => {
            kinds.iter().map(|kind| *kind == "full_attention").collect()
        }
        Some(_) => {
            config.refuse("layer_types", format!("layer kinds are `full_attention` and `{name}`"));
            return None;
        }
        None => (0..depth).map(usual).collect(),
    };
    Some(attends.into_iter().map(|attends| if attends { Mixer::Attention } else { Mixer::Linear }).collect())
}

pub(super) fn put(recipe: &mut Recipe, attention: Attention, mlp: Mlp, moe: Option<Moe>, linear: Linear) {
    fill(recipe, attention, mlp, moe);
    recipe.linear = recipe.has(Mixer::Linear).then_some(linear);
}

/// What LFM2's two models share: short convolutions beside attention with norms of queries and keys.
fn lfm2_parts(config: &mut Config, hidden: u64) -> Option<(Attention, Linear)> {
    let (heads, kv_heads) = config.heads(32, Some(8))?;
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    attention.qk_norm = QkNorm::Head;
    let conv = ShortConv { conv: config.count("conv_L_cache", 3)?, bias: config.flag("conv_bias", false) };
    Some((attention, Linear::ShortConv(conv)))
}

/// LFM2: its feed-forward width is two thirds of what the config says, rounded up.
pub fn lfm2(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2560)?;
    let depth = config.count("num_hidden_layers", 32)?;
    let (attention, conv) = lfm2_parts(config, hidden)?;
    let mut ffn = config.either(&["block_ff_dim", "intermediate_size"], 12_288)?;
    let (multiple, factor) = (config.count("block_multiple_of", 256)?, config.positive("block_ffn_dim_multiplier"));
    if config.flag("block_auto_adjust_ff_dim", true) {
        ffn = 2 * ffn / 3;
        ffn = ((factor.unwrap_or(1.0) * ffn as f64) as u64).next_multiple_of(multiple);
    }
    let listed = config.has("full_attn_idxs").then(|| config.naturals("full_attn_idxs"));
    let attends = |i: u64| listed.as_ref().is_none_or(|listed| listed.contains(&i));
    let mixers = mixers(config, depth, "conv", attends)?;
    let layers = mixers.iter().map(|mixer| Layer::of(&[*mixer, Mixer::Mlp])).collect();
    let mut recipe = config.recipe(layers, hidden, 65_536, 1_000_000.0)?;
    recipe.tied = config.flag("tie_word_embeddings", true);
    let mlp = Mlp { ffn: ffn.max(1), activation: Activation::SwiGlu, bias: false, shift: false };
    put(&mut recipe, attention, mlp, None, conv);
    Some(recipe)
}

/// LFM2 with experts: the first layers dense, a sigmoid router with a balancing bias.
pub fn lfm2_moe(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2048)?;
    let depth = config.count("num_hidden_layers", 32)?;
    let (attention, conv) = lfm2_parts(config, hidden)?;
    let mixers = mixers(config, depth, "conv", |_| true)?;
    let dense = config.natural("num_dense_layers", 2)?;
    let feed = |i: usize| if (i as u64) < dense { Mixer::Mlp } else { Mixer::Moe };
    let layers: Vec<Layer> = mixers.iter().enumerate().map(|(i, mixer)| Layer::of(&[*mixer, feed(i)])).collect();
    let moe = match dense < depth {
        true => {
            let experts = config.count("num_experts", 32)?;
            let width = config.count("moe_intermediate_size", 1792)?;
            let mut moe = bank(config, experts, width, 4)?;
            moe.router.score = ScoreFunction::Sigmoid;
            moe.router.expert_bias = config.flag("use_expert_bias", true);
            weights(config, &mut moe, true, 1.0);
            Some(moe)
        }
        false => None,
    };
    let ffn = config.count("intermediate_size", 7168)?;
    let mut recipe = config.recipe(layers, hidden, 65_536, 1_000_000.0)?;
    recipe.tied = config.flag("tie_word_embeddings", true);
    put(&mut recipe, attention, Mlp { ffn, activation: Activation::SwiGlu, bias: false, shift: false }, moe, conv);
    Some(recipe)
}

/// MiniMax: lightning attention and softmax attention in turn, experts in every layer.
pub fn minimax(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let depth = config.count("num_hidden_layers", 32)?;
    let (heads, kv_heads) = config.heads(32, Some(8))?;
    let head_dim = config.head_dim(hidden, heads)?;
    let mut attention = Attention::gqa(heads, kv_heads, head_dim);
    attention.dropout = config.share("attention_dropout", 0.0);
    let lightning = Lightning { heads, head_dim, chunk: config.count("block_size", 256)? };
    let mixers = mixers(config, depth, "linear_attention", |i| i % 2 == 0)?;
    let layers = mixers.iter().map(|mixer| Layer::of(&[*mixer, Mixer::Moe])).collect();
    let ffn = config.count("intermediate_size", 14_336)?;
    let experts = config.either(&["num_experts", "num_local_experts"], 8)?;
    let mut moe = bank(config, experts, ffn, 2)?;
    balance(config, &mut moe, 0.001);
    let mut recipe = config.recipe(layers, hidden, 32_000, 1_000_000.0)?;
    // The residual stream is what the norm gave, times one factor, and the block's output times another.
    config.implies("residual_behind_norm", "true");
    for part in ["full_attn", "linear_attn", "mlp"] {
        config.agrees(&format!("{part}_alpha_factor"), &1.into());
        config.agrees(&format!("{part}_beta_factor"), &1.into());
    }
    let mlp = Mlp { ffn, activation: Activation::SwiGlu, bias: false, shift: false };
    put(&mut recipe, attention, mlp, Some(moe), Linear::Lightning(lightning));
    Some(recipe)
}

/// RecurrentGemma: two recurrent blocks for one of local attention, a biased MLP of half the config's width.
pub fn recurrent_gemma(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2560)?;
    let depth = config.count("num_hidden_layers", 26)?;
    let (heads, kv_heads) = config.heads(10, None)?;
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    (attention.qkv_bias, attention.out_bias) = (config.flag("attention_bias", false), true);
    attention.dropout = config.share("attention_dropout", 0.0);
    attention.window = Some(Window::sliding(config.count("attention_window_size", 2048)?, Vec::new()));
    let width = config.nullable("lru_width", None)?.unwrap_or(hidden);
    if !width.is_multiple_of(heads) {
        config.refuse("lru_width", format!("{width} channels do not divide into {heads} heads"));
        return None;
    }
    let recurrent = RgLru { width, heads, conv: config.count("conv1d_width", 4)? };
    let period = config.layer_kinds(&["block_types"], None);
    let period = period.unwrap_or_else(|| vec!["recurrent", "recurrent", "full_attention"]);
    if period.is_empty() || period.iter().any(|kind| *kind != "recurrent" && *kind != "full_attention") {
        config.refuse("block_types", "block types are `recurrent` and `attention`");
        return None;
    }
    let mixer = |kind: &&str| if *kind == "recurrent" { Mixer::Linear } else { Mixer::Attention };
    let layers = period.iter().cycle().take(depth as usize).map(|kind| Layer::of(&[mixer(kind), Mixer::Mlp])).collect();
    let ffn = config.count("intermediate_size", 7680)? / 2;
    if config.text("hidden_activation").is_some_and(|name| !name.starts_with("gelu")) {
        config.not_carried("hidden_activation");
    }
    let mut recipe = config.recipe(layers, hidden, 256_000, 10_000.0)?;
    recipe.tied = config.flag("tie_word_embeddings", true);
    recipe.multipliers.embedding = (hidden as f64).sqrt();
    config.implies("logits_soft_cap", "30.0");
    let mlp = Mlp { ffn: ffn.max(1), activation: Activation::GeGlu, bias: true, shift: false };
    put(&mut recipe, attention, mlp, None, Linear::RgLru(recurrent));
    Some(recipe)
}

/// xLSTM: a matrix memory and a gated MLP in every layer.
pub fn xlstm(config: &mut Config) -> Option<Recipe> {
    let hidden = config.either(&["hidden_size", "embedding_dim"], 4096)?;
    let depth = config.either(&["num_hidden_layers", "num_blocks"], 32)?;
    let heads = config.count("num_heads", 8)?;
    let wide = |config: &mut Config, key: &str, usual: f64, multiple: u64| {
        let factor = config.positive(key).unwrap_or(usual);
        // What is beyond the limit stays beyond it, and is refused there.
        ((hidden as f64 * factor) as u64).clamp(1, limits::WIDTH + 1).next_multiple_of(multiple)
    };
    let (qk_dim, v_dim) = (wide(config, "qk_dim_factor", 0.5, 64), wide(config, "v_dim_factor", 1.0, 64));
    let multiple = config.count("ffn_round_up_to_multiple_of", 64)?;
    let ffn = wide(config, "ffn_proj_factor", 2.667, multiple);
    if config.flag("use_bias", false) {
        config.refuse("use_bias", "biases of every norm but the last have no recipe");
    }
    let memory = Mlstm { heads, qk_dim, v_dim, chunk: config.count("chunk_size", 64)? };
    if !(qk_dim.is_multiple_of(heads) && v_dim.is_multiple_of(heads)) {
        config.refuse("num_heads", format!("widths {qk_dim} and {v_dim} do not divide into {heads} heads"));
        return None;
    }
    let layers = vec![Layer::of(&[Mixer::Linear, Mixer::Mlp]); depth as usize];
    let mut recipe = config.recipe(layers, hidden, 50_304, 10_000.0)?;
    recipe.tied = false;
    config.agrees("tie_word_embeddings", &false.into());
    config.has_no_positions(&mut recipe);
    config.implies("gate_soft_cap", "15.0");
    config.implies("output_logit_soft_cap", "30.0");
    recipe.mlp = Some(Mlp { ffn, activation: Activation::SwiGlu, bias: false, shift: false });
    recipe.linear = Some(Linear::Mlstm(memory));
    Some(recipe)
}

/// Kimi Linear: delta attention with latent attention in every fourth layer, which has no positions; the first layer
/// dense. The checkpoint's own config has a table `linear_attn_config`, whose layers count from one.
pub fn kimi_linear(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2304)?;
    let depth = config.count("num_hidden_layers", 27)?;
    let attention = latent_attention(config, 32, None)?;
    let table = config.table("linear_attn_config");
    let sayable = |number: &u64| (1..=crate::limits::WIDTH).contains(number);
    let of_table = |key: &str| table.and_then(|table| table.get(key)).and_then(|value| value.as_u64()).filter(sayable);
    let heads = of_table("num_heads").map_or_else(|| config.count("linear_num_heads", 32), Some)?;
    let head_dim = of_table("head_dim").map_or_else(|| config.count("linear_head_dim", 128), Some)?;
    let conv = of_table("short_conv_kernel_size").map_or_else(|| config.count("linear_conv_kernel_dim", 4), Some)?;
    if heads.checked_mul(head_dim).is_none_or(|inner| inner > crate::limits::WIDTH) {
        config.refuse("linear_num_heads", format!("{heads} heads of {head_dim} are wider than a layer may be"));
        return None;
    }
    let listed = table.and_then(|table| table.get("full_attn_layers")).and_then(|list| list.as_array());
    let attends = |i: u64| match listed {
        Some(layers) => layers.iter().any(|layer| layer.as_u64() == Some(i + 1)),
        None => i > 0 && i.is_multiple_of(4),
    };
    let mixers = mixers(config, depth, "linear_attention", attends)?;
    let layers = fed(config, &mixers, 1)?;
    let moe = match layers.iter().any(|layer| layer.has(Mixer::Moe)) {
        true => Some(kimi_experts(config, Usual { experts: 256, width: 1024, scaling: 2.446, groups: 1, chosen: 1 })?),
        false => None,
    };
    let mlp = Mlp {
        ffn: config.count("intermediate_size", 9216)?,
        activation: config.gated("hidden_act"),
        bias: false,
        shift: false,
    };
    let mut recipe = config.recipe(layers, hidden, 163_840, 10_000.0)?;
    // The class ties nothing, whatever the config says.
    recipe.tied = false;
    config.agrees("tie_word_embeddings", &false.into());
    config.has_no_positions(&mut recipe);
    config.unused(&["model_max_length"], "how far positions reach, and the model has none");
    put(&mut recipe, attention, mlp, moe, Linear::Kda(Kda { heads, head_dim, conv, latents: true }));
    Some(recipe)
}

/// Behind each mixer experts, but for the first layers and those that the config lists as dense.
pub(super) fn fed(config: &mut Config, mixers: &[Mixer], dense: u64) -> Option<Vec<Layer>> {
    let dense = config.natural("first_k_dense_replace", dense)?;
    let routed: Vec<bool> = match config.layer_kinds(&["mlp_layer_types"], Some(mixers.len() as u64)) {
        Some(kinds) => kinds.iter().map(|kind| *kind == "sparse").collect(),
        None => (0..mixers.len() as u64).map(|i| i >= dense).collect(),
    };
    let feed = |routed: bool| if routed { Mixer::Moe } else { Mixer::Mlp };
    Some(mixers.iter().zip(&routed).map(|(mixer, routed)| Layer::of(&[*mixer, feed(*routed)])).collect())
}

/// What a class defaults to.
pub(super) struct Usual {
    pub experts: u64,
    pub width: u64,
    pub scaling: f64,
    pub groups: u64,
    pub chosen: u64,
}

/// A sigmoid router with a balancing bias; the class has two names for every key.
pub(super) fn kimi_experts(config: &mut Config, usual: Usual) -> Option<Moe> {
    let experts = config.either(&["num_experts", "num_local_experts"], usual.experts)?;
    let width = config.count("moe_intermediate_size", usual.width)?;
    let top_k = config.either(&["num_experts_per_token", "num_experts_per_tok"], 8)?;
    let mut moe = Moe::plain(experts.max(1), top_k.clamp(1, experts.max(1)), width, config.gated("hidden_act"));
    (moe.router.score, moe.router.expert_bias) = (ScoreFunction::Sigmoid, true);
    let renormalize = if config.has("moe_renormalize") { "moe_renormalize" } else { "norm_topk_prob" };
    moe.router.normalize = config.flag(renormalize, true);
    moe.router.scaling = config.positive("routed_scaling_factor").unwrap_or(usual.scaling);
    moe.router.groups = config.either(&["num_expert_group", "n_group"], usual.groups)?.max(1);
    let chosen = config.nullable("topk_group", Some(usual.chosen))?.unwrap_or(1).max(1);
    moe.router.group_top_k = if moe.router.groups == 1 { 1 } else { chosen };
    moe.shared = shared(width * config.either(&["num_shared_experts", "n_shared_experts"], 1)?, false, false);
    Some(moe)
}
