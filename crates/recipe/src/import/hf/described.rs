//! Models as data: a decoder whose layers are attention and a feed-forward block, dense or routed, behind norms
//! of some kind. [`super::models`] lists them; what a description cannot say, its `then` does.

use super::config::Config;
use super::moe::{balance, bank, groups, interleaved, qwen_sparsity, weights};
use crate::kinds::attention::{Attention, AttentionKind, QkNorm, Window};
use crate::kinds::mla::Mla;
use crate::kinds::mlp::Mlp;
use crate::kinds::moe::{Moe, ScoreFunction, SharedExpert};
use crate::kinds::{Activation, Norm, NormPlace};
use crate::pattern::{Block, Layer, Mixer};
use crate::recipe::Recipe;
use crate::rope::Positions;

/// A model type. Numbers are class defaults (`configuration_*.py`), for keys that a config leaves out.
pub struct Model {
    pub name: &'static str,
    /// Keys that this class calls otherwise: our name, and its own in the order they are looked for.
    pub names: &'static [(&'static str, &'static [&'static str])],
    pub hidden: u64,
    pub depth: u64,
    pub heads: u64,
    /// KV heads of a config without the key; a query head each where there is none.
    pub kv_heads: Option<u64>,
    pub head_dim: HeadDim,
    pub ffn: Ffn,
    pub vocab: u64,
    pub theta: f64,
    pub fraction: f64,
    pub eps: f64,
    pub tied: bool,
    pub norm: Norm,
    pub norm_place: NormPlace,
    pub positions: Place,
    /// The activation of a config without the key, in transformers' words.
    pub activation: &'static str,
    pub gated: bool,
    pub qkv_bias: Flag,
    pub out_bias: Flag,
    pub mlp_bias: Flag,
    pub head_bias: Flag,
    pub embedding_norm: bool,
    pub qk_norm: QkNorm,
    /// Whether queries and keys are normalised at all.
    pub has_qk_norm: Flag,
    pub sinks: bool,
    pub output_gate: bool,
    /// Attention and feed-forward side by side behind one norm.
    pub parallel: Flag,
    pub latent: Option<Latent>,
    pub window: Windowed,
    pub experts: Option<Experts>,
    /// Keys that the class does not look at, and why.
    pub unused: &'static [(&'static str, &'static str)],
    /// What the class computes and no recipe says, as the key of its own and the class default.
    pub implied: &'static [(&'static str, &'static str)],
    pub then: fn(&mut Config, &mut Recipe) -> Option<()>,
}

