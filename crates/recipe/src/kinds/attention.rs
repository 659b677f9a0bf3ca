//! `A`: softmax attention, grouped-query or multi-latent.

use super::mla::Mla;
use super::{Bias, Emitter, Norm};
use crate::limits;
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;
use units::named;

named! {
    /// Whether and over what queries and keys are normalised.
    pub enum QkNorm {
        /// Not at all.
        None = "none",
        /// Each head by itself, with one scale of a head's width shared by all heads.
        Head = "head",
        /// All heads together, with a scale as wide as the projection.
        Full = "full",
    }
}

/// How keys and values are made.
#[derive(Clone, Debug, PartialEq)]
pub enum AttentionKind {
    /// Grouped-query attention: `kv_heads` shared by groups of query heads.
    Gqa {
        /// Number of key/value heads.
        kv_heads: u64,
        /// Width of a head.
        head_dim: u64,
    },
    /// Multi-latent attention.
    Mla(Mla),
}

/// Attention over a window instead of everything before.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Tokens a query sees.
    pub tokens: u64,
    /// Attention layers (counted among attention layers, from zero) that see everything.
    pub full_layers: Vec<u64>,
    /// Whether the sequence is cut into chunks of so many tokens, and a query sees its own chunk alone: Llama 4.
    pub chunked: bool,
}

impl Window {
    /// A window that slides with the query.
    pub fn sliding(tokens: u64, full_layers: Vec<u64>) -> Window {
        Window { tokens, full_layers, chunked: false }
    }

    /// Keys that a query of a sequence sees on average, where it does not see everything before it.
    pub fn seen(&self, sequence: f64) -> f64 {
        let tokens = self.tokens as f64;
        match (tokens >= sequence, self.chunked) {
            (true, _) => sequence / 2.0,
            (false, true) => tokens / 2.0,
            (false, false) => tokens - tokens * tokens / (2.0 * sequence),
        }
    }
}

/// The attention of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Number of query heads.
    pub heads: u64,
    /// Grouped-query or latent.
    pub kind: AttentionKind,
    /// Norms of queries and keys before their scores are taken.
    pub qk_norm: QkNorm,
    /// Biases on the projections into heads.
    pub qkv_bias: bool,
    /// Bias on the projection out of heads.
    pub out_bias: bool,
    /// One learned sink a head.
    pub sinks: bool,
    /// Whether a gate as wide as the queries multiplies the output.
    pub output_gate: bool,
    /// Sliding window, if any layer has one.
    pub window: Option<Window>,
    /// Share of attention weights that is dropped in training.
    pub dropout: f64,
}

impl Attention {
    /// Grouped-query attention without extras.
    pub fn gqa(heads: u64, kv_heads: u64, head_dim: u64) -> Attention {
        Attention {
            heads,
            kind: AttentionKind::Gqa { kv_heads, head_dim },
            qk_norm: QkNorm::None,
            qkv_bias: false,
            out_bias: false,
            sinks: false,
            output_gate: false,
            window: None,
            dropout: 0.0,
        }
    }

    /// Reads `[attention]`. A head's width is `hidden / heads` unless it is given.
    pub(crate) fn read(mut section: Section, hidden: Option<u64>) -> Option<Attention> {
        let is_mla = section.choice("kind", &[("gqa", false), ("mla", true)], false);
        let heads = section.count("heads", limits::HEADS);
        let kind = if is_mla {
            Mla::read(&mut section).map(AttentionKind::Mla)
        } else {
            read_gqa(&mut section, heads, hidden)
        };
        let qk_norm = section.choice("qk_norm", QkNorm::ALL, QkNorm::None);
        if is_mla && qk_norm != QkNorm::None {
            let message = "multi-latent attention has norms of its own, `qk_norm` is for grouped-query attention";
            section.report("qk_norm", Finding::error("attention/qk-norm", Blame::Recipe, "attention.qk_norm", message));
        }
        let qkv_bias = section.flag_or("qkv_bias", false);
        let out_bias = section.flag_or("out_bias", false);
        let sinks = section.flag_or("sinks", false);
        let output_gate = section.flag_or("output_gate", false);
        let is_unused = |key: &str, is_set: bool, why: &str| {
            if is_set {
                let finding = Finding::error(
                    "recipe/unused-key",
                    Blame::Recipe,
                    format!("attention.{key}"),
                    format!("`{key}` {why}"),
                );
                section.report(key, finding.hint("take it out"));
            }
        };
        if is_mla {
            let why = "is for grouped-query attention; latent attention has `latent_bias`";
            is_unused("qkv_bias", qkv_bias, why);
            is_unused("out_bias", out_bias, why);
            is_unused("output_gate", output_gate, "is for grouped-query attention");
        }
        is_unused(
            "full_attention_layers",
            section.has("full_attention_layers") && !section.has("window"),
            "needs a `window`",
        );
        is_unused("chunked", section.has("chunked") && !section.has("window"), "needs a `window`");
        let window = section.optional_count("window", limits::SEQUENCE);
        let full_layers = section.naturals("full_attention_layers", limits::DEPTH).unwrap_or_default();
        let chunked = section.flag_or("chunked", false);
        let dropout = crate::resolve::probability(&mut section, "dropout");
        section.finish();
        let window = window.map(|tokens| Window { tokens, full_layers, chunked });
        Some(Attention { heads: heads?, kind: kind?, qk_norm, qkv_bias, out_bias, sinks, output_gate, window, dropout })
    }

