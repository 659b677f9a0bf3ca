//! The model of a row as a recipe.

use super::need;
use super::precision::Precision;
use super::words::plain;
use recipe::features::Switch;
use recipe::kinds::attention::{Attention, AttentionKind, Window};
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::mla::Mla;
use recipe::kinds::mlp::Mlp;
use recipe::kinds::moe::{Moe, Router, SharedExpert};
use recipe::kinds::mtp::Mtp;
use recipe::kinds::{Activation, Norm};
use recipe::precision::OptimizerPolicy;
use recipe::{Dtype, Layer, Mixer, Pattern, Positions, Recipe, Rope, builtin, limits};
use serde_json::Value;
use std::sync::LazyLock;

/// What rows never say of a model, and its engine therefore decides.
pub(super) struct Unsaid {
    pub norm: Norm,
    pub positions: Positions,
    pub has_biases: bool,
}

impl Unsaid {
    /// As Llama and its kin are built.
    pub fn llama() -> Unsaid {
        Unsaid { norm: Norm::RmsNorm, positions: Positions::Rope(Rope::plain(10_000.0)), has_biases: false }
    }
}

/// The kind of a model, as summaries group by it, from the row alone.
pub(super) fn kind(model: &Value) -> &'static str {
    match () {
        () if !model["mla"].is_null() => "mla",
        () if !model["pattern"].is_null() && window(model).is_none() => "hybrid",
        () if !model["experts"].is_null() => "moe",
        () => "dense",
    }
}

/// The recipe of a row.
pub(super) fn recipe(row: &Value, unsaid: &Unsaid) -> Result<Recipe, String> {
    let model = &row["model"];
    check_sizes(row)?;
    let layers = layers(model)?;
    let mut recipe = Recipe {
        name: row["id"].as_str().unwrap_or("unnamed").into(),
        source: row["source"].as_str().unwrap_or("a published row").into(),
        pattern: Pattern::describe(&layers),
        layers,
        hidden: need(model, "hidden")?,
        vocab: need(model, "vocab")?,
        tied: model["tied_embeddings"].as_bool().ok_or("the row does not say whether embeddings are tied")?,
        sequence: need(&row["batch"], "seq")?,
        norm: unsaid.norm,
        norm_place: recipe::kinds::NormPlace::Before,
        embedding_norm: false,
        head_bias: false,
        norm_eps: recipe::NORM_EPS,
        init_std: None,
        dropout: 0.0,
        positions: unsaid.positions,
        multipliers: Default::default(),
        modes: Vec::new(),
        attention: Some(attention(model, unsaid)?),
        moe: moe(model)?,
        mamba: mamba(model)?,
        recurrent: None,
        gated_delta: None,
        linear: None,
        mlp: None,
        shared: None,
        features: Default::default(),
        precision: Default::default(),
        optimizer: optimizer(row)?,
        not_carried: Vec::new(),
        notes: Vec::new(),
    };
    set_precision(&mut recipe, row)?;
    recipe.features.mtp = mtp(model, &recipe.layers)?.map(|value| Switch { on: true, value });
    if recipe.uses(Mixer::Mlp) {
        let activation = activation(model)?;
        recipe.mlp = Some(Mlp { ffn: need(model, "ffn")?, activation, bias: unsaid.has_biases, shift: false });
    }
    recipe.validated().map_err(|findings| findings[0].message.clone())
}

/// Sizes beyond what a recipe may ask for are refused before anything is built of them.
fn check_sizes(row: &Value) -> Result<(), String> {
    let (model, mla, mamba) = (&row["model"], &row["model"]["mla"], &row["model"]["mamba"]);
    let within = |object: &Value, keys: &[&str], most: u64| {
        let large = keys.iter().find(|key| object[**key].as_u64().is_some_and(|size| size > most));
        large.map_or(Ok(()), |key| Err(format!("`{key}` is more than {most}")))
    };
    within(model, &["layers"], limits::DEPTH)?;
    within(model, &["mtp_layers"], limits::MTP)?;
    within(model, &["vocab"], limits::VOCAB)?;
    within(model, &["hidden", "ffn", "expert_ffn", "shared_expert_ffn", "head_dim"], limits::WIDTH)?;
    within(model, &["heads", "kv_heads"], limits::HEADS)?;
    within(model, &["experts", "topk"], limits::EXPERTS)?;
    within(mla, &["q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_rope_head_dim", "v_head_dim"], limits::WIDTH)?;
    within(mamba, &["num_heads", "head_dim", "state_dim", "num_groups"], limits::HEADS)?;
    within(&row["batch"], &["seq"], limits::SEQUENCE)
}