/// A switch of a class: fixed, or a key with its default.
#[derive(Clone, Copy)]
pub enum Flag {
    No,
    Yes,
    Key(&'static str, bool),
}

/// Where a head's width comes from.
#[derive(Clone, Copy)]
pub enum HeadDim {
    /// `head_dim`, or the hidden width over the heads.
    Split,
    /// The hidden width over the heads, whatever the config says.
    Always,
    /// `head_dim`, or this.
    Default(u64),
}

/// Where the width of the feed-forward block comes from.
#[derive(Clone, Copy)]
pub enum Ffn {
    Default(u64),
    /// `intermediate_size`, or so many hidden widths where it is absent or null.
    Times(u64),
    /// A factor on the hidden width, under this key.
    Factor(&'static str, u64),
}

/// How position enters.
#[derive(Clone, Copy)]
pub enum Place {
    Rope,
    /// A table of `max_position_embeddings`, or the first number, with so many rows more.
    Learned(u64, u64),
    /// A way that no recipe says, under the key it is reported by.
    Other(&'static str, &'static str),
}

/// Latent attention's class defaults.
#[derive(Clone, Copy)]
pub struct Latent {
    pub q_rank: u64,
    pub kv_rank: u64,
    pub qk_dim: u64,
    pub rope_dim: u64,
    pub v_dim: u64,
}

/// Which attention layers have a window.
#[derive(Clone, Copy)]
pub enum Windowed {
    Never,
    /// A window of so many tokens unless the key says otherwise; the layers, by index, that see everything where
    /// `layer_types` does not say it.
    Layers(Option<u64>, fn(u64) -> bool),
    /// The same while this switch is on.
    If(&'static str, fn(u64) -> bool),
    /// Chunks of `attention_chunk_size`.
    Chunks(u64, fn(u64) -> bool),
}

/// Routed experts' class defaults; `num_experts`, `num_experts_per_tok` and `n_shared_experts` are the keys
/// unless `names` says otherwise.
#[derive(Clone, Copy)]
pub struct Experts {
    pub count: u64,
    pub top_k: u64,
    /// Width of an expert; zero where `intermediate_size` says it.
    pub ffn: u64,
    pub shared: Shared,
    pub placed: Placed,
    pub score: ScoreFunction,
    pub expert_bias: bool,
    pub normalize: bool,
    pub scaling: f64,
    pub grouped: bool,
    /// Coefficient of the balancing loss; a class that has none says zero.
    pub aux_loss: f64,
}

/// The shared expert.
#[derive(Clone, Copy)]
pub enum Shared {
    None,
    /// So many experts' widths.
    Times(u64),
    /// A width of its own under this key, and whether a gate weighs it.
    Width(&'static str, u64, bool),
    /// As wide as an expert.
    Same,
}

/// Which layers route.
#[derive(Clone, Copy)]
pub enum Placed {
    All,
    /// All but the first so many, unless `mlp_layer_types` says it.
    After(&'static str, u64),
    /// `decoder_sparse_step` and `mlp_only_layers`.
    Qwen(&'static [u64]),
    /// `moe_layers`, or every `interleave_moe_layer_step`-th.
    Interleaved,
    /// `moe_layer_start_index` to `moe_layer_end_index`, every `moe_layer_interval`-th.
    Between(u64),
}

/// LLaMA: what the others differ from.
pub const BASE: Model = Model {
    name: "",
    names: &[],
    hidden: 4096,
    depth: 32,
    heads: 32,
    kv_heads: None,
    head_dim: HeadDim::Split,
    ffn: Ffn::Default(11_008),
    vocab: 32_000,
    theta: 10_000.0,
    fraction: 1.0,
    eps: 1e-6,
    tied: false,
    norm: Norm::RmsNorm,
    norm_place: NormPlace::Before,
    positions: Place::Rope,
    activation: "silu",
    gated: true,
    qkv_bias: Flag::No,
    out_bias: Flag::No,
    mlp_bias: Flag::No,
    head_bias: Flag::No,
    embedding_norm: false,
    qk_norm: QkNorm::Head,
    has_qk_norm: Flag::No,
    sinks: false,
    output_gate: false,
    parallel: Flag::No,
    latent: None,
    window: Windowed::Never,
    experts: None,
    unused: &[],
    implied: &[],
    then: |_, _| Some(()),
};

/// A softmax router over experts in every layer.
pub const EXPERTS: Experts = Experts {
    count: 8,
    top_k: 2,
    ffn: 0,
    shared: Shared::None,
    placed: Placed::All,
    score: ScoreFunction::Softmax,
    expert_bias: false,
    normalize: true,
    scaling: 1.0,
    grouped: false,
    aux_loss: 0.0,
};

impl Config<'_> {
    fn says(&mut self, flag: Flag) -> bool {
        match flag {
            Flag::No => false,
            Flag::Yes => true,
            Flag::Key(key, usual) => self.flag(key, usual),
        }
    }
}

/// Reads a config of a described model.
pub fn import(config: &mut Config, model: &'static Model) -> Option<Recipe> {
    config.described = Some(model);
    let hidden = config.count("hidden_size", model.hidden)?;
    let depth = config.count("num_hidden_layers", model.depth)?;
    let attention = attention(config, model, hidden, depth)?;
    let ffn = ffn(config, model, hidden)?;
    let activation = activation(config, model);
    let mlp = Mlp { ffn, activation, bias: config.says(model.mlp_bias), shift: false };
    let routes = routes(config, model, depth)?;
    let moe = match &model.experts {
        Some(experts) if (0..depth).any(&routes) => Some(routed(config, experts, &mlp)?),
        _ => None,
    };
    let mut layers = interleaved(depth, routes);
    if config.says(model.parallel) {
        let beside = |layer: Layer| Layer::of_blocks(vec![Block { mixers: layer.mixers().collect() }]);
        layers = layers.into_iter().map(beside).collect();
    }
    let mut recipe = config.recipe(layers, hidden, model.vocab, model.theta)?;
    (recipe.norm, recipe.norm_place) = (model.norm, model.norm_place);
    recipe.embedding_norm = model.embedding_norm;
    recipe.head_bias = config.says(model.head_bias);
    positions(config, model, &mut recipe)?;
    recipe.attention = Some(attention);
    recipe.mlp = recipe.has(Mixer::Mlp).then_some(mlp);
    recipe.moe = moe;
    for (key, why) in model.unused {
        config.unused(&[key], why);
    }
    for (key, usual) in model.implied {
        config.implies(key, usual);
    }
    (model.then)(config, &mut recipe)?;
    Some(recipe)
}

fn attention(config: &mut Config, model: &Model, hidden: u64, depth: u64) -> Option<Attention> {
    let (heads, kv_heads) = config.heads(model.heads, model.kv_heads)?;
    let mut attention = match model.latent {
        Some(latent) => config.latent(heads, latent)?,
        None => {
            let head_dim = match model.head_dim {
                HeadDim::Split => config.head_dim(hidden, heads)?,
                HeadDim::Always => {
                    config.agrees("head_dim", &(hidden / heads).into());
                    hidden / heads
                }
                HeadDim::Default(width) => config.nullable("head_dim", Some(width))?.unwrap_or(hidden / heads),
            };
            if head_dim == 0 {
                config.refuse("head_dim", format!("hidden {hidden} leaves no width for {heads} heads"));
                return None;
            }
            let mut attention = Attention::gqa(heads, kv_heads, head_dim);
            (attention.qkv_bias, attention.out_bias) = (config.says(model.qkv_bias), config.says(model.out_bias));
            attention.qk_norm = if config.says(model.has_qk_norm) { model.qk_norm } else { QkNorm::None };
            attention
        }
    };
    (attention.sinks, attention.output_gate) = (model.sinks, model.output_gate);
    attention.dropout = config.share("attention_dropout", 0.0);
    let (enabled, tokens, full): (bool, Option<u64>, fn(u64) -> bool) = match model.window {
        Windowed::Never => (false, None, |_| true),
        Windowed::Layers(tokens, full) => (true, config.nullable("sliding_window", tokens)?, full),
        Windowed::If(key, full) => (config.flag(key, false), config.nullable("sliding_window", None)?, full),
        Windowed::Chunks(tokens, full) => (true, config.nullable("attention_chunk_size", Some(tokens))?, full),
    };
    let kinds = config.layer_kinds(&["layer_types"], Some(depth));
    let sees_all = |i: u64| match &kinds {
        Some(kinds) => {
            kinds.get(i as usize).is_some_and(|kind| !matches!(*kind, "sliding_attention" | "chunked_attention"))
        }
        None => full(i),
    };
    if let Some(tokens) = tokens.filter(|tokens| enabled && *tokens > 0) {
        let full_layers: Vec<u64> = (0..depth).filter(|i| sees_all(*i)).collect();
        let chunked = matches!(model.window, Windowed::Chunks(..));
        let some_do_not = (full_layers.len() as u64) < depth;
        attention.window = some_do_not.then_some(Window { tokens, full_layers, chunked });
    }
    Some(attention)
}

impl Config<'_> {
    /// Latent attention with its own norms.
    pub(super) fn latent(&mut self, heads: u64, usual: Latent) -> Option<Attention> {
        let q_rank = self.nullable("q_lora_rank", Some(usual.q_rank))?;
        if q_rank == Some(0) {
            self.refuse("q_lora_rank", "`q_lora_rank` is 0; null means no query latent");
            return None;
        }
        let mla = Mla {
            q_rank,
            kv_rank: self.count("kv_lora_rank", usual.kv_rank)?,
            qk_dim: self.count("qk_nope_head_dim", usual.qk_dim)?,
            rope_dim: self.count("qk_rope_head_dim", usual.rope_dim)?,
            v_dim: self.count("v_head_dim", usual.v_dim)?,
            bias: self.flag("attention_bias", false),
            head_gate: false,
            latent_norm: true,
        };
        self.agrees("qk_head_dim", &(mla.qk_dim + mla.rope_dim).into());
        self.unused(&["num_key_value_heads", "head_dim"], "latent attention has no key/value heads of its own");
        Some(Attention { kind: AttentionKind::Mla(mla), ..Attention::gqa(heads, heads, 1) })
    }

