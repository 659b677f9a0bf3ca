//! A Megatron argument list: the model becomes a recipe, the parallelism the layout flags that
//! say the same, and what is neither is listed. Defaults are Megatron-Core 0.19.2's own. A flag
//! that changes the model or who holds what and cannot be said here is refused by name. Number
//! formats are not read: a recipe's are mixed bf16.

mod attention;
mod blocks;
mod depth;
mod flags;
mod layer_list;
mod layout;
mod refused;
mod taken;
#[cfg(test)]
mod tests;
mod values;
mod window;

use crate::features::Features;
use crate::kinds::Norm;
use crate::kinds::attention::{Attention, AttentionKind};
use crate::kinds::mamba::Mamba;
use crate::limits;
use crate::pattern::{Mixer, Pattern};
use crate::precision::{OptimizerPolicy, Precision};
use crate::recipe::Recipe;
use crate::rope::{Positions, Rope, Scaling, Yarn};
use depth::Depth;
use diag::{Blame, Finding, did_you_mean};
use flags::{Flags, shown};
use serde_json::Value;

pub use flags::words as shell_words;

/// What an argument list says.
#[derive(Debug)]
pub struct Imported {
    /// The model.
    pub recipe: Recipe,
    /// The parallelism, as our flags.
    pub layout: Vec<(&'static str, String)>,
    /// Flags that made the recipe.
    pub model: Vec<String>,
    /// Flags that made the layout.
    pub split: Vec<String>,
    /// Flags that concern neither, each with its values.
    pub beside: Vec<(String, Vec<String>)>,
}

/// The least and the most values that a flag of Megatron-Core takes; none where it has no such flag.
pub fn arity(name: &str) -> Option<(usize, usize)> {
    let entry = flags::options().get(name)?;
    Some(match (&entry["nargs"], entry["takes_value"].as_bool()) {
        (_, Some(false)) => (0, 0),
        (Value::String(text), _) if text == "*" => (0, usize::MAX),
        (Value::String(text), _) if text == "+" => (1, usize::MAX),
        (text, _) => text.as_str().and_then(|text| text.parse().ok()).map_or((1, 1), |n| (n, n)),
    })
}

/// The flag that is most like a name.
pub fn close(name: &str) -> Option<&'static str> {
    let known = flags::options().as_object()?;
    did_you_mean(name, known.keys().map(String::as_str))
}

/// Why a flag cannot be passed on beside a recipe and a layout: it changes the model, or who holds what.
pub fn changes(name: &str) -> Option<&'static str> {
    let listed = refused::MODEL.iter().chain(refused::LAYOUT);
    let refused = listed.clone().find(|(flag, _)| *flag == name).map(|(_, why)| *why);
    refused.or_else(|| taken::is_read(name).then_some("the recipe or a layout flag says it"))
}

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
    refuse_unsayable(&mut flags);
    let imported = read(&mut flags, name);
    match imported {
        Some(imported) if flags.findings.is_empty() => {
            let recipe = imported.recipe.validated()?;
            Ok(Imported { recipe, ..imported })
        }
        _ => Err(flags.findings),
    }
}

fn refuse_unsayable(flags: &mut Flags) {
    for (flag, why) in refused::MODEL {
        if flags.has(flag) {
            flags.refuse(flag, format!("`{flag}` has no recipe: {why}"));
        }
    }
    for (flag, why) in refused::LAYOUT {
        if flags.has(flag) {
            flags.refuse(flag, format!("`{flag}` has no layout flag: {why}"));
        }
    }
    for (flag, values, why) in refused::ONLY {
        let other = flags.list(flag).iter().find(|v| !values.contains(&v.as_str())).map(|v| shown(v));
        // A value that is none of the engine's was refused already.
        if let Some(other) = other.filter(|_| !flags.is_refused(flag)) {
            flags.refuse(flag, format!("`{flag} {other}` has no recipe: {why}"));
        }
    }
}

