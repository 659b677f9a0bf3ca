//! A Megatron argument list: the model becomes a recipe, the parallelism the layout flags that
//! say the same, and what is neither is listed. Defaults are Megatron-Core 0.19.2's own.

mod flags;

use crate::features::{Features, Switch};
use crate::kinds::attention::{Attention, AttentionKind, QkNorm};
use crate::kinds::dsa::Dsa;
use crate::kinds::gated_delta::GatedDelta;
use crate::kinds::mamba::Mamba;
use crate::kinds::mamba2::Mamba2;
use crate::kinds::mla::Mla;
use crate::kinds::mlp::Mlp;
use crate::kinds::moe::{Moe, Router, ScoreFunction, SharedExpert};
use crate::kinds::mtp::Mtp;
use crate::kinds::{Activation, Norm};
use crate::limits;
use crate::megatron::{self, HybridPattern, Symbol};
use crate::pattern::{Block, Layer, Mixer, Pattern};
use crate::precision::{OptimizerPolicy, Precision};
use crate::recipe::{Positions, Recipe};
use crate::tensor::Dtype;
use diag::{Blame, Finding};
use flags::Flags;

/// What an argument list says.
#[derive(Debug)]
pub struct Imported {
    /// The model.
    pub recipe: Recipe,
    /// The parallelism, as our flags.
    pub layout: Vec<(&'static str, String)>,
    /// Flags that are about neither.
    pub beside: Vec<String>,
}

/// Our layout flag for each of Megatron's that has one.
const LAYOUT: &[(&str, &str)] = &[
    ("--tensor-model-parallel-size", "tp"),
    ("--pipeline-model-parallel-size", "pp"),
    ("--context-parallel-size", "cp"),
    ("--expert-model-parallel-size", "ep"),
    ("--expert-tensor-parallel-size", "etp"),
    ("--micro-batch-size", "mbs"),
    ("--global-batch-size", "gbs"),
    ("--make-vocab-size-divisible-by", "vocab-multiple"),
    ("--num-virtual-stages-per-pipeline-rank", "vpp"),
];

/// Flags that change the model in ways no recipe can say.
const REFUSED: &[&str] = &[
    "--heterogeneous-layers-config-path",
    "--heterogeneous-layers-config-encoded-json",
    "--pipeline-model-parallel-layout",
    "--quick-geglu",
    "--mla-down-proj-fusion",
    "--mtp-use-repeated-layer",
];

/// Whether a text looks like an argument list.
pub fn is_argument_list(text: &str) -> bool {
    text.contains("--hidden-size") || text.contains("--num-layers") || text.contains("--hybrid-layer-pattern")
}

/// Reads an argument list as the recipe `name`.
pub fn import(text: &str, name: &str) -> Result<Imported, Vec<Finding>> {
    if text.len() > limits::FILE_BYTES {
        let message = format!("the file has {} bytes, and an argument list at most {}", text.len(), limits::FILE_BYTES);
        return Err(vec![Finding::error("import/limit", Blame::Recipe, "file", message)]);
    }
    let mut flags = Flags::read(text);
    for flag in REFUSED {
        if flags.has(flag) {
            flags.refuse(flag, format!("`{flag}` has no recipe"));
        }
    }
    let imported = read(&mut flags, name);
    match imported {
        Some(imported) if flags.findings.is_empty() => {
            let recipe = imported.recipe.validated()?;
            Ok(Imported { recipe, ..imported })
        }
        _ => Err(flags.findings),
    }
}

fn read(flags: &mut Flags, name: &str) -> Option<Imported> {
    let hidden = flags.need("--hidden-size")?;
    let vocab = flags.number("--padded-vocab-size").or_else(|| flags.number("--vocab-size"));
    if vocab.is_none() {
        flags.refuse("--vocab-size", "the argument list has no `--vocab-size`, and a tokenizer file is not read");
    }
    let sequence = flags.need("--seq-length")?;
    let pattern = hybrid_pattern(flags);
    let activation = activation(flags);
    let mlp = mlp(flags, hidden, activation)?;
    let moe = moe(flags, mlp.ffn, activation)?;
    let layers = match &pattern {
        Some(pattern) => pattern.segments.concat().iter().map(|s| Layer::of(&[s.mixer()])).collect(),
        None => gpt_layers(flags, moe.is_some())?,
    };
    let mut recipe = Recipe {
        name: name.to_string(),
        source: "imported from a Megatron argument list".to_string(),
        pattern: Pattern::describe(&layers),
        layers,
        hidden,
        vocab: vocab?,
        tied: !flags.has("--untie-embeddings-and-output-weights"),
        sequence,
        norm: if flags.text("--normalization") == Some("RMSNorm") { Norm::RmsNorm } else { Norm::LayerNorm },
        positions: positions(flags, sequence)?,
        modes: Vec::new(),
        attention: attention(flags, hidden, pattern.as_ref())?,
        moe,
        mamba: mamba(flags, hidden)?,
        recurrent: None,
        gated_delta: gated_delta(flags)?,
        mlp: Some(mlp),
        features: Features::default(),
        precision: Precision::default(),
        optimizer: optimizer(flags),
        notes: Vec::new(),
    };
    features(flags, &mut recipe, pattern.as_ref())?;
    drop_unused(&mut recipe);
    let layout = layout(flags, &recipe, pattern.as_ref());
    let beside = flags.names().filter(|f| !is_read(f)).map(str::to_string).collect();
    Some(Imported { recipe, layout, beside })
}

/// Prefixes and names of flags that made the recipe or the layout.
fn is_read(flag: &str) -> bool {
    const READ: &[&str] = &[
        "--hidden-size",
        "--vocab-size",
        "--padded-vocab-size",
        "--seq-length",
        "--hybrid-layer-pattern",
        "--hybrid-override-pattern",
        "--swiglu",
        "--squared-relu",
        "--ffn-hidden-size",
        "--disable-bias-linear",
        "--num-layers",
        "--untie-embeddings-and-output-weights",
        "--normalization",
        "--position-embedding-type",
        "--use-rotary-position-embeddings",
        "--rotary-base",
        "--max-position-embeddings",
        "--num-attention-heads",
        "--group-query-attention",
        "--num-query-groups",
        "--kv-channels",
        "--qk-layernorm",
        "--add-qkv-bias",
        "--attention-output-gate",
        "--softmax-type",
        "--multi-latent-attention",
        "--q-lora-rank",
        "--kv-lora-rank",
        "--qk-head-dim",
        "--qk-pos-emb-head-dim",
        "--v-head-dim",
        "--num-experts",
        "--moe-router-topk",
        "--moe-ffn-hidden-size",
        "--moe-layer-freq",
        "--moe-latent-size",
        "--moe-shared-expert-intermediate-size",
        "--moe-shared-expert-gate",
        "--moe-router-score-function",
        "--moe-router-enable-expert-bias",
        "--moe-aux-loss-coeff",
        "--moe-router-dtype",
        "--moe-expert-capacity-factor",
        "--mamba-num-heads",
        "--mamba-head-dim",
        "--mamba-state-dim",
        "--mamba-num-groups",
        "--mtp-num-layers",
        "--optimizer",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--recompute-granularity",
        "--recompute-modules",
    ];
    READ.contains(&flag)
        || LAYOUT.iter().any(|(theirs, _)| *theirs == flag)
        || flag.starts_with("--dsa-indexer")
        || flag.starts_with("--linear-")
}

fn hybrid_pattern(flags: &mut Flags) -> Option<HybridPattern> {
    let flag = ["--hybrid-layer-pattern", "--hybrid-override-pattern"].into_iter().find(|f| flags.has(f))?;
    let text = flags.text(flag)?.to_string();
    match megatron::read(&text) {
        Ok(pattern) => Some(pattern),
        Err(finding) => {
            flags.findings.push(Finding { span: None, ..finding });
            None
        }
    }
}

fn activation(flags: &mut Flags) -> Activation {
    match (flags.has("--swiglu"), flags.has("--squared-relu")) {
        (true, true) => {
            flags.refuse("--swiglu", "`--swiglu` and `--squared-relu` exclude each other");
            Activation::SwiGlu
        }
        (true, false) => Activation::SwiGlu,
        (false, true) => Activation::Relu2,
        (false, false) => Activation::Gelu,
    }
}

/// Four times the hidden width, or two thirds of it rounded to 64 when gated, unless said.
fn mlp(flags: &mut Flags, hidden: u64, activation: Activation) -> Option<Mlp> {
    let usual = if activation.is_gated() { (4 * hidden * 2 / 3) / 64 * 64 } else { 4 * hidden };
    let ffn = if flags.has("--ffn-hidden-size") { flags.number("--ffn-hidden-size")? } else { usual.max(1) };
    Some(Mlp { ffn, activation, bias: !flags.has("--disable-bias-linear") })
}

fn attention(flags: &mut Flags, hidden: u64, pattern: Option<&HybridPattern>) -> Option<Option<Attention>> {
    let heads = flags.need("--num-attention-heads")?;
    let groups =
        if flags.has("--group-query-attention") { flags.number("--num-query-groups").unwrap_or(1) } else { heads };
    if heads % groups != 0 {
        flags.refuse("--num-query-groups", format!("{heads} query heads do not share {groups} groups evenly"));
        return None;
    }
    let width = match flags.number("--kv-channels") {
        Some(width) => width,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            flags.refuse("--kv-channels", format!("hidden {hidden} does not divide into {heads} heads"));
            return None;
        }
    };
    let mut attention = Attention::gqa(heads, groups, width);
    let bias = !flags.has("--disable-bias-linear");
    (attention.qkv_bias, attention.out_bias) = (bias || flags.has("--add-qkv-bias"), bias);
    attention.output_gate = flags.has("--attention-output-gate");
    attention.sinks = flags.text("--softmax-type") == Some("learnable");
    let latent = |s: &Symbol| matches!(s, Symbol::Mla | Symbol::Dsa);
    let is_mla =
        flags.has("--multi-latent-attention") || pattern.is_some_and(|p| p.segments.concat().iter().any(latent));
    if is_mla {
        attention.kind = AttentionKind::Mla(Mla {
            q_rank: flags.number("--q-lora-rank"),
            kv_rank: flags.number("--kv-lora-rank").unwrap_or(32),
            qk_dim: flags.number("--qk-head-dim").unwrap_or(128),
            rope_dim: flags.number("--qk-pos-emb-head-dim").unwrap_or(64),
            v_dim: flags.number("--v-head-dim").unwrap_or(128),
            bias: false,
            latent_norm: flags.has("--qk-layernorm"),
        });
        (attention.qkv_bias, attention.out_bias) = (false, false);
    } else if flags.has("--qk-layernorm") {
        attention.qk_norm = QkNorm::Head;
    }
    Some(Some(attention))
}

