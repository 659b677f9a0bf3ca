//! What stands where along the depth: a hybrid pattern, or transformer layers whose attention and
//! feed-forward follow frequencies, with sparse attention and prediction heads on top.

use super::flags::Flags;
use super::layer_list;
use crate::features::Switch;
use crate::kinds::dsa::Dsa;
use crate::kinds::mtp::Mtp;
use crate::megatron::{self, HybridPattern, Symbol};
use crate::pattern::{Block, Layer, Mixer};
use crate::recipe::Recipe;
use crate::rope::Positions;
use diag::Finding;

/// How the layers are described.
pub enum Depth {
    /// Symbol by symbol.
    Hybrid(HybridPattern),
    /// A count of transformer layers.
    Transformer(Variant),
}

/// What replaces softmax attention in transformer layers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Nothing.
    Softmax,
    /// Gated delta nets, where `--linear-attention-freq` says so.
    GatedDelta,
    /// Sparse latent attention, on every layer.
    Sparse,
}

impl Depth {
    /// Reads which of the two it is; nothing is built yet.
    pub fn read(flags: &mut Flags) -> Option<Depth> {
        let both = ["--hybrid-layer-pattern", "--hybrid-override-pattern"];
        if both.iter().all(|f| flags.has(f)) {
            flags.refuse(both[1], format!("`{}` and `{}` exclude each other", both[0], both[1]));
        }
        let depth = match both.into_iter().find(|f| flags.has(f)) {
            None => Depth::Transformer(variant(flags)),
            Some(flag) => match megatron::read(flags.text(flag)?) {
                Ok(pattern) => Depth::Hybrid(pattern),
                Err(finding) => {
                    flags.findings.push(Finding { span: None, ..finding });
                    return None;
                }
            },
        };
        refuse_contradictions(flags, &depth);
        Some(depth)
    }

    /// The hybrid pattern, if there is one.
    pub fn pattern(&self) -> Option<&HybridPattern> {
        match self {
            Depth::Hybrid(pattern) => Some(pattern),
            Depth::Transformer(_) => None,
        }
    }

    /// Whether a hybrid pattern has the symbol, in the layers or behind them.
    pub fn has_symbol(&self, symbol: Symbol) -> bool {
        self.pattern().is_some_and(|p| p.segments.iter().chain([&p.suffix]).flatten().any(|s| *s == symbol))
    }

    /// The layers.
    pub fn layers(&self, flags: &mut Flags) -> Option<Vec<Layer>> {
        match self {
            Depth::Hybrid(p) => Some(p.segments.iter().flatten().map(|s| Layer::of(&[s.mixer()])).collect()),
            Depth::Transformer(variant) => transformer_layers(flags, *variant),
        }
    }

    /// Adds sparse attention and prediction heads.
    pub fn features(&self, flags: &mut Flags, recipe: &mut Recipe) -> Option<()> {
        let sparse = match self {
            Depth::Hybrid(pattern) => sparse_layers(pattern),
            Depth::Transformer(Variant::Sparse) => Some(Vec::new()),
            Depth::Transformer(_) => None,
        };
        if let Some(layers) = sparse {
            let reuse = reuse(flags, recipe, &layers)?;
            recipe.features.dsa = Some(Switch { on: true, value: indexer(flags, layers, reuse)? });
        }
        let repeats = flags.has("--mtp-use-repeated-layer");
        let mtp = match self {
            Depth::Hybrid(pattern) => {
                let blocks = pattern.suffix.iter().map(|s| Block::of(s.mixer())).collect();
                let (depth, layer) = (pattern.mtp_depth as u64, Layer::of_blocks(blocks));
                (depth > 0).then_some(Mtp { depth, layer, shared: repeats && depth > 1 })
            }
            Depth::Transformer(_) => match flags.number("--mtp-num-layers") {
                Some(depth) => Some(Mtp { depth, layer: recipe.layers.last().cloned()?, shared: repeats && depth > 1 }),
                None => None,
            },
        };
        if mtp.is_some() && matches!(recipe.positions, Positions::Learned { .. }) {
            let quote = "The supported position embedding types are rope and none.";
            flags.refuse_as("--position-embedding-type", "learned positions do not reach prediction heads", quote);
        }
        recipe.features.mtp = mtp.map(|value| Switch { on: true, value });
        Some(())
    }
}