fn read(flags: &mut Flags, name: &str) -> Option<Imported> {
    let hidden = flags.need("--hidden-size");
    let sequence = flags.need("--seq-length");
    let vocab = flags.number("--padded-vocab-size").or_else(|| flags.number("--vocab-size"));
    if vocab.is_none() {
        flags.refuse("--vocab-size", "the argument list has no `--vocab-size`, and a tokenizer file is not read");
    }
    let depth = Depth::read(flags)?;
    let layers = depth.layers(flags);
    let (hidden, sequence) = (hidden?, sequence?);
    let norm = if flags.text("--normalization") == Some("RMSNorm") { Norm::RmsNorm } else { Norm::LayerNorm };
    let activation = blocks::activation(flags);
    let mlp = blocks::mlp(flags, hidden, activation);
    let moe = blocks::moe(flags, mlp.as_ref()?.ffn, activation);
    let mamba = blocks::mamba(flags, hidden, &depth);
    let gated_delta = blocks::gated_delta(flags, norm, &depth);
    let attention = attention::attention(flags, hidden, norm, &depth);
    let positions = positions(flags, sequence, attention.as_ref());
    let layers = layers?;
    let mut recipe = Recipe {
        name: name.into(),
        source: "imported from a Megatron argument list".into(),
        pattern: Pattern::describe(&layers),
        layers,
        hidden,
        vocab: vocab?,
        tied: !flags.has("--untie-embeddings-and-output-weights"),
        sequence,
        norm,
        norm_place: crate::kinds::NormPlace::Before,
        embedding_norm: false,
        head_bias: false,
        norm_eps: flags.positive("--norm-epsilon").unwrap_or(crate::NORM_EPS),
        init_std: flags.positive("--init-method-std"),
        dropout: share(flags, "--hidden-dropout")?,
        positions: positions?,
        multipliers: Default::default(),
        modes: Vec::new(),
        attention: Some(attention?),
        moe: moe?,
        mamba: mamba?.map(Mamba::Two),
        recurrent: None,
        gated_delta: gated_delta?,
        linear: None,
        mlp,
        shared: None,
        features: Features::default(),
        precision: Precision::default(),
        optimizer: optimizer(flags),
        not_carried: Vec::new(),
        notes: Vec::new(),
    };
    depth.features(flags, &mut recipe)?;
    window::window(flags, &mut recipe, &depth)?;
    drop_unused(&mut recipe);
    let layout = layout::layout(flags, &recipe, &depth);
    let of = |list: &[&str]| flags.names().filter(|f| list.contains(f)).map(str::to_string).collect();
    let beside = flags.names().filter(|f| !taken::is_read(f)).map(|f| (f.to_string(), flags.list(f).to_vec()));
    let (model, split, beside) = (of(taken::MODEL), of(taken::LAYOUT), beside.collect());
    Some(Imported { recipe, layout, model, split, beside })
}

/// A share that is dropped; Megatron drops a tenth unless told otherwise.
fn share(flags: &mut Flags, flag: &str) -> Option<f64> {
    let Some(text) = flags.text(flag).map(shown) else { return Some(0.1) };
    let share = text.parse::<f64>().ok().filter(|x| (0.0..1.0).contains(x));
    if share.is_none() && !flags.is_refused(flag) {
        flags.refuse(flag, format!("`{flag} {text}` is no share from 0 up to 1"));
    }
    share
}

