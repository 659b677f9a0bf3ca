//! nemotron_h, jamba, bamba, granitemoehybrid, falcon_h1, mamba2, mamba, falcon_mamba: models with Mamba mixers.

use super::config::Config;
use super::moe::{balance, bank, fill, groups, predictions, shared, weights};
use crate::kinds::Activation;
use crate::kinds::attention::Attention;
use crate::kinds::mamba::Mamba;
use crate::kinds::mamba1::Mamba1;
use crate::kinds::mamba2::Mamba2;
use crate::kinds::mlp::Mlp;
use crate::kinds::moe::{ScoreFunction, SharedExpert};
use crate::megatron;
use crate::multipliers::Multipliers;
use crate::pattern::{Block, Layer, Mixer};
use crate::recipe::Recipe;

/// Nemotron-H: one mixer a layer, named by a list or by Megatron's symbols; never tied.
pub fn nemotron_h(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let layers = nemotron_layers(config)?;
    config.agrees("num_hidden_layers", &layers.len().into());
    config.agrees("n_shared_experts", &1.into());
    let (heads, kv_heads) = config.heads(32, Some(8))?;
    let head_dim = config.count("head_dim", 128)?;
    let mut attention = Attention::gqa(heads, kv_heads, head_dim);
    attention.dropout = config.share("attention_dropout", 0.0);
    let mlp_bias = config.flag("mlp_bias", false);
    let ffn = config.count("intermediate_size", 21_504)?;
    let mlp = Mlp { ffn, activation: Activation::Relu2, bias: mlp_bias, shift: false };
    config.agrees("mlp_hidden_act", &"relu2".into());
    config.agrees("mamba_hidden_act", &"silu".into());
    config.agrees("attention_head_dim", &head_dim.into());
    let moe = match layers.iter().any(|l| l.has(Mixer::Moe)) {
        true => Some(nemotron_moe(config, ffn, mlp_bias)?),
        false => None,
    };
    let mamba = nemotron_mamba(config)?;
    let mut recipe = config.recipe(layers, hidden, 131_072, 10_000.0)?;
    recipe.tied = false;
    config.agrees("tie_word_embeddings", &false.into());
    config.has_no_positions(&mut recipe);
    fill(&mut recipe, attention, mlp, moe);
    recipe.mamba = recipe.has(Mixer::Mamba).then_some(Mamba::Two(mamba));
    predictions(config, &mut recipe, 0, Layer::of(&[Mixer::Attention, Mixer::Moe]))?;
    Some(recipe)
}

fn nemotron_layers(config: &mut Config) -> Option<Vec<Layer>> {
    let named = config.layer_kinds(&["layer_types", "layers_block_type"], None);
    let symbols = config.text("hybrid_override_pattern");
    if let (Some(kinds), Some(symbols)) = (&named, symbols) {
        let mixers: Option<Vec<Mixer>> = kinds.iter().map(|kind| nemotron_mixer(kind)).collect();
        let same = megatron::read(symbols).ok().is_some_and(|parsed| {
            let said = parsed.segments.iter().flatten().map(|s| s.mixer()).collect::<Vec<_>>();
            Some(said) == mixers
        });
        if !same {
            config.not_carried("hybrid_override_pattern");
        }
    }
    if let (None, Some(symbols)) = (&named, symbols) {
        return match megatron::read(symbols) {
            Ok(parsed) if parsed.segments.len() == 1 && parsed.mtp_depth == 0 => {
                Some(parsed.segments[0].iter().map(|s| Layer::of(&[s.mixer()])).collect())
            }
            Ok(_) => {
                config.refuse("hybrid_override_pattern", "the pattern has pipeline cuts or a prediction suffix");
                None
            }
            Err(finding) => {
                config.refuse("hybrid_override_pattern", finding.message);
                None
            }
        };
    }
    let kinds = named.unwrap_or_else(|| vec!["linear_attention", "moe", "full_attention", "mlp"]);
    let mixers: Option<Vec<Mixer>> = kinds.iter().map(|kind| nemotron_mixer(kind)).collect();
    if mixers.is_none() {
        config.refuse("layers_block_type", "layer kinds are `mamba`, `attention`, `mlp` and `moe`");
    }
    Some(mixers?.into_iter().map(|m| Layer::of(&[m])).collect())
}