    /// The activation under `hidden_act` in transformers' words; another one is not carried.
    pub(super) fn activation(&mut self, usual: &str, gated: bool) -> Activation {
        match (self.text("hidden_act").unwrap_or(usual), gated) {
            ("silu" | "swish", true) => Activation::SwiGlu,
            ("silu" | "swish", false) => Activation::Silu,
            ("gelu" | "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh", true) => Activation::GeGlu,
            ("gelu" | "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh", false) => Activation::Gelu,
            ("relu2", false) => Activation::Relu2,
            ("relu", false) => Activation::Relu,
            (_, gated) => {
                self.not_carried("hidden_act");
                if gated { Activation::SwiGlu } else { Activation::Gelu }
            }
        }
    }
}

fn activation(config: &mut Config, model: &Model) -> Activation {
    config.activation(model.activation, model.gated)
}

fn ffn(config: &mut Config, model: &Model, hidden: u64) -> Option<u64> {
    match model.ffn {
        Ffn::Default(width) => config.count("intermediate_size", width),
        Ffn::Times(times) => Some(config.nullable("intermediate_size", None)?.unwrap_or(times * hidden)),
        Ffn::Factor(key, times) => Some(config.count(key, times)? * hidden),
    }
}

fn positions(config: &mut Config, model: &Model, recipe: &mut Recipe) -> Option<()> {
    match model.positions {
        Place::Rope => {}
        Place::Learned(usual, more) => {
            let rows = config.count("max_position_embeddings", usual)?;
            recipe.positions = Positions::Learned { count: rows + more };
            recipe.sequence = recipe.sequence.min(rows + more);
        }
        Place::Other(key, usual) => {
            config.has_no_positions(recipe);
            config.implies(key, usual);
        }
    }
    Some(())
}

fn routes(config: &mut Config, model: &Model, depth: u64) -> Option<Box<dyn Fn(u64) -> bool>> {
    let Some(experts) = &model.experts else { return Some(Box::new(|_| false)) };
    if let Some(kinds) = config.layer_kinds(&["mlp_layer_types"], Some(depth)) {
        let sparse: Vec<bool> = kinds.iter().map(|kind| *kind == "sparse").collect();
        if let Placed::After(key, _) = experts.placed {
            config.unused(&[key], "`mlp_layer_types` says it");
        }
        return Some(Box::new(move |i| sparse.get(i as usize).copied().unwrap_or(false)));
    }
    Some(match experts.placed {
        Placed::All => Box::new(|_| true),
        Placed::After(key, first) => {
            let first = config.natural(key, first)?;
            Box::new(move |i| i >= first)
        }
        Placed::Qwen(dense) => {
            let all = config.natural("num_experts", experts.count)?;
            let routes = qwen_sparsity(config, all)?;
            let usual = !config.has("mlp_only_layers");
            Box::new(move |i| routes(i) && !(usual && dense.contains(&i)))
        }
        Placed::Interleaved => {
            let step = config.count("interleave_moe_layer_step", 1)?;
            match config.has("moe_layers") {
                true => {
                    let listed = config.naturals("moe_layers");
                    Box::new(move |i| listed.contains(&i))
                }
                false => Box::new(move |i| (i + 1) % step == 0),
            }
        }
        Placed::Between(first) => {
            let first = config.natural("moe_layer_start_index", first)?;
            let every = config.count("moe_layer_interval", 1)?;
            // Published configs say -1 for the last.
            let last = config.raw("moe_layer_end_index").and_then(|v| v.as_u64()).unwrap_or(u64::MAX);
            Box::new(move |i| (i + 1) % every == 0 && (first..=last).contains(&i))
        }
    })
}

fn routed(config: &mut Config, experts: &Experts, mlp: &Mlp) -> Option<Moe> {
    let count = config.count("num_experts", experts.count)?;
    let ffn = match experts.ffn {
        0 => mlp.ffn,
        width => config.count("moe_intermediate_size", width)?,
    };
    let mut moe = bank(config, count, ffn, experts.top_k)?;
    (moe.activation, moe.bias) = (mlp.activation, mlp.bias);
    let (shared, gate) = match experts.shared {
        Shared::None => (0, false),
        Shared::Times(times) => (ffn * config.nullable("n_shared_experts", Some(times))?.unwrap_or(0), false),
        Shared::Width(key, width, gate) => (config.natural(key, width)?, gate),
        Shared::Same => (ffn, false),
    };
    if gate && shared == 0 {
        config.refuse("shared_expert_intermediate_size", "a gate over a shared expert of no width has no recipe");
        return None;
    }
    let shared = SharedExpert { ffn: shared, activation: mlp.activation, gate, bias: mlp.bias };
    moe.shared = (shared.ffn > 0).then_some(shared);
    (moe.router.score, moe.router.expert_bias) = (experts.score, experts.expert_bias);
    weights(config, &mut moe, experts.normalize, experts.scaling);
    if experts.grouped {
        groups(config, &mut moe, 1, 1)?;
    }
    if experts.aux_loss > 0.0 {
        balance(config, &mut moe, experts.aux_loss);
    }
    Some(moe)
}
