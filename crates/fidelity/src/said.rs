//! Model and layout of rows that our own scripts measured, which say them alike: the `case` object of
//! `data/truth/megatron_h200.jsonl` and `steps_h200.jsonl`. Nothing here knows what was measured, or by
//! which engine.

use layout::request::{Engine, LayoutRequest, Recompute, ZeroStage};
use recipe::kinds::attention::{Attention, AttentionKind};
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::mla::Mla;
use recipe::kinds::mlp::Mlp;
use recipe::kinds::moe::{Moe, Router, SharedExpert};
use recipe::kinds::{Activation, Norm};
use recipe::{Dtype, Layer, Mixer, Pattern, Positions, Recipe, Rope};
use serde_json::Value;

/// The model that the `case` object of a row says was run.
pub(crate) fn recipe(said: &Value) -> Result<Recipe, String> {
    let model = &said["model"];
    let layers = layers(model)?;
    let mut recipe = Recipe {
        name: said["name"].as_str().unwrap_or("unnamed").into(),
        source: "a measured row".into(),
        pattern: Pattern::describe(&layers),
        layers,
        hidden: need(model, "hidden")?,
        vocab: need(model, "vocab")?,
        tied: model["tied"].as_bool().unwrap_or(false),
        sequence: need(said, "seq")?,
        norm: Norm::RmsNorm,
        norm_place: recipe::kinds::NormPlace::Before,
        embedding_norm: false,
        head_bias: false,
        norm_eps: recipe::NORM_EPS,
        init_std: None,
        dropout: 0.0,
        positions: Positions::Rope(Rope::plain(model["rope_theta"].as_f64().unwrap_or(10_000.0))),
        multipliers: Default::default(),
        modes: Vec::new(),
        attention: Some(attention(model)?),
        moe: moe(model)?,
        mamba: mamba(model)?,
        recurrent: None,
        gated_delta: None,
        linear: None,
        mlp: None,
        shared: None,
        features: Default::default(),
        precision: Default::default(),
        optimizer: Default::default(),
        not_carried: Vec::new(),
        notes: Vec::new(),
    };
    // The rows were run with every weight cast to bf16.
    recipe.precision.scalars = Dtype::Bf16;
    if recipe.has(Mixer::Mlp) {
        recipe.mlp = Some(Mlp { ffn: need(model, "ffn")?, activation: activation(model), bias: false, shift: false });
    }
    recipe.validated().map_err(|findings| findings[0].message.clone())
}

/// The largest size of each key that a row may give; a mistyped one is refused, not laid out.
fn most(key: &str) -> u64 {
    match key {
        "layers" => 1024,
        "vocab" => recipe::limits::VOCAB,
        "experts" | "topk" | "heads" | "kv_heads" | "mamba_heads" | "mamba_groups" => 4096,
        _ => 1 << 20,
    }
}

/// A size that must be there.
fn need(object: &Value, key: &str) -> Result<u64, String> {
    given(object, key)?.ok_or_else(|| format!("the row lacks `{key}`"))
}

/// A size that may be left out; zero and null count as left out.
fn given(object: &Value, key: &str) -> Result<Option<u64>, String> {
    match &object[key] {
        Value::Null => Ok(None),
        value => match value.as_u64() {
            Some(n) if n <= most(key) => Ok(Some(n).filter(|n| *n > 0)),
            _ => Err(format!("`{key}` of the row is no size up to {}", most(key))),
        },
    }
}

fn activation(model: &Value) -> Activation {
    if model["act"].as_str() == Some("relu2") { Activation::Relu2 } else { Activation::SwiGlu }
}