fn nemotron_mixer(kind: &str) -> Option<Mixer> {
    match kind {
        "linear_attention" => Some(Mixer::Mamba),
        "full_attention" => Some(Mixer::Attention),
        "moe" => Some(Mixer::Moe),
        "mlp" => Some(Mixer::Mlp),
        _ => None,
    }
}

/// Two-matrix experts, optionally in a latent space, and always one shared expert.
fn nemotron_moe(config: &mut Config, ffn: u64, bias: bool) -> Option<crate::kinds::moe::Moe> {
    let experts = config.either(&["num_local_experts", "n_routed_experts"], 8)?;
    let width = config.natural("moe_intermediate_size", 7688)?;
    let mut moe = bank(config, experts, width, 2)?;
    moe.activation = Activation::Relu2;
    moe.latent = config.nullable("moe_latent_size", None)?.filter(|n| *n > 0);
    moe.latent_bias = bias && moe.latent.is_some();
    // A shared width of zero falls back to the dense one.
    let shared_width = config.natural("moe_shared_expert_intermediate_size", 7688)?;
    let shared_width = if shared_width == 0 { ffn } else { shared_width };
    moe.shared = Some(SharedExpert { ffn: shared_width, activation: Activation::Relu2, gate: false, bias });
    (moe.router.score, moe.router.expert_bias) = (ScoreFunction::Sigmoid, true);
    weights(config, &mut moe, true, 1.0);
    groups(config, &mut moe, 1, 1)?;
    Some(moe)
}

fn nemotron_mamba(config: &mut Config) -> Option<Mamba2> {
    let heads = config.count("mamba_num_heads", 128)?;
    let head_dim = config.count("mamba_head_dim", 64)?;
    let state = config.count("ssm_state_size", 128)?;
    let groups = config.either(&["mamba_n_groups", "n_groups"], 8)?;
    let mut mamba = mamba2_of(config, heads, head_dim, state, groups)?;
    mamba.conv = config.either(&["mamba_d_conv", "conv_kernel"], 4)?.max(1);
    let key = if config.has("mamba_conv_bias") { "mamba_conv_bias" } else { "use_conv_bias" };
    mamba.conv_bias = config.flag(key, true);
    let bias = config.flag("use_bias", false);
    (mamba.in_bias, mamba.out_bias) = (bias, bias);
    mamba.chunk = config.count("chunk_size", 128)?;
    Some(mamba)
}

/// A Mamba-2 mixer, refused when its groups do not divide its heads.
pub(super) fn mamba2_of(config: &mut Config, heads: u64, head_dim: u64, state: u64, groups: u64) -> Option<Mamba2> {
    if groups == 0 || !heads.is_multiple_of(groups) {
        config.refuse("n_groups", format!("{heads} Mamba heads do not share {groups} groups evenly"));
        return None;
    }
    Some(Mamba2::new(heads, head_dim, state, groups))
}

/// Mamba-2 with the keys bamba, granite and falcon share; `inner` is the width between the
/// projections.
fn shared_mamba(config: &mut Config, inner: u64) -> Option<Mamba2> {
    let heads = config.count("mamba_n_heads", 128)?;
    if !inner.is_multiple_of(heads) {
        config.refuse("mamba_n_heads", format!("inner width {inner} does not divide into {heads} heads"));
        return None;
    }
    let auto = config.text("mamba_d_head") == Some("auto");
    let head_dim = if auto { inner / heads } else { config.count("mamba_d_head", inner / heads)? };
    if head_dim * heads != inner {
        config.refuse("mamba_d_head", format!("{heads} heads of {head_dim} are not {inner} wide"));
        return None;
    }
    let state = config.count("mamba_d_state", 256)?;
    let groups = config.count("mamba_n_groups", 1)?;
    let mut mamba = mamba2_of(config, heads, head_dim, state, groups)?;
    mamba.conv = config.count("mamba_d_conv", 4)?;
    mamba.conv_bias = config.flag("mamba_conv_bias", true);
    let bias = config.flag("mamba_proj_bias", false);
    (mamba.in_bias, mamba.out_bias) = (bias, bias);
    mamba.chunk = config.count("mamba_chunk_size", 256)?;
    Some(mamba)
}