fn moe(flags: &mut Flags, ffn: u64, activation: Activation) -> Option<Option<Moe>> {
    if !flags.has("--num-experts") {
        return Some(None);
    }
    let experts = flags.number("--num-experts")?;
    let width = flags.number("--moe-ffn-hidden-size").unwrap_or(ffn);
    let shared = flags.number("--moe-shared-expert-intermediate-size");
    let gate = flags.has("--moe-shared-expert-gate");
    let positive = |text: Option<&str>| text.and_then(|t| t.parse::<f64>().ok()).filter(|x| x.is_finite() && *x > 0.0);
    let sigmoid = flags.text("--moe-router-score-function") == Some("sigmoid");
    let router = Router {
        score: if sigmoid { ScoreFunction::Sigmoid } else { ScoreFunction::Softmax },
        dtype: if flags.text("--moe-router-dtype") == Some("fp32") { Dtype::Fp32 } else { Dtype::Bf16 },
        bias: false,
        expert_bias: flags.has("--moe-router-enable-expert-bias"),
        aux_loss: positive(flags.text("--moe-aux-loss-coeff")),
    };
    Some(Some(Moe {
        experts,
        top_k: flags.number("--moe-router-topk").unwrap_or(2).min(experts),
        ffn: width,
        activation,
        bias: false,
        latent: flags.number("--moe-latent-size"),
        latent_bias: false,
        capacity_factor: positive(flags.text("--moe-expert-capacity-factor")),
        shared: shared.map(|ffn| SharedExpert { ffn, activation, gate, bias: false }),
        router,
    }))
}

