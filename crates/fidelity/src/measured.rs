//! One measured row of a Megatron-Core job, as `data/truth/megatron_h200.jsonl` holds them: the
//! model it ran, the layout, the rank that was read, and what the engine was told. Nothing here knows
//! what was measured.

use layout::request::{LayoutRequest, Recompute, ZeroStage};
use ledger::megatron::{CrossEntropy, Dispatcher, Fp8Recipe, MegatronOptions, Reduction};
use recipe::kinds::attention::{Attention, AttentionKind};
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::mla::Mla;
use recipe::kinds::mlp::Mlp;
use recipe::kinds::moe::{Moe, Router, SharedExpert};
use recipe::kinds::{Activation, Norm};
use recipe::{Dtype, Layer, Mixer, Pattern, Positions, Recipe};
use replay::Unmodelled;
use serde_json::Value;

/// What a row says was run.
#[derive(Clone, Debug)]
pub struct Case {
    /// The row's name.
    pub name: String,
    /// The model.
    pub recipe: Recipe,
    /// The layout.
    pub request: LayoutRequest,
    /// The rank whose memory was read.
    pub rank: u64,
    /// What the engine was told besides.
    pub told: Told,
}

/// Engine options of a row that belong neither to the recipe nor to the layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Gradients are accumulated in fp32.
    pub grad_fp32: bool,
    /// The loss over the vocabulary is fused.
    pub ce_fusion: bool,
    /// Scores of experts are computed in fp32.
    pub router_fp32: bool,
    /// Gradients are reduced during backward.
    pub overlap: bool,
    /// Scaling recipe of fp8, when it is on.
    pub fp8: Option<String>,
    /// How tokens reach their experts, when said.
    pub dispatcher: Option<String>,
    /// Tokens an expert accepts, over the balanced share.
    pub capacity: Option<f64>,
    /// Steps that were run.
    pub steps: u32,
}

impl Told {
    fn read(case: &Value) -> Told {
        let flag = |value: &Value, default| value.as_bool().unwrap_or(default);
        let word = |key: &str| case[key].as_str().map(str::to_string);
        Told {
            grad_fp32: flag(&case["grad_fp32"], true),
            ce_fusion: flag(&case["ce_fusion"], false),
            router_fp32: flag(&case["model"]["router_fp32"], false),
            overlap: flag(&case["overlap"], false),
            fp8: word("fp8"),
            dispatcher: word("dispatcher"),
            capacity: case["capacity"].as_f64(),
            steps: case["steps"].as_u64().map_or(3, |n| n.clamp(1, 8) as u32),
        }
    }
}

impl Case {
    /// Reads the `case` object of a row; the error says which key is missing or unknown.
    pub fn read(case: &Value) -> Result<Case, String> {
        let model = &case["model"];
        if let Some(spec) = case["spec"].as_str().filter(|spec| *spec != "te") {
            return Err(format!("layers of the `{spec}` spec are not Transformer Engine's"));
        }
        if let Some(optimizer) = case["opt"].as_str().filter(|o| *o != "adam") {
            return Err(format!("a row stepped by `{optimizer}` is not Adam's"));
        }
        let name = case["name"].as_str().unwrap_or("unnamed").to_string();
        let layers = layers(model)?;
        let moe = moe(model)?;
        let mut recipe = Recipe {
            name: name.clone(),
            source: "a measured row".to_string(),
            pattern: Pattern::describe(&layers),
            layers,
            hidden: need(model, "hidden")?,
            vocab: need(model, "vocab")?,
            tied: model["tied"].as_bool().unwrap_or(false),
            sequence: need(case, "seq")?,
            norm: Norm::RmsNorm,
            positions: Positions::Rope { theta: model["rope_theta"].as_f64().unwrap_or(10_000.0) },
            modes: Vec::new(),
            attention: Some(attention(model)?),
            moe,
            mamba: mamba(model)?,
            recurrent: None,
            gated_delta: None,
            mlp: None,
            features: Default::default(),
            precision: Default::default(),
            optimizer: Default::default(),
            notes: Vec::new(),
        };
        // The rows were run with every weight cast to bf16.
        recipe.precision.scalars = Dtype::Bf16;
        if recipe.has(Mixer::Mlp) {
            recipe.mlp = Some(Mlp { ffn: need(model, "ffn")?, activation: activation(model), bias: false });
        }
        let recipe = recipe.validated().map_err(|f| f[0].message.clone())?;
        let rank = case["rank"].as_u64().unwrap_or(0);
        Ok(Case { name, recipe, request: request(case)?, rank, told: Told::read(case) })
    }
}

/// The options a measured row was run with; its router was forced to balance at random.
pub fn options(case: &Case) -> Result<MegatronOptions, Unmodelled> {
    let told = &case.told;
    let unknown = |what: &str| Err(Unmodelled::new(what, "the row names an option we do not know"));
    let fp8 = match told.fp8.as_deref() {
        None => None,
        Some("delayed") => Some(Fp8Recipe::Delayed),
        Some("tensorwise") => Some(Fp8Recipe::Tensorwise),
        Some("blockwise") => Some(Fp8Recipe::Blockwise),
        Some("mxfp8") => Some(Fp8Recipe::Mxfp8),
        Some("nvfp4") => Some(Fp8Recipe::Nvfp4),
        Some(other) => return unknown(other),
    };
    let dispatcher = match told.dispatcher.as_deref() {
        None | Some("alltoall") => Dispatcher::AllToAll,
        Some("allgather") => Dispatcher::AllGather,
        Some(other) => return unknown(other),
    };
    let width = |is_fp32| if is_fp32 { Dtype::Fp32 } else { Dtype::Bf16 };
    Ok(MegatronOptions {
        gradients: width(told.grad_fp32),
        cross_entropy: if told.ce_fusion { CrossEntropy::FusedNative } else { CrossEntropy::Unfused },
        fp8,
        dispatcher,
        capacity_factor: told.capacity,
        router: width(told.router_fp32),
        reduction: if told.overlap { Reduction::Overlapped } else { Reduction::AtTheEnd },
        steps: told.steps,
        ..MegatronOptions::of(&case.recipe)
    })
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

fn request(case: &Value) -> Result<LayoutRequest, String> {
    let get = |key: &str| case[key].as_u64();
    let recompute = match case["recompute"].as_str() {
        None => Recompute::None,
        Some("full") => Recompute::Full,
        Some(modules) => Recompute::parse(&format!("selective:{modules}"))?,
    };
    let tp = get("tp").unwrap_or(1);
    Ok(LayoutRequest {
        world: get("world"),
        tp: Some(tp),
        sp: Some(case["sp"].as_bool().unwrap_or(tp > 1)),
        cp: get("cp"),
        pp: get("pp"),
        vpp: get("vpp"),
        ep: get("ep"),
        etp: get("etp"),
        zero: Some(if case["dist_opt"].as_bool() == Some(false) { ZeroStage::Zero } else { ZeroStage::One }),
        micro_batch: get("mbs"),
        microbatches: Some(get("microbatches").unwrap_or(1)),
        sequence: get("seq"),
        recompute: Some(recompute),
        ..LayoutRequest::default()
    })
}