/// Layers of the pattern, or transformer layers with experts where `moe_layer_freq` says so.
fn layers(model: &Value) -> Result<Vec<Layer>, String> {
    if let Some(pattern) = model["pattern"].as_str() {
        let parsed = recipe::megatron::read(pattern).map_err(|f| f.message)?;
        return Ok(parsed.segments.concat().iter().map(|s| Layer::of(&[s.mixer()])).collect());
    }
    let depth = need(model, "layers")?;
    let has_experts = given(model, "experts")?.is_some();
    let routed = |i: u64| match &model["moe_layer_freq"] {
        Value::Array(flags) => flags.get(i as usize).and_then(Value::as_u64) == Some(1),
        Value::Number(every) => i.is_multiple_of(every.as_u64().unwrap_or(1).max(1)),
        _ => true,
    };
    let feed = |i| if has_experts && routed(i) { Mixer::Moe } else { Mixer::Mlp };
    Ok((0..depth).map(|i| Layer::of(&[Mixer::Attention, feed(i)])).collect())
}

fn attention(model: &Value) -> Result<Attention, String> {
    let heads = need(model, "heads")?;
    let kv_heads = given(model, "kv_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(format!("{heads} query heads do not share {kv_heads} KV heads evenly"));
    }
    let head_dim = match given(model, "head_dim")? {
        Some(width) => width,
        None => need(model, "hidden")? / heads.max(1),
    };
    if head_dim == 0 {
        return Err(format!("the hidden width leaves nothing for {heads} heads"));
    }
    let mut attention = Attention::gqa(heads, kv_heads, head_dim);
    let mla = &model["mla"];
    if mla.is_object() {
        attention.kind = AttentionKind::Mla(Mla {
            q_rank: given(mla, "q_lora")?,
            kv_rank: need(mla, "kv_lora")?,
            qk_dim: need(mla, "qk")?,
            rope_dim: need(mla, "rope")?,
            v_dim: need(mla, "v")?,
            bias: false,
            // `qk_layernorm` was left off, so Megatron built no norms over the latents.
            head_gate: false,
            latent_norm: false,
        });
    }
    Ok(attention)
}

fn moe(model: &Value) -> Result<Option<Moe>, String> {
    let Some(experts) = given(model, "experts")? else { return Ok(None) };
    let activation = activation(model);
    let shared = given(model, "shared_expert")?;
    if need(model, "topk")? > experts {
        return Err("a token chooses more experts than there are".to_string());
    }
    Ok(Some(Moe {
        shared: shared.map(|ffn| SharedExpert { ffn, activation, gate: false, bias: false }),
        // The rows were run with a balancing loss; its coefficient moves no memory.
        router: Router { aux_loss: Some(1e-2), ..Router::default() },
        ..Moe::plain(experts, need(model, "topk")?, need(model, "expert_ffn")?, activation)
    }))
}

fn mamba(model: &Value) -> Result<Option<Mamba>, String> {
    let Some(heads) = given(model, "mamba_heads")? else { return Ok(None) };
    let (groups, state) = (need(model, "mamba_groups")?, need(model, "mamba_state")?);
    if !heads.is_multiple_of(groups) {
        return Err(format!("{heads} Mamba heads do not share {groups} groups evenly"));
    }
    Ok(Some(Mamba::Two(Mamba2::new(heads, need(model, "mamba_head_dim")?, state, groups))))
}

/// The layout that the `case` object of a row says it ran under.
pub(crate) fn request(said: &Value, engine: Option<Engine>) -> Result<LayoutRequest, String> {
    let get = |key: &str| said[key].as_u64();
    let recompute = match said["recompute"].as_str() {
        None => Recompute::None,
        Some("full") => Recompute::Full,
        Some(modules) => Recompute::parse(&format!("selective:{modules}"))?,
    };
    let tp = get("tp").unwrap_or(1);
    Ok(LayoutRequest {
        world: get("world"),
        tp: Some(tp),
        sp: Some(said["sp"].as_bool().unwrap_or(tp > 1)),
        cp: get("cp"),
        pp: get("pp"),
        vpp: get("vpp"),
        ep: get("ep"),
        etp: get("etp"),
        zero: Some(if said["dist_opt"].as_bool() == Some(false) { ZeroStage::Zero } else { ZeroStage::One }),
        micro_batch: get("mbs"),
        microbatches: Some(get("microbatches").unwrap_or(1)),
        sequence: get("seq"),
        recompute: Some(recompute),
        engine,
        ..LayoutRequest::default()
    })
}