fn mamba(flags: &mut Flags, hidden: u64) -> Option<Option<Mamba>> {
    let head_dim = flags.number("--mamba-head-dim").unwrap_or(64);
    let heads = flags.number("--mamba-num-heads").unwrap_or(2 * hidden / head_dim);
    let state = flags.number("--mamba-state-dim").unwrap_or(128);
    let groups = flags.number("--mamba-num-groups").unwrap_or(8);
    if heads == 0 || !heads.is_multiple_of(groups) {
        // Only models with Mamba blocks care; they are refused for the missing table.
        return Some(None);
    }
    Some(Some(Mamba::Two(Mamba2::new(heads, head_dim, state, groups))))
}

fn gated_delta(flags: &mut Flags) -> Option<Option<GatedDelta>> {
    Some(Some(GatedDelta {
        key_heads: flags.number("--linear-num-key-heads").unwrap_or(16),
        value_heads: flags.number("--linear-num-value-heads").unwrap_or(32),
        key_dim: flags.number("--linear-key-head-dim").unwrap_or(128),
        value_dim: flags.number("--linear-value-head-dim").unwrap_or(128),
        conv: flags.number("--linear-conv-kernel-dim").unwrap_or(4),
    }))
}

fn positions(flags: &mut Flags, sequence: u64) -> Option<Positions> {
    let theta = flags.text("--rotary-base").and_then(|t| t.parse().ok()).unwrap_or(10_000.0);
    let rotary = flags.has("--use-rotary-position-embeddings");
    match flags.text("--position-embedding-type").map(str::to_string) {
        None if !rotary => {
            Some(Positions::Learned { count: flags.number("--max-position-embeddings").unwrap_or(sequence) })
        }
        None => Some(Positions::Rope { theta }),
        Some(kind) => match kind.as_str() {
            "rope" | "yarn" => Some(Positions::Rope { theta }),
            "none" => Some(Positions::None),
            "learned_absolute" => {
                Some(Positions::Learned { count: flags.number("--max-position-embeddings").unwrap_or(sequence) })
            }
            other => {
                flags.refuse("--position-embedding-type", format!("position embedding `{other}` has no recipe"));
                None
            }
        },
    }
}