fn activation(model: &Value) -> Result<Activation, String> {
    let said = model["activation"].as_str().ok_or("the row lacks `activation`")?;
    match plain(said).as_str() {
        "swiglu" | "silu" => Ok(Activation::SwiGlu),
        "swigluoai" => Ok(Activation::SwiGluOai),
        "geglu" => Ok(Activation::GeGlu),
        "gelu" => Ok(Activation::Gelu),
        "squaredrelu" | "relu2" | "relusquared" => Ok(Activation::Relu2),
        _ => Err(format!("activation `{said}` is not known")),
    }
}

/// Formats of what is kept. Megatron forces fp32 gradients on bf16 alone (`training/arguments.py`), so fp16 ones
/// stay fp16.
fn set_precision(recipe: &mut Recipe, row: &Value) -> Result<(), String> {
    let precision = &mut recipe.precision;
    // Engines cast every weight, scalars too.
    precision.scalars = Dtype::Bf16;
    match Precision::of(row)?.base {
        Dtype::Fp16 => {
            precision.weights = Dtype::Fp16;
            precision.gradients = Dtype::Fp16;
        }
        Dtype::Fp32 => precision.weights = Dtype::Fp32,
        _ => {}
    }
    Ok(())
}

fn optimizer(row: &Value) -> Result<OptimizerPolicy, String> {
    let name = row["optimizer"].as_str().unwrap_or_default().to_ascii_lowercase();
    match () {
        () if name.contains("cpu") => Err("an optimizer on the host is not replayed".to_string()),
        () if name.starts_with("adam") => Ok(OptimizerPolicy::default()),
        () if name.starts_with("muon") => Ok(OptimizerPolicy::muon()),
        () => Err("the row's optimizer is not known".to_string()),
    }
}

/// Blocks of a hybrid pattern, or transformer layers with experts where `moe_layers` says so.
fn layers(model: &Value) -> Result<Vec<Layer>, String> {
    if let Some(pattern) = model["pattern"].as_str().filter(|_| window(model).is_none()) {
        let parsed = recipe::megatron::read(pattern).map_err(|finding| finding.message)?;
        return Ok(parsed.segments.concat().iter().map(|symbol| Layer::of(&[symbol.mixer()])).collect());
    }
    let depth = need(model, "layers")?;
    let routed = if model["experts"].is_null() { vec![false; depth as usize] } else { routed(model, depth)? };
    let feed = |is_routed| if is_routed { Mixer::Moe } else { Mixer::Mlp };
    Ok(routed.into_iter().map(|is_routed| Layer::of(&[Mixer::Attention, feed(is_routed)])).collect())
}

/// Which layers have experts: all, all but the first few, or as a list or Megatron's
/// `([0]*3+[1]*12)` says.
fn routed(model: &Value, depth: u64) -> Result<Vec<bool>, String> {
    let flags: Vec<bool> = match &model["moe_layers"] {
        Value::Null => vec![true; depth as usize],
        Value::Array(flags) => flags.iter().map(|flag| flag.as_u64() == Some(1)).collect(),
        Value::String(text) if text == "all" => vec![true; depth as usize],
        Value::String(text) if text.starts_with("first") => {
            let dense = dense_first(text).ok_or("`moe_layers` is not understood")?;
            (0..depth).map(|layer| layer >= dense).collect()
        }
        Value::String(text) => runs(text).ok_or("`moe_layers` is not understood")?,
        _ => return Err("`moe_layers` is not understood".to_string()),
    };
    if flags.len() as u64 == depth { Ok(flags) } else { Err("`moe_layers` is of another depth".to_string()) }
}

/// Dense layers before those with experts: `first dense, rest MoE`, `first 3 dense, 58 MoE`.
fn dense_first(text: &str) -> Option<u64> {
    let (first, _) = text.strip_prefix("first ")?.split_once("dense")?;
    if first.is_empty() { Some(1) } else { first.trim().parse().ok() }
}

fn runs(text: &str) -> Option<Vec<bool>> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let mut flags = Vec::new();
    for run in inner.split('+') {
        let (flag, count) = run.split_once('*')?;
        let is_routed = flag.trim_matches(['[', ']']).parse::<u8>().ok()? == 1;
        flags.extend(std::iter::repeat_n(is_routed, count.parse::<u16>().ok()? as usize));
    }
    Some(flags)
}

/// Tokens a query sees in every other layer, where a row's pattern says
/// `alternate sliding-window(128)/full attention`.
fn window(model: &Value) -> Option<u64> {
    let (_, rest) = model["pattern"].as_str()?.split_once("alternate sliding-window(")?;
    rest.split(')').next()?.parse().ok()
}

/// Whether it is gpt-oss, whose unit no other model has: biases on everything and a sink a head go with it.
fn is_oss(model: &Value) -> bool {
    matches!(activation(model), Ok(Activation::SwiGluOai))
}