    /// Writes `[attention]`.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.table("attention");
        match &self.kind {
            AttentionKind::Gqa { kv_heads, head_dim } => {
                toml.int("heads", self.heads);
                toml.int("kv_heads", *kv_heads);
                toml.int("head_dim", *head_dim);
            }
            AttentionKind::Mla(mla) => {
                toml.text("kind", "mla");
                toml.int("heads", self.heads);
                mla.write(toml);
            }
        }
        toml.word_unless("qk_norm", self.qk_norm.name(), QkNorm::None.name());
        toml.flag_unless("qkv_bias", self.qkv_bias, false);
        toml.flag_unless("out_bias", self.out_bias, false);
        toml.flag_unless("sinks", self.sinks, false);
        toml.flag_unless("output_gate", self.output_gate, false);
        toml.float_unless("dropout", self.dropout, 0.0);
        toml.some_int("window", self.window.as_ref().map(|w| w.tokens));
        toml.ints("full_attention_layers", self.window.as_ref().map_or(&[], |w| &w.full_layers));
        toml.flag_unless("chunked", self.window.as_ref().is_some_and(|w| w.chunked), false);
    }

    /// Its tensors, behind the block's norm. Queries and keys are normalised with the model's own
    /// norm, so that under LayerNorm each scale has a bias.
    pub(crate) fn tensors(&self, hidden: u64, norm: Norm, out: &mut Emitter) {
        match &self.kind {
            AttentionKind::Mla(mla) => mla.tensors(self.heads, hidden, out),
            AttentionKind::Gqa { kv_heads, head_dim } => self.gqa_tensors(hidden, *kv_heads, *head_dim, norm, out),
        }
        if self.sinks {
            let heads = vec![Dim::of(Unit::Head, self.heads, 1)];
            out.add("sinks", Surface::AttentionSink, Role::Scalar, heads);
        }
    }

    fn gqa_tensors(&self, hidden: u64, kv_heads: u64, head_dim: u64, norm: Norm, out: &mut Emitter) {
        let mut segments = vec![("q", Unit::Head, self.heads, head_dim)];
        if self.output_gate {
            segments.push(("gate", Unit::Head, self.heads, head_dim));
        }
        segments.push(("k", Unit::KvHead, kv_heads, head_dim));
        segments.push(("v", Unit::KvHead, kv_heads, head_dim));
        let heads = Dim::packed(&segments);
        out.linear("qkv", Surface::AttentionIn, Role::Matrix, heads, Dim::whole(hidden), self.qkv_bias.into());
        match self.qk_norm {
            QkNorm::None => {}
            QkNorm::Head => {
                out.norm("q_norm", Surface::AttentionNorm, norm, head_dim);
                out.norm("k_norm", Surface::AttentionNorm, norm, head_dim);
            }
            QkNorm::Full => {
                let parts = [("weight", norm.has_scale()), ("bias", norm.has_shift())];
                let projections = [("q_norm", Unit::Head, self.heads), ("k_norm", Unit::KvHead, kv_heads)];
                for (name, unit, heads) in projections {
                    for (part, _) in parts.iter().filter(|(_, is_there)| *is_there) {
                        let scale = vec![Dim::of(unit, heads, head_dim)];
                        out.add(&format!("{name}.{part}"), Surface::AttentionNorm, Role::Norm, scale);
                    }
                }
            }
        }
        let rows = Dim::of(Unit::Head, self.heads, head_dim);
        out.linear("out", Surface::AttentionOut, Role::Matrix, Dim::whole(hidden), rows, Bias::from(self.out_bias));
    }
}

fn read_gqa(section: &mut Section, heads: Option<u64>, hidden: Option<u64>) -> Option<AttentionKind> {
    let kv_heads = section.count_or("kv_heads", limits::HEADS, heads.unwrap_or(1))?;
    let given = section.optional_count("head_dim", limits::WIDTH);
    let (heads, hidden) = (heads?, hidden?);
    if !heads.is_multiple_of(kv_heads) {
        let message = format!("{heads} query heads do not share {kv_heads} KV heads evenly");
        let finding = Finding::error("attention/kv-heads", Blame::Recipe, "attention.kv_heads", message)
            .hint(format!("kv_heads may be {}", diag::list(&units::divisors(heads))));
        section.report("kv_heads", finding);
        return None;
    }
    let head_dim = given.or_else(|| hidden.is_multiple_of(heads).then(|| hidden / heads));
    if head_dim.is_none() && !section.has("head_dim") {
        let message = format!("hidden {hidden} does not divide into {heads} heads, so `head_dim` must be given");
        section.report("heads", Finding::error("attention/head-dim", Blame::Recipe, "attention.head_dim", message));
    }
    Some(AttentionKind::Gqa { kv_heads, head_dim: head_dim? })
}

#[cfg(test)]
mod tests {
    use crate::builtin;
    use crate::kinds::Norm;
    use crate::kinds::attention::QkNorm;

    /// Names of the norms of layer zero's queries and keys.
    fn head_norms(norm: Norm, qk_norm: QkNorm) -> Vec<String> {
        let mut recipe = builtin::find("llama3-8b").unwrap();
        recipe.norm = norm;
        recipe.attention.as_mut().unwrap().qk_norm = qk_norm;
        let paths = recipe.tensors().into_iter().map(|t| t.path);
        let layer = paths.filter_map(|p| p.strip_prefix("layers.0.attention.").map(str::to_string));
        layer.filter(|p| p.starts_with("q_norm") || p.starts_with("k_norm")).collect()
    }

    #[test]
    fn query_and_key_norms_are_of_the_models_kind() {
        let both = ["q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias"];
        for qk_norm in [QkNorm::Head, QkNorm::Full] {
            assert_eq!(head_norms(Norm::RmsNorm, qk_norm), ["q_norm.weight", "k_norm.weight"]);
            assert_eq!(head_norms(Norm::LayerNorm, qk_norm), both);
        }
    }
}
