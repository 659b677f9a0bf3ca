//! A recipe as the plain decoder that most engines have: layers of attention and a feed-forward
//! block, dense ones first. What does not fit this form is refused with the engine's rule.

use crate::job::Job;
use diag::{Blame, Finding, RuleId};
use recipe::kinds::attention::{Attention, AttentionKind, QkNorm};
use recipe::kinds::mla::Mla;
use recipe::kinds::mlp::Mlp;
use recipe::kinds::moe::Moe;
use recipe::kinds::{Activation, Norm};
use recipe::{Layer, Mixer, Optimizer, Positions, Rope};

/// A decoder of attention and feed-forward layers.
pub struct Decoder<'a> {
    /// Its attention.
    pub attention: Attention,
    /// Dense blocks.
    pub mlp: Option<&'a Mlp>,
    /// Expert blocks.
    pub moe: Option<&'a Moe>,
    /// Dense layers before the first expert layer; all of them without experts.
    pub dense_first: usize,
    /// The rotation.
    pub rope: Rope,
    /// Prediction depths.
    pub mtp_depth: u64,
}

/// What an engine's decoder has beyond the plainest form.
#[derive(Clone, Copy, Default)]
pub struct Has {
    /// Latent attention.
    pub latent: bool,
    /// Norms of queries and keys, head by head.
    pub qk_norm: bool,
    /// Heads whose widths do not sum to the hidden width.
    pub free_head_dim: bool,
    /// A balancing loss.
    pub aux_loss: bool,
    /// A balancing bias.
    pub expert_bias: bool,
    /// Shared experts.
    pub shared: bool,
    /// A gate on them.
    pub gate: bool,
    /// Prediction heads.
    pub mtp: bool,
}

impl<'a> Decoder<'a> {
    /// The recipe in this form; findings say what does not fit, in full.
    pub fn of(job: &Job<'a>, rule: RuleId, engine: &str, has: Has) -> Result<Decoder<'a>, Vec<Finding>> {
        let recipe = job.recipe;
        let mut missing = Vec::new();
        let mut refuse = |object: &str, what: String| {
            missing.push(Finding::error(rule, Blame::Missing, object, format!("{engine} {what}")));
        };
        let dense_first = recipe.layers.iter().position(|l| l.has(Mixer::Moe)).unwrap_or(recipe.depth());
        if let Some(layer) = recipe.layers.iter().position(|layer| !is_transformer(layer)) {
            let layers = format!("layer {layer} is `{}`", recipe.layers[layer]);
            refuse("pattern", format!("has layers of attention and a feed-forward block only, and {layers}"));
        } else if recipe.layers[dense_first..].iter().any(|layer| !layer.has(Mixer::Moe)) {
            refuse("pattern", "has dense layers before expert layers only".to_string());
        }
        if recipe.norm != Norm::RmsNorm {
            refuse("norm", "normalises by RMSNorm only".to_string());
        }
        let rope = match recipe.positions {
            Positions::Rope(rope) => rope,
            _ => {
                refuse("positions", "has rotary positions only".to_string());
                Rope::plain(1.0)
            }
        };
        let mlp = recipe.mlp.as_ref().filter(|_| recipe.has(Mixer::Mlp));
        let moe = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe));
        feed_forward(mlp, moe, has, &mut refuse);
        let attention = recipe.attention().filter(|_| recipe.uses(Mixer::Attention));
        if let Some(attention) = &attention {
            attend(attention, recipe.hidden, has, &mut refuse);
        }
        let mtp_depth = recipe.features.mtp().map_or(0, |mtp| mtp.depth);
        if mtp_depth > 0 && !has.mtp {
            refuse("features.mtp", "has no prediction heads".to_string());
        }
        if recipe.features.dsa().is_some() {
            refuse("features.dsa", "has no sparse attention of this form".to_string());
        }
        if let Some((name, _)) = recipe.features.sides().next() {
            refuse("features", format!("has no side embeddings (`{name}`)"));
        }
        for (optimizer, name) in [(Optimizer::Muon, "Muon"), (Optimizer::Sgd, "SGD")] {
            if recipe.tensors().iter().any(|t| t.optimizer == optimizer) {
                refuse("optimizer", format!("steps by AdamW, and the recipe has {name} for some tensors"));
            }
        }
        match attention {
            Some(attention) if missing.is_empty() => Ok(Decoder { attention, mlp, moe, dense_first, rope, mtp_depth }),
            _ => Err(missing),
        }
    }

    /// The latent widths, when attention is latent.
    pub fn latent(&self) -> Option<&Mla> {
        match &self.attention.kind {
            AttentionKind::Mla(mla) => Some(mla),
            AttentionKind::Gqa { .. } => None,
        }
    }

    /// Key/value heads and the width of a head.
    pub fn heads(&self) -> (u64, u64) {
        match &self.attention.kind {
            AttentionKind::Gqa { kv_heads, head_dim } => (*kv_heads, *head_dim),
            AttentionKind::Mla(mla) => (self.attention.heads, mla.qk_dim + mla.rope_dim),
        }
    }
}