fn attention(model: &Value, unsaid: &Unsaid) -> Result<Attention, String> {
    let heads = need(model, "heads")?;
    let kv_heads = model["kv_heads"].as_u64().unwrap_or(heads);
    let head_dim = model["head_dim"].as_u64().unwrap_or(need(model, "hidden")? / heads.max(1));
    let mut attention = Attention::gqa(heads, kv_heads, head_dim);
    attention.sinks = is_oss(model);
    attention.qkv_bias = unsaid.has_biases || is_oss(model);
    attention.out_bias = unsaid.has_biases || is_oss(model);
    if let Some(tokens) = window(model) {
        let layers = need(model, "layers")?;
        attention.window = Some(Window::sliding(tokens, (0..layers).filter(|layer| layer % 2 == 1).collect()));
    }
    let mla = &model["mla"];
    if mla.is_object() {
        // Unsaid widths are Megatron's (`core/transformer/transformer_config.py` MLATransformerConfig).
        let or = |key: &str, default| mla[key].as_u64().unwrap_or(default);
        attention.kind = AttentionKind::Mla(Mla {
            q_rank: mla["q_lora_rank"].as_u64(),
            kv_rank: need(mla, "kv_lora_rank")?,
            qk_dim: or("qk_head_dim", 128),
            rope_dim: or("qk_rope_head_dim", 64),
            v_dim: or("v_head_dim", 128),
            bias: false,
            // Rows do not say, and Megatron builds these norms with `--qk-layernorm` only.
            head_gate: false,
            latent_norm: false,
        });
    }
    Ok(attention)
}

fn moe(model: &Value) -> Result<Option<Moe>, String> {
    let Some(experts) = model["experts"].as_u64() else { return Ok(None) };
    let activation = activation(model)?;
    let shared = model["shared_expert_ffn"].as_u64().filter(|ffn| *ffn > 0);
    let plain = Moe::plain(experts, need(model, "topk")?, need(model, "expert_ffn")?, activation);
    let (groups, group_top_k) = groups(need(model, "hidden")?, &plain);
    Ok(Some(Moe {
        shared: shared.map(|ffn| SharedExpert { ffn, activation, gate: false, bias: false }),
        // A balancing loss is Megatron's default; its coefficient moves no memory.
        router: Router { aux_loss: Some(1e-2), bias: is_oss(model), groups, group_top_k, ..Router::default() },
        bias: is_oss(model),
        ..plain
    }))
}

/// Groups that a token's experts come from, which rows never say: those of the built-in recipe with the same experts.
/// Engines keep them where routing is forced to balance (Megatron-Core `moe/router.py` draws the logits, and chooses
/// among them as ever).
fn groups(hidden: u64, like: &Moe) -> (u64, u64) {
    static BUILT_IN: LazyLock<Vec<Recipe>> =
        LazyLock::new(|| builtin::RECIPES.iter().filter_map(|(name, _)| builtin::find(name).ok()).collect());
    let is_alike = |moe: &&Moe| (moe.experts, moe.top_k, moe.ffn) == (like.experts, like.top_k, like.ffn);
    let same = BUILT_IN.iter().filter(|recipe| recipe.hidden == hidden).filter_map(|recipe| recipe.moe.as_ref());
    same.into_iter().find(is_alike).map_or((1, 1), |moe| (moe.router.groups, moe.router.group_top_k))
}

/// Sizes of Mamba-2, or Megatron's defaults where a row gives none: twice the hidden width in
/// heads of 64, states of 128, 8 groups (`megatron/core/transformer/transformer_config.py`).
fn mamba(model: &Value) -> Result<Option<Mamba>, String> {
    let sizes = &model["mamba"];
    if sizes.is_null() {
        return Ok(None);
    }
    let or = |key: &str, default| sizes[key].as_u64().unwrap_or(default);
    let head_dim = or("head_dim", 64);
    let heads = or("num_heads", 2 * need(model, "hidden")? / head_dim.max(1));
    Ok(Some(Mamba::Two(Mamba2::new(heads, head_dim, or("state_dim", 128), or("num_groups", 8)))))
}

/// The prediction suffix: the pattern's own, or a layer like the last.
fn mtp(model: &Value, layers: &[Layer]) -> Result<Option<Mtp>, String> {
    let Some(depth) = model["mtp_layers"].as_u64().filter(|depth| *depth > 0) else { return Ok(None) };
    let layer = match model["pattern"].as_str() {
        Some(pattern) if window(model).is_none() => {
            let parsed = recipe::megatron::read(pattern).map_err(|finding| finding.message)?;
            let mixers: Vec<Mixer> = parsed.suffix.iter().map(|symbol| symbol.mixer()).collect();
            if mixers.is_empty() {
                return Err("the row does not say what its prediction depths are made of".to_string());
            }
            Layer::of(&mixers)
        }
        _ => layers.last().cloned().ok_or("the row has no layers")?,
    };
    Ok(Some(Mtp { depth, layer, shared: false }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_layers_are_read() {
        assert_eq!(runs("([0]*1+[1]*2)"), Some(vec![false, true, true]));
        assert_eq!(runs("[0]*1"), None);
        assert_eq!(runs("(0+1)"), None);
    }
}