/// Attention with every projection biased by `attention_bias`.
fn plain_attention(config: &mut Config, hidden: u64, kv_default: Option<u64>) -> Option<Attention> {
    let (heads, kv_heads) = config.heads(32, kv_default)?;
    let bias = config.flag("attention_bias", false);
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    (attention.qkv_bias, attention.out_bias) = (bias, bias);
    attention.dropout = config.share("attention_dropout", 0.0);
    Some(attention)
}

/// Jamba: Mamba-1 with a few attention layers, experts in every other one.
pub fn jamba(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let (heads, kv_heads) = config.heads(32, Some(8))?;
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    config.window(&mut attention, false);
    let ffn = config.count("intermediate_size", 14_336)?;
    let experts = config.either(&["num_local_experts", "num_experts"], 16)?;
    let (attn_period, attn_offset) = period(config, "attn_layer_period", 8, "attn_layer_offset", 4)?;
    let (moe_period, moe_offset) = period(config, "expert_layer_period", 2, "expert_layer_offset", 1)?;
    let depth = config.count("num_hidden_layers", 32)?;
    let layer = |i| {
        let mixer = if i % attn_period == attn_offset { Mixer::Attention } else { Mixer::Mamba };
        let is_moe = experts > 1 && i % moe_period == moe_offset;
        Layer::of(&[mixer, if is_moe { Mixer::Moe } else { Mixer::Mlp }])
    };
    let layers: Vec<Layer> = (0..depth).map(layer).collect();
    let moe = match experts > 1 {
        true => {
            let mut moe = bank(config, experts, ffn, 2)?;
            // `JambaTopkRouter`: the softmax is over all experts, and the chosen weights stay as they are.
            moe.router.normalize = false;
            balance(config, &mut moe, 0.001);
            Some(moe)
        }
        false => None,
    };
    let mamba = jamba_mamba(config, hidden)?;
    let mut recipe = config.recipe(layers, hidden, 65_536, 10_000.0)?;
    config.has_no_positions(&mut recipe);
    let mlp = Mlp { ffn, activation: config.gated("hidden_act"), bias: false, shift: false };
    fill(&mut recipe, attention, mlp, moe);
    recipe.mamba = recipe.has(Mixer::Mamba).then_some(Mamba::One(mamba));
    Some(recipe)
}

pub(super) fn period(config: &mut Config, key: &str, every: u64, offset_key: &str, offset: u64) -> Option<(u64, u64)> {
    let every = config.count(key, every)?;
    let offset = config.natural(offset_key, offset)?;
    if offset >= every {
        config.refuse(offset_key, format!("`{offset_key}` {offset} is not below `{key}` {every}"));
        return None;
    }
    Some((every, offset))
}

fn jamba_mamba(config: &mut Config, hidden: u64) -> Option<Mamba1> {
    let auto = config.text("mamba_dt_rank") == Some("auto") || !config.has("mamba_dt_rank");
    Some(Mamba1 {
        inner: config.count("mamba_expand", 2)? * hidden,
        heads: 1,
        state: config.count("mamba_d_state", 16)?,
        dt_rank: if auto { hidden.div_ceil(16) } else { config.count("mamba_dt_rank", 1)? },
        conv: config.count("mamba_d_conv", 4)?,
        conv_bias: config.flag("mamba_conv_bias", true),
        proj_bias: config.flag("mamba_proj_bias", false),
        inner_norms: true,
    })
}

