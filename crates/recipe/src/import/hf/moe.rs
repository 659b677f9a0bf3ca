//! mixtral, qwen3_moe, olmoe, gpt_oss, glm4_moe: attention, then experts in some or all layers.

use super::config::Config;
use crate::features::Switch;
use crate::kinds::Activation;
use crate::kinds::attention::{Attention, QkNorm};
use crate::kinds::mlp::Mlp;
use crate::kinds::moe::{Moe, ScoreFunction, SharedExpert};
use crate::kinds::mtp::Mtp;
use crate::pattern::{Layer, Mixer};
use crate::recipe::Recipe;

/// Gated routed experts without a shared one; a softmax router whose chosen weights sum to one.
pub(super) fn bank(config: &mut Config, experts: u64, ffn: u64, top_k: u64) -> Option<Moe> {
    if experts == 0 || ffn == 0 {
        config.refuse("num_experts", "the config has expert layers without experts");
        return None;
    }
    // transformers lets `num_experts_per_tok` be null; the count does not depend on it.
    let top_k = config.nullable("num_experts_per_tok", Some(top_k))?.unwrap_or(top_k).clamp(1, experts);
    Some(Moe::plain(experts, top_k, ffn, config.gated("hidden_act")))
}

/// The balancing loss over a microbatch, as transformers' `load_balancing_loss_func` takes it.
pub(super) fn balance(config: &mut Config, moe: &mut Moe, coefficient: f64) {
    moe.router.aux_loss = Some(config.share("router_aux_loss_coef", coefficient)).filter(|c| *c > 0.0);
}

/// Whether the chosen weights are divided by their sum, and what they are multiplied with.
pub(super) fn weights(config: &mut Config, moe: &mut Moe, normalize: bool, scaling: f64) {
    moe.router.normalize = config.flag("norm_topk_prob", normalize);
    moe.router.scaling = config.positive("routed_scaling_factor").unwrap_or(scaling);
}

/// Groups that experts stand in, where a group is scored by its two best.
pub(super) fn groups(config: &mut Config, moe: &mut Moe, groups: u64, top_k: u64) -> Option<()> {
    moe.router.groups = config.nullable("n_group", Some(groups))?.unwrap_or(1).max(1);
    let chosen = config.nullable("topk_group", Some(top_k))?.unwrap_or(1).max(1);
    // Transformers takes all groups where there is one.
    moe.router.group_top_k = if moe.router.groups == 1 { 1 } else { chosen };
    Some(())
}

/// A shared expert, unless it has no width.
pub(super) fn shared(ffn: u64, gate: bool, bias: bool) -> Option<SharedExpert> {
    (ffn > 0).then_some(SharedExpert { ffn, activation: Activation::SwiGlu, gate, bias })
}

/// Attention and then experts or an MLP, by layer.
pub(super) fn interleaved(depth: u64, is_moe: impl Fn(u64) -> bool) -> Vec<Layer> {
    let feed = |i| if is_moe(i) { Mixer::Moe } else { Mixer::Mlp };
    (0..depth).map(|i| Layer::of(&[Mixer::Attention, feed(i)])).collect()
}

/// Puts the kinds in that the layers use, and leaves the others out.
pub(super) fn fill(recipe: &mut Recipe, attention: Attention, mlp: Mlp, moe: Option<Moe>) {
    recipe.attention = recipe.has(Mixer::Attention).then_some(attention);
    recipe.mlp = recipe.has(Mixer::Mlp).then_some(mlp);
    recipe.moe = moe.filter(|_| recipe.has(Mixer::Moe));
}