fn optimizer(flags: &Flags) -> OptimizerPolicy {
    let muon = flags.text("--optimizer").is_some_and(|o| o.contains("muon"));
    if muon { OptimizerPolicy::muon() } else { OptimizerPolicy::default() }
}

/// Transformer layers with experts where `--moe-layer-freq` says so.
fn gpt_layers(flags: &mut Flags, has_experts: bool) -> Option<Vec<Layer>> {
    let depth = flags.need("--num-layers")?;
    let text = flags.text("--moe-layer-freq").unwrap_or("1").to_string();
    let routed = match layer_frequency(&text, depth) {
        Some(routed) => routed,
        None => {
            flags.refuse("--moe-layer-freq", "it is a number, or a list such as `([0]*3+[1]*58)`, one entry a layer");
            return None;
        }
    };
    let feed = |i: u64| if has_experts && routed[i as usize] { Mixer::Moe } else { Mixer::Mlp };
    Some((0..depth).map(|i| Layer::of(&[Mixer::Attention, feed(i)])).collect())
}

/// Reads `2`, `[0,1,1]` or sums such as `([0]*3+[1]*58)` into one flag a layer.
fn layer_frequency(text: &str, depth: u64) -> Option<Vec<bool>> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    if let Ok(every) = text.parse::<u64>() {
        return (every > 0).then(|| (0..depth).map(|i| i.is_multiple_of(every)).collect());
    }
    let inner = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')).unwrap_or(&text);
    let mut flags = Vec::new();
    for term in inner.split('+') {
        let (list, times) = match term.rsplit_once('*') {
            Some((list, times)) => (list, times.parse::<usize>().ok()?),
            None => (term, 1),
        };
        let list = list.strip_prefix('[')?.strip_suffix(']')?;
        let once: Option<Vec<bool>> = list.split(',').map(|f| Some(f.parse::<u8>().ok()? == 1)).collect();
        let once = once?;
        if once.len().checked_mul(times)? > limits::DEPTH as usize {
            return None;
        }
        (0..times).for_each(|_| flags.extend_from_slice(&once));
    }
    (flags.len() as u64 == depth).then_some(flags)
}