fn variant(flags: &mut Flags) -> Variant {
    let variant = match flags.text("--experimental-attention-variant") {
        Some("gated_delta_net") => Variant::GatedDelta,
        Some("dsa") => Variant::Sparse,
        _ => Variant::Softmax,
    };
    if variant != Variant::Softmax && flags.has("--mtp-num-layers") {
        let quote = "Experimental attention variant is not supported with get_gpt_decoder_layer_specs";
        flags.refuse_as("--mtp-num-layers", "prediction heads do not take an attention variant", quote);
    }
    if variant == Variant::Sparse && !flags.has("--multi-latent-attention") {
        let quote = "Currently only MLA supports sparse attention.";
        flags.refuse_as("--experimental-attention-variant", "`dsa` is latent attention", quote);
    }
    variant
}

/// Flags that say about the depth what the depth does not say.
fn refuse_contradictions(flags: &mut Flags, depth: &Depth) {
    let linear = matches!(depth, Depth::Transformer(Variant::GatedDelta));
    if flags.has("--linear-attention-freq") && !linear {
        let message = "it places layers only with `--experimental-attention-variant gated_delta_net`";
        flags.refuse("--linear-attention-freq", message);
    }
    let is_stock = match flags.list("--spec") {
        [] => !flags.has("--spec"),
        [module, name] => {
            let modules = ["hybrid.hybrid", "mamba.mamba"].map(|m| format!("megatron.core.models.{m}_layer_specs"));
            modules.contains(module) && ["hybrid_stack_spec", "mamba_stack_spec"].contains(&name.as_str())
        }
        _ => false,
    };
    if !is_stock || (flags.has("--spec") && depth.pattern().is_none()) {
        let message = "`--spec` builds layers that cannot be seen; only the stock hybrid stack is known";
        flags.refuse("--spec", message);
    }
    let Some(pattern) = depth.pattern() else { return };
    let variant = flags.text("--experimental-attention-variant").map(str::to_string);
    if variant.is_some_and(|v| v != "dsa" || !depth.has_symbol(Symbol::Dsa)) {
        let message = "a hybrid pattern says itself which layers are `G` or `D`";
        flags.refuse("--experimental-attention-variant", message);
    }
    if flags.has("--mtp-num-layers") && pattern.mtp_depth == 0 {
        flags.refuse("--mtp-num-layers", "a hybrid pattern gives each prediction depth behind a `/`, and has none");
    }
    if flags.has("--multi-latent-attention") && depth.has_symbol(Symbol::Attention) {
        flags.refuse("--multi-latent-attention", "the pattern's `*` is grouped-query attention; latent is `+`");
    }
    if pattern.suffix.contains(&Symbol::Dsa) {
        flags.refuse("--hybrid-layer-pattern", "a prediction suffix with sparse attention (`D`) has no recipe");
    }
}

/// Attention layers that are sparse, counted among attention layers; none when no `D` stands.
fn sparse_layers(pattern: &HybridPattern) -> Option<Vec<u64>> {
    let attends = pattern.segments.iter().flatten().filter(|s| s.mixer() == Mixer::Attention);
    let sparse = attends.enumerate().filter(|(_, s)| **s == Symbol::Dsa).map(|(i, _)| i as u64);
    Some(sparse.collect::<Vec<_>>()).filter(|layers| !layers.is_empty())
}