/// The prediction suffix the config mentions, switched off: transformers does not build it.
pub(super) fn predictions(config: &mut Config, recipe: &mut Recipe, default: u64, layer: Layer) -> Option<()> {
    let depth = config.either(&["num_mtp_layers", "num_nextn_predict_layers"], default)?;
    let described = |m| match m {
        Mixer::Moe => recipe.moe.is_some(),
        Mixer::Attention => recipe.attention.is_some(),
        _ => recipe.has(m),
    };
    // Their own keys, where a config has them, say what `layer` says.
    config.agrees("mtp_hybrid_override_pattern", &"*E".into());
    let kinds = config.layer_kinds(&["mtp_layers_block_type"], None);
    if kinds.is_some_and(|kinds| kinds != ["full_attention", "moe"]) {
        config.not_carried("mtp_layers_block_type");
    }
    if depth > 0 && layer.mixers().all(described) {
        let depth = depth.min(crate::limits::MTP);
        recipe.features.mtp = Some(Switch { on: false, value: Mtp { depth, layer, shared: false } });
    }
    Some(())
}

fn gated(config: &mut Config, ffn: u64) -> Mlp {
    Mlp { ffn, activation: config.gated("hidden_act"), bias: false, shift: false }
}

/// Mixtral: experts as wide as the config's feed-forward, in every layer.
pub fn mixtral(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let (heads, kv_heads) = config.heads(32, Some(8))?;
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    config.window(&mut attention, true);
    let ffn = config.count("intermediate_size", 14_336)?;
    let experts = config.either(&["num_experts", "num_local_experts"], 8)?;
    let mut moe = bank(config, experts, ffn, 2)?;
    balance(config, &mut moe, 0.001);
    let depth = config.count("num_hidden_layers", 32)?;
    let mut recipe = config.recipe(interleaved(depth, |_| true), hidden, 32_000, 1_000_000.0)?;
    let mlp = gated(config, ffn);
    fill(&mut recipe, attention, mlp, Some(moe));
    Some(recipe)
}

/// Which layers of a Qwen model route: every `decoder_sparse_step`-th, but the listed ones.
pub(super) fn qwen_sparsity(config: &mut Config, experts: u64) -> Option<impl Fn(u64) -> bool + use<>> {
    let step = config.count("decoder_sparse_step", 1)?;
    let dense = config.naturals("mlp_only_layers");
    Some(move |i: u64| experts > 0 && !dense.contains(&i) && (i + 1).is_multiple_of(step))
}

/// Qwen3 MoE.
pub fn qwen3_moe(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2048)?;
    let (heads, kv_heads) = config.heads(32, Some(4))?;
    let bias = config.flag("attention_bias", false);
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    (attention.qkv_bias, attention.out_bias, attention.qk_norm) = (bias, bias, QkNorm::Head);
    let windowed = config.flag("use_sliding_window", false);
    config.window(&mut attention, windowed);
    let experts = config.either(&["num_local_experts", "num_experts"], 128)?;
    let is_moe = qwen_sparsity(config, experts)?;
    let width = config.natural("moe_intermediate_size", 768)?;
    let depth = config.count("num_hidden_layers", 24)?;
    let layers = interleaved(depth, is_moe);
    let moe = match layers.iter().any(|l| l.has(Mixer::Moe)) {
        true => {
            let mut moe = bank(config, experts, width, 8)?;
            balance(config, &mut moe, 0.001);
            weights(config, &mut moe, false, 1.0);
            Some(moe)
        }
        false => None,
    };
    let ffn = config.count("intermediate_size", 6144)?;
    let mlp = gated(config, ffn);
    let mut recipe = config.recipe(layers, hidden, 151_936, 10_000.0)?;
    fill(&mut recipe, attention, mlp, moe);
    Some(recipe)
}