/// Bamba: Mamba-2 with attention in the listed layers, an MLP in all.
pub fn bamba(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let attention = plain_attention(config, hidden, Some(8))?;
    let inner = config.count("mamba_expand", 2)? * hidden;
    let mamba = shared_mamba(config, inner)?;
    let attends = config.naturals("attn_layer_indices");
    let depth = config.count("num_hidden_layers", 32)?;
    let mixer = |i| if attends.contains(&i) { Mixer::Attention } else { Mixer::Mamba };
    let layers = (0..depth).map(|i| Layer::of(&[mixer(i), Mixer::Mlp])).collect();
    let ffn = config.count("intermediate_size", 14_336)?;
    let mlp = Mlp { ffn, activation: config.gated("hidden_act"), bias: config.flag("mlp_bias", false), shift: false };
    let mut recipe = config.recipe(layers, hidden, 128_000, 10_000.0)?;
    fill(&mut recipe, attention, mlp, None);
    recipe.mamba = recipe.has(Mixer::Mamba).then_some(Mamba::Two(mamba));
    Some(recipe)
}

/// Granite 4 hybrid: experts and a shared MLP in every layer; without experts only the latter.
pub fn granitemoehybrid(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let attention = plain_attention(config, hidden, None)?;
    let inner = config.count("mamba_expand", 2)? * hidden;
    let mamba = shared_mamba(config, inner)?;
    let depth = config.count("num_hidden_layers", 32)?;
    let kinds = config.layer_kinds(&["layers_block_type", "layer_types"], Some(depth));
    let experts = config.natural("num_local_experts", 8)?;
    let shared_width = config.natural("shared_intermediate_size", 1024)?;
    let feed = if experts > 0 { Mixer::Moe } else { Mixer::Mlp };
    let mixer = |kind: &str| if kind == "linear_attention" { Mixer::Mamba } else { Mixer::Attention };
    let layers: Vec<Layer> = match &kinds {
        Some(kinds) => kinds.iter().map(|kind| Layer::of(&[mixer(kind), feed])).collect(),
        None => vec![Layer::of(&[Mixer::Mamba, feed]); depth as usize],
    };
    let width = config.count("intermediate_size", 11_008)?;
    let moe = match experts > 0 {
        true => {
            let mut moe = bank(config, experts, width, 2)?;
            moe.shared = shared(shared_width, false, false);
            balance(config, &mut moe, 0.001);
            Some(moe)
        }
        false => None,
    };
    let mlp = Mlp { ffn: shared_width.max(1), activation: config.gated("hidden_act"), bias: false, shift: false };
    if experts == 0 && shared_width == 0 {
        config.refuse("shared_intermediate_size", "a layer without experts needs a shared MLP of some width");
    }
    let mut recipe = config.recipe(layers, hidden, 32_000, 10_000.0)?;
    match config.text("position_embedding_type") {
        // `GraniteMoeHybridModel` rotates by "rope" only.
        Some("rope") => {}
        _ => config.has_no_positions(&mut recipe),
    }
    recipe.multipliers = Multipliers {
        embedding: config.positive("embedding_multiplier").unwrap_or(1.0),
        residual: config.positive("residual_multiplier").unwrap_or(1.0),
        attention: config.positive("attention_multiplier").or(Some(1.0)).filter(|_| recipe.has(Mixer::Attention)),
        logits: 1.0 / config.positive("logits_scaling").unwrap_or(1.0),
        ..Multipliers::default()
    };
    fill(&mut recipe, attention, mlp, moe);
    recipe.mamba = recipe.has(Mixer::Mamba).then_some(Mamba::Two(mamba));
    Some(recipe)
}