fn features(flags: &mut Flags, recipe: &mut Recipe, pattern: Option<&HybridPattern>) -> Option<()> {
    if let Some(pattern) = pattern {
        if pattern.mtp_depth > 0 {
            let blocks = pattern.suffix.iter().map(|s| Block::of(s.mixer())).collect();
            let mtp = Mtp { depth: pattern.mtp_depth as u64, layer: Layer { blocks } };
            recipe.features.mtp = Some(Switch { on: true, value: mtp });
        }
        let attends = pattern.segments.concat().into_iter().filter(|s| s.mixer() == Mixer::Attention);
        let sparse: Vec<u64> = attends.enumerate().filter(|(_, s)| *s == Symbol::Dsa).map(|(i, _)| i as u64).collect();
        if !sparse.is_empty() {
            let dsa = Dsa {
                heads: flags.need("--dsa-indexer-n-heads")?,
                head_dim: flags.need("--dsa-indexer-head-dim")?,
                top_k: flags.need("--dsa-indexer-topk")?,
                layers: sparse,
            };
            recipe.features.dsa = Some(Switch { on: true, value: dsa });
        }
    } else if let Some(depth) = flags.number("--mtp-num-layers") {
        let layer = recipe.layers.last().cloned()?;
        recipe.features.mtp = Some(Switch { on: true, value: Mtp { depth, layer } });
    }
    Some(())
}

/// Megatron has a default for every kind; the recipe keeps those it uses.
fn drop_unused(recipe: &mut Recipe) {
    let uses = |m| recipe.uses(m);
    let (a, e, m, g, f) =
        (uses(Mixer::Attention), uses(Mixer::Moe), uses(Mixer::Mamba), uses(Mixer::GatedDelta), uses(Mixer::Mlp));
    recipe.attention.take_if(|_| !a);
    recipe.moe.take_if(|_| !e);
    recipe.mamba.take_if(|_| !m);
    recipe.gated_delta.take_if(|_| !g);
    recipe.mlp.take_if(|_| !f);
}