/// OLMoE: queries and keys normalised over all heads at once.
pub fn olmoe(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2048)?;
    let (heads, kv_heads) = config.heads(16, None)?;
    let head_dim = config.head_dim(hidden, heads)?;
    if head_dim * heads != hidden {
        config
            .refuse("head_dim", format!("OLMoE norms queries over hidden {hidden}, and {heads} heads are not as wide"));
    }
    let bias = config.flag("attention_bias", false);
    let mut attention = Attention::gqa(heads, kv_heads, head_dim);
    (attention.qkv_bias, attention.out_bias, attention.qk_norm) = (bias, bias, QkNorm::Full);
    attention.dropout = config.share("attention_dropout", 0.0);
    let ffn = config.count("intermediate_size", 2048)?;
    let experts = config.either(&["num_local_experts", "num_experts"], 64)?;
    let mut moe = bank(config, experts, ffn, 8)?;
    balance(config, &mut moe, 0.01);
    weights(config, &mut moe, false, 1.0);
    let depth = config.count("num_hidden_layers", 16)?;
    let mut recipe = config.recipe(interleaved(depth, |_| true), hidden, 50_304, 10_000.0)?;
    let mlp = gated(config, ffn);
    fill(&mut recipe, attention, mlp, Some(moe));
    Some(recipe)
}

/// gpt-oss: a sink a head, biases on router and experts.
pub fn gpt_oss(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 2880)?;
    let (heads, kv_heads) = config.heads(64, Some(8))?;
    let bias = config.flag("attention_bias", true);
    let mut attention = Attention::gqa(heads, kv_heads, config.count("head_dim", 64)?);
    (attention.qkv_bias, attention.out_bias, attention.sinks) = (bias, bias, true);
    config.window(&mut attention, true);
    let ffn = config.count("intermediate_size", 2880)?;
    let experts = config.either(&["num_experts", "num_local_experts"], 128)?;
    let mut moe = bank(config, experts, ffn, 4)?;
    (moe.bias, moe.router.bias) = (true, true);
    balance(config, &mut moe, 0.001);
    moe.activation = Activation::SwiGluOai;
    for (key, usual) in [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)] {
        if config.share(key, usual) != usual {
            config.refuse(key, format!("a recipe's `swigluoai` has {usual} here"));
        }
    }
    let depth = config.count("num_hidden_layers", 36)?;
    let mut recipe = config.recipe(interleaved(depth, |_| true), hidden, 201_088, 150_000.0)?;
    let original = recipe.positions.rope().and_then(|rope| rope.scaling?.original());
    config.agrees("initial_context_length", &original.into());
    let mlp = gated(config, ffn);
    fill(&mut recipe, attention, mlp, Some(moe));
    Some(recipe)
}

/// GLM-4 MoE: the first layers dense, a shared expert, the output never biased.
pub fn glm4_moe(config: &mut Config) -> Option<Recipe> {
    let hidden = config.count("hidden_size", 4096)?;
    let (heads, kv_heads) = config.heads(96, Some(8))?;
    let mut attention = Attention::gqa(heads, kv_heads, config.head_dim(hidden, heads)?);
    attention.qkv_bias = config.flag("attention_bias", false);
    if config.flag("use_qk_norm", false) {
        attention.qk_norm = QkNorm::Head;
    }
    let width = config.natural("moe_intermediate_size", 1408)?;
    let experts = config.either(&["num_local_experts", "n_routed_experts"], 128)?;
    let shared_experts = config.natural("n_shared_experts", 1)?;
    let dense_first = config.natural("first_k_dense_replace", 1)?;
    let ffn = config.count("intermediate_size", 10_944)?;
    let mlp = gated(config, ffn);
    attention.dropout = config.share("attention_dropout", 0.0);
    let depth = config.count("num_hidden_layers", 46)?;
    let moe = match dense_first < depth {
        true => {
            let mut moe = bank(config, experts, width, 8)?;
            moe.shared = shared(width * shared_experts, false, false);
            (moe.router.score, moe.router.expert_bias) = (ScoreFunction::Sigmoid, true);
            weights(config, &mut moe, true, 1.0);
            groups(config, &mut moe, 1, 1)?;
            Some(moe)
        }
        false => None,
    };
    let mut recipe = config.recipe(interleaved(depth, |i| i >= dense_first), hidden, 151_552, 10_000.0)?;
    fill(&mut recipe, attention, mlp, moe);
    predictions(config, &mut recipe, 1, Layer::of(&[Mixer::Attention, Mixer::Moe]))?;
    Some(recipe)
}