/// Falcon-H1: attention and Mamba-2 side by side in every layer, then an MLP.
pub fn falcon_h1(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let attention = plain_attention(config, hidden, Some(8))?;
    let expand = config.count("mamba_expand", 2)?;
    let inner = config.nullable("mamba_d_ssm", Some(1024))?.unwrap_or(expand * hidden);
    let mut mamba = shared_mamba(config, inner)?;
    mamba.out_bias = config.flag("projectors_bias", false);
    mamba.gated_norm = config.flag("mamba_rms_norm", false);
    let before = config.flag("mamba_norm_before_gate", true);
    if mamba.gated_norm && before {
        config.implies("mamba_norm_before_gate", "true");
    }
    let ffn = config.count("intermediate_size", 14_336)?;
    let mlp = Mlp { ffn, activation: config.gated("hidden_act"), bias: config.flag("mlp_bias", false), shift: false };
    let depth = config.count("num_hidden_layers", 32)?;
    let parallel = Block { mixers: vec![Mixer::Attention, Mixer::Mamba] };
    let layer = Layer::of_blocks(vec![parallel, Block::of(Mixer::Mlp)]);
    let mut recipe = config.recipe(vec![layer; depth as usize], hidden, 128_000, 10_000.0)?;
    fill(&mut recipe, attention, mlp, None);
    recipe.mamba = Some(Mamba::Two(mamba));
    recipe.multipliers = falcon_multipliers(config);
    Some(recipe)
}

fn falcon_multipliers(config: &mut Config) -> Multipliers {
    let (ssm, mlp) = (config.positives("ssm_multipliers"), config.positives("mlp_multipliers"));
    let mut one = |key| config.positive(key).unwrap_or(1.0);
    Multipliers {
        embedding: one("embedding_multiplier"),
        logits: one("lm_head_multiplier"),
        key: one("key_multiplier"),
        attention_in: one("attention_in_multiplier"),
        attention_out: one("attention_out_multiplier"),
        ssm_in: one("ssm_in_multiplier"),
        ssm_out: one("ssm_out_multiplier"),
        ssm,
        mlp,
        ..Multipliers::default()
    }
}

/// Mamba-2 alone.
pub fn mamba2(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let heads = config.count("num_heads", 128)?;
    let head_dim = config.count("head_dim", 64)?;
    let expand = config.count("expand", 2)?;
    if heads * head_dim != expand * hidden {
        config.refuse("num_heads", format!("{heads} heads of {head_dim} are not {expand} × {hidden} wide"));
        return None;
    }
    let state = config.count("state_size", 128)?;
    let groups = config.count("n_groups", 8)?;
    let mut mamba = mamba2_of(config, heads, head_dim, state, groups)?;
    mamba.conv = config.count("conv_kernel", 4)?;
    mamba.conv_bias = config.flag("use_conv_bias", true);
    let bias = config.flag("use_bias", false);
    (mamba.in_bias, mamba.out_bias) = (bias, bias);
    mamba.chunk = config.count("chunk_size", 256)?;
    let depth = config.count("num_hidden_layers", 64)?;
    let mut recipe = config.recipe(vec![Layer::of(&[Mixer::Mamba]); depth as usize], hidden, 32_768, 10_000.0)?;
    config.has_no_positions(&mut recipe);
    config.agrees("hidden_act", &"silu".into());
    recipe.mamba = Some(Mamba::Two(mamba));
    Some(recipe)
}

/// Mamba-1 alone; Falcon's norms step size, B and C without a scale.
pub fn mamba1(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 768)?;
    let expand = config.count("expand", 2)?;
    let auto = config.text("time_step_rank") == Some("auto") || !config.has("time_step_rank");
    let bias = config.flag("use_bias", false);
    let mamba = Mamba1 {
        inner: config.count("intermediate_size", expand * hidden)?,
        heads: 1,
        state: config.count("state_size", 16)?,
        dt_rank: if auto { hidden.div_ceil(16) } else { config.count("time_step_rank", 1)? },
        conv: config.count("conv_kernel", 4)?,
        conv_bias: config.flag("use_conv_bias", true),
        proj_bias: bias,
        inner_norms: false,
    };
    if config.model_type == "falcon_mamba" {
        config.implies("mixer_rms_eps", "1e-06");
    }
    let depth = config.count("num_hidden_layers", 32)?;
    let mut recipe = config.recipe(vec![Layer::of(&[Mixer::Mamba]); depth as usize], hidden, 50_280, 10_000.0)?;
    recipe.tied = config.flag("tie_word_embeddings", true);
    config.has_no_positions(&mut recipe);
    config.agrees("hidden_act", &"silu".into());
    recipe.mamba = Some(Mamba::One(mamba));
    Some(recipe)
}