/// Attention, then a dense or an expert block.
fn is_transformer(layer: &Layer) -> bool {
    let mixers: Vec<Mixer> = layer.mixers().collect();
    layer.blocks.len() == 2 && matches!(mixers[..], [Mixer::Attention, Mixer::Mlp | Mixer::Moe])
}

fn feed_forward(mlp: Option<&Mlp>, moe: Option<&Moe>, has: Has, refuse: &mut impl FnMut(&str, String)) {
    let activations = mlp.map(|m| m.activation).into_iter().chain(moe.map(|m| m.activation));
    let shared = moe.and_then(|m| m.shared.as_ref());
    for activation in activations.chain(shared.map(|s| s.activation)).filter(|a| *a != Activation::SwiGlu) {
        refuse("activation", format!("gates by SwiGLU only, and the recipe has `{activation}`"));
    }
    if mlp.is_some_and(|m| m.bias) || moe.is_some_and(|m| m.bias || m.router.bias) {
        refuse("bias", "has no biases in feed-forward blocks".to_string());
    }
    let Some(moe) = moe else { return };
    if moe.latent.is_some() || moe.capacity_factor.is_some() {
        refuse("moe", "has no latent space around experts and drops no tokens".to_string());
    }
    if moe.router.aux_loss.is_some() && !has.aux_loss {
        refuse("moe.router.aux_loss", "has no balancing loss".to_string());
    }
    if moe.router.expert_bias && !has.expert_bias {
        refuse("moe.router.expert_bias", "has no balancing bias".to_string());
    }
    match shared {
        Some(_) if !has.shared => refuse("moe.shared", "has no shared expert of this form".to_string()),
        Some(shared) if shared.gate && !has.gate => {
            refuse("moe.shared.gate", "has no gate on the shared expert".to_string());
        }
        _ => {}
    }
}

fn attend(attention: &Attention, hidden: u64, has: Has, refuse: &mut impl FnMut(&str, String)) {
    match &attention.kind {
        AttentionKind::Mla(mla) if !has.latent || mla.bias || !mla.latent_norm => {
            refuse("attention", "has no latent attention of this form".to_string());
        }
        AttentionKind::Gqa { head_dim, .. } if !has.free_head_dim && head_dim * attention.heads != hidden => {
            refuse("attention.head_dim", format!("makes heads as wide as hidden over heads, not {head_dim}"));
        }
        _ => {}
    }
    if attention.qkv_bias || attention.out_bias {
        refuse("attention.bias", "has no biases in attention".to_string());
    }
    if attention.qk_norm == QkNorm::Full || (attention.qk_norm == QkNorm::Head && !has.qk_norm) {
        refuse("attention.qk_norm", "does not normalise queries and keys this way".to_string());
    }
    for (is_set, key) in
        [(attention.sinks, "sinks"), (attention.output_gate, "output_gate"), (attention.window.is_some(), "window")]
    {
        if is_set {
            refuse(&format!("attention.{key}"), format!("has no `{key}` of this form"));
        }
    }
}