fn layout(flags: &mut Flags, recipe: &Recipe, pattern: Option<&HybridPattern>) -> Vec<(&'static str, String)> {
    let mut layout = Vec::new();
    for (theirs, ours) in LAYOUT {
        if let Some(value) = flags.text(theirs) {
            layout.push((*ours, value.to_string()));
        }
    }
    if flags.number("--tensor-model-parallel-size").is_some_and(|tp| tp > 1) && !flags.has("--sequence-parallel") {
        layout.push(("no-sp", String::new()));
    }
    if !flags.has("--use-distributed-optimizer") {
        layout.push(("zero", "0".to_string()));
    }
    let pp = flags.number("--pipeline-model-parallel-size").unwrap_or(1) as usize;
    if let Some(pattern) = pattern.filter(|p| p.segments.len() > 1) {
        let mut start = 0;
        let starts = pattern.segments.iter().map(|s| {
            start += s.len();
            start.to_string()
        });
        let cuts: Vec<String> = starts.take(pattern.segments.len() - 1).collect();
        layout.push(("boundaries", cuts.join(",")));
        if pattern.segments.len() > pp && pattern.segments.len().is_multiple_of(pp) {
            layout.push(("vpp", (pattern.segments.len() / pp).to_string()));
        }
    } else if let Some(per_chunk) = flags.number("--num-layers-per-virtual-pipeline-stage") {
        let chunks = recipe.depth() as u64 / per_chunk;
        layout.push(("vpp", (chunks / pp.max(1) as u64).max(1).to_string()));
    }
    match flags.text("--recompute-granularity") {
        Some("full") => layout.push(("recompute", "full".to_string())),
        Some("selective") => {
            let modules = flags.list("--recompute-modules");
            let modules = if modules.is_empty() { "core_attn".to_string() } else { modules.join("+") };
            layout.push(("recompute", format!("selective:{modules}")));
        }
        _ => {}
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEMOTRON: &str = "torchrun pretrain_hybrid.py --hybrid-layer-pattern 'M-M*|M-*-/*-/*-' --hidden-size 256 \
        --num-attention-heads 8 --group-query-attention --num-query-groups 2 --kv-channels 32 --ffn-hidden-size 512 \
        --squared-relu --disable-bias-linear --normalization RMSNorm --position-embedding-type none \
        --untie-embeddings-and-output-weights --vocab-size 1024 --seq-length 4096 --mamba-num-heads 8 \
        --mamba-head-dim 64 --mamba-state-dim 64 --mamba-num-groups 2 --pipeline-model-parallel-size 2 \
        --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --lr 1e-4";

    #[test]
    fn a_hybrid_argument_list_is_read_whole() {
        let imported = import(NEMOTRON, "small").unwrap();
        assert_eq!(imported.recipe.depth(), 8);
        assert_eq!(imported.recipe.features.mtp().unwrap().depth, 2);
        assert_eq!(imported.recipe.mlp.as_ref().unwrap().activation, Activation::Relu2);
        assert!(imported.layout.contains(&("boundaries", "4".to_string())));
        assert_eq!(imported.beside, ["--lr"]);
        let written = megatron::write(&imported.recipe, None, &[4, 4]).unwrap();
        assert_eq!(written.text, "M-M*|M-*-/*-/*-");
    }

    #[test]
    fn mistyped_and_missing_flags_are_all_named() {
        let findings = import("--hiden-size 256 --num-layers 2", "x").unwrap_err();
        assert_eq!(findings[0].hint.as_deref(), Some("did you mean `--hidden-size`?"));
        assert!(findings.iter().any(|f| f.message.contains("has no `--hidden-size`")));
    }

    #[test]
    fn a_flag_without_its_value_is_named() {
        let findings = import("--hidden-size --num-layers 2", "x").unwrap_err();
        assert!(findings.iter().any(|f| f.message == "`--hidden-size` has no value"), "{findings:?}");
    }

    #[test]
    fn expert_frequencies_are_read() {
        assert_eq!(layer_frequency("([0]*1+[1]*2)", 3).unwrap(), [false, true, true]);
        assert_eq!(layer_frequency("2", 3).unwrap(), [true, false, true]);
        assert_eq!(layer_frequency("[0,1]", 2).unwrap(), [false, true]);
        assert!(layer_frequency("[1]*99999999999", 3).is_none());
        assert!(layer_frequency("[1", 1).is_none());
    }
}