/// Sparse layers that read an earlier choice (`experimental_attention_variant/dsa.py`, `is_dsa_skip_topk_layer`): layers
/// count from one, symbols of a hybrid pattern as well, and the layer that chooses is the last of its frequency.
fn reuse(flags: &mut Flags, recipe: &Recipe, sparse: &[u64]) -> Option<Vec<u64>> {
    let frequency = if flags.has("--dsa-indexer-topk-freq") { flags.number("--dsa-indexer-topk-freq")? } else { 1 };
    let offset = match flags.text("--dsa-indexer-skip-topk-offset") {
        Some(text) => text.parse::<u64>().ok(),
        None => Some(0),
    };
    let Some(offset) = offset.map(|offset| offset.max(1)) else {
        flags.refuse("--dsa-indexer-skip-topk-offset", "it is a number of layers");
        return None;
    };
    let attends = recipe.layers.iter().enumerate().filter(|(_, layer)| layer.has(Mixer::Attention));
    let mut last = None;
    let mut reuse = Vec::new();
    for (ordinal, (at, _)) in attends.enumerate().filter(|(o, _)| sparse.is_empty() || sparse.contains(&(*o as u64))) {
        let behind = (at as u64 + 1).saturating_sub(offset) % frequency;
        if behind == 0 {
            last = Some(at as u64);
            continue;
        }
        if last != Some(at as u64 - behind) {
            let message = format!("layer {at} would read the choice of layer {}, which makes none", at as u64 - behind);
            flags.refuse("--dsa-indexer-topk-freq", message);
            return None;
        }
        reuse.push(ordinal as u64);
    }
    Some(reuse)
}

fn indexer(flags: &mut Flags, layers: Vec<u64>, reuse: Vec<u64>) -> Option<Dsa> {
    if !flags.has("--disable-bias-linear") {
        let quote = "DSA uses AbsorbedMLASelfAttention, which requires add_bias_linear=False.";
        flags.refuse_as("--disable-bias-linear", "sparse attention has no biases, and the list keeps them", quote);
    }
    let heads = flags.need("--dsa-indexer-n-heads");
    let head_dim = flags.need("--dsa-indexer-head-dim");
    let top_k = flags.need("--dsa-indexer-topk");
    Some(Dsa { heads: heads?, head_dim: head_dim?, top_k: top_k?, layers, reuse })
}

/// Transformer layers: gated delta nets where one frequency says so, experts where another does.
fn transformer_layers(flags: &mut Flags, variant: Variant) -> Option<Vec<Layer>> {
    let depth = flags.need("--num-layers")?;
    // Every nth layer has experts, from the first; every nth is attention, the last of its group.
    let experts = frequency(flags, "--moe-layer-freq", "1", depth, |i, n| i.is_multiple_of(n));
    let has_experts = flags.has("--num-experts");
    let linear = match variant {
        Variant::GatedDelta if !flags.has("--linear-attention-freq") => {
            let quote = "linear_attention_freq must be set for linear gated_delta_net.";
            flags.refuse_as("--linear-attention-freq", "the argument list has no `--linear-attention-freq`", quote);
            None
        }
        Variant::GatedDelta => {
            frequency(flags, "--linear-attention-freq", "1", depth, |i, n| !(i + 1).is_multiple_of(n))
        }
        _ => Some(vec![false; depth as usize]),
    };
    let layers = experts?.into_iter().zip(linear?).map(|(routed, linear)| {
        let mixer = if linear { Mixer::GatedDelta } else { Mixer::Attention };
        Layer::of(&[mixer, if routed && has_experts { Mixer::Moe } else { Mixer::Mlp }])
    });
    Some(layers.collect())
}

pub fn frequency(
    flags: &mut Flags,
    flag: &str,
    usual: &str,
    depth: u64,
    every: impl Fn(u64, u64) -> bool,
) -> Option<Vec<bool>> {
    let text = flags.text(flag).unwrap_or(usual).to_string();
    let chosen = match text.parse::<u64>() {
        Ok(n) => (n > 0).then(|| (0..depth).map(|i| every(i, n)).collect()),
        Err(_) => layer_list::parse(&text).filter(|list| list.len() as u64 == depth),
    };
    if chosen.is_none() {
        flags.refuse(
            flag,
            format!("it is a number, or a list such as `([0]*3+[1]*58)` with 0 or 1 for each of {depth} layers"),
        );
    }
    chosen
}