/// Scaling of rotary frequencies: `--use-rope-scaling` is Llama 3.1's with fixed borders
/// (`rotary_pos_embedding.py`), latent attention has YaRN with a fixed original length
/// (`MLATransformerConfig`), and other YaRN is what its flags say, with the defaults of
/// `training/argument_utils.py` (`_apply_yarn_config_from_args`).
fn scaling(flags: &mut Flags, kind: &str, is_latent: bool) -> Option<Scaling> {
    let factor = flags.positive("--rotary-scaling-factor").unwrap_or(1.0);
    let asked = if is_latent { flags.text("--rope-type").unwrap_or("yarn") } else { kind };
    let is_yarn = asked == "yarn" && factor != 1.0;
    if kind == "yarn" && is_latent {
        let message = "latent attention is told of YaRN by `--rope-type`, and its positions are `rope`";
        flags.refuse("--position-embedding-type", message);
    }
    let linear = flags.number("--rotary-seq-len-interpolation-factor");
    let llama3 = flags.has("--use-rope-scaling");
    if usize::from(is_yarn) + usize::from(linear.is_some()) + usize::from(llama3) > 1 {
        flags.refuse("--use-rope-scaling", "several scalings of rotary frequencies have no recipe: it has one");
    }
    if is_yarn {
        let mscale = flags.positive("--mscale").unwrap_or(1.0);
        let all = flags.positive("--mscale-all-dim").unwrap_or(0.0);
        // What transformers computes where a config names neither.
        let usual = mscale == 1.0 && all == 0.0;
        let (mscale, mscale_all_dim) = if usual { (None, None) } else { (Some(mscale), Some(all)) };
        let yarn = Yarn { mscale, mscale_all_dim, ..Yarn::usual(factor, MLA_ORIGINAL) };
        return Some(Scaling::Yarn(if is_latent { yarn } else { told(flags, yarn) }));
    }
    if llama3 {
        let factor = flags.positive("--rope-scaling-factor").unwrap_or(8.0);
        return Some(Scaling::Llama3 { factor, low: 1.0, high: 4.0, original: 8192 });
    }
    linear.map(|factor| Scaling::Linear { factor: factor as f64 })
}

/// YaRN with what flags change of it outside latent attention.
fn told(flags: &mut Flags, yarn: Yarn) -> Yarn {
    Yarn {
        original: flags.number("--yarn-original-max-position-embeddings").unwrap_or(yarn.original),
        beta_fast: flags.positive("--yarn-beta-fast").unwrap_or(yarn.beta_fast),
        beta_slow: flags.positive("--yarn-beta-slow").unwrap_or(yarn.beta_slow),
        rounds: !flags.has("--no-yarn-correction-range-round-to-int"),
        ..yarn
    }
}

/// `original_max_position_embeddings` of `MLATransformerConfig`, which no flag changes, and the default of other YaRN.
const MLA_ORIGINAL: u64 = 4096;

fn positions(flags: &mut Flags, sequence: u64, attention: Option<&Attention>) -> Option<Positions> {
    let rotary = flags.has("--use-rotary-position-embeddings");
    let kind = if rotary { "rope" } else { flags.text("--position-embedding-type").unwrap_or("learned_absolute") };
    let kind = kind.to_string();
    if flags.has("--no-position-embedding") && kind != "rope" {
        let quote = "--no-position-embedding is deprecated, use --position-embedding-type";
        flags.refuse_as("--no-position-embedding", "it goes with rotary positions only", quote);
    }
    let theta = if flags.has("--rotary-base") { flags.number("--rotary-base")? as f64 } else { 10_000.0 };
    match kind.as_str() {
        "rope" | "yarn" => {
            let is_latent = attention.is_some_and(|a| matches!(a.kind, AttentionKind::Mla(_)));
            let fraction = flags.positive("--rotary-percent").unwrap_or(1.0);
            let scaling = scaling(flags, &kind, is_latent);
            Some(Positions::Rope(Rope { theta, fraction, scaling }))
        }
        "none" => Some(Positions::None),
        // Others were refused by value.
        "learned_absolute" => {
            let count = flags.need("--max-position-embeddings")?;
            if count < sequence {
                let message = format!("{count} learned positions do not reach over a sequence of {sequence}");
                flags.refuse("--max-position-embeddings", message);
            }
            Some(Positions::Learned { count })
        }
        _ => None,
    }
}

fn optimizer(flags: &Flags) -> OptimizerPolicy {
    let muon = flags.text("--optimizer").is_some_and(|o| o.contains("muon"));
    if muon { OptimizerPolicy::muon() } else { OptimizerPolicy::default() }
}

/// Megatron has a default for every kind; the recipe keeps those it uses.
fn drop_unused(recipe: &mut Recipe) {
    let uses = |m| recipe.uses(m);
    let (a, e, f) = (uses(Mixer::Attention), uses(Mixer::Moe), uses(Mixer::Mlp));
    recipe.attention.take_if(|_| !a);
    recipe.moe.take_if(|_| !e);
    recipe.mlp.take_if(|_| !f);
}
