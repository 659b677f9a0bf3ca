//! The reference model that the FSDP2 and XLA lanes carry along: its sizes, and what it does not
//! have. A plan does not depend on it: a model of one's own whose parameters carry the same paths
//! takes its place.

use diag::{Blame, Finding};
use recipe::kinds::Norm;
use recipe::kinds::attention::{Attention, AttentionKind};
use recipe::kinds::mamba::Mamba;
use recipe::kinds::moe::Moe;
use recipe::pattern::Block;
use recipe::{Mixer, Positions, Recipe};
use serde_json::{Value, json};

/// The names of a layer's blocks, as tensor paths spell them.
fn block_names(blocks: &[Block]) -> Vec<String> {
    let name = |(index, block): (usize, &Block)| {
        let first = block.mixers[0];
        let twins = blocks[..index].iter().filter(|b| b.mixers[0] == first).count();
        if twins == 0 { first.table().to_string() } else { format!("{}_{}", first.table(), twins + 1) }
    };
    blocks.iter().enumerate().map(name).collect()
}

/// Blocks by layer and name: `(layer, path, mixer)`.
pub(super) fn blocks(recipe: &Recipe) -> Vec<(usize, String, Mixer)> {
    let mut all = Vec::new();
    for (index, layer) in recipe.layers.iter().enumerate() {
        for (name, block) in block_names(&layer.blocks).into_iter().zip(&layer.blocks) {
            all.push((index, format!("layers.{index}.{name}"), block.mixers[0]));
        }
    }
    all
}

/// What the model is, in the words of the emitted `model.py`. `vocab` is padded as the table is.
pub(super) fn model(recipe: &Recipe, vocab: u64) -> Value {
    let layers: Vec<Vec<String>> = recipe.layers.iter().map(|layer| block_names(&layer.blocks)).collect();
    let theta = match recipe.positions {
        Positions::Rope { theta } => Some(theta),
        _ => None,
    };
    json!({
        "hidden": recipe.hidden,
        "vocab": vocab,
        "tied": recipe.tied,
        "norm": if recipe.norm == Norm::LayerNorm { "layernorm" } else { "rmsnorm" },
        "rope_theta": theta,
        "layers": layers,
        "attention": recipe.attention().and_then(|a| attention(&a)),
        "moe": recipe.moe.as_ref().map(moe),
        "mamba": recipe.mamba.as_ref().map(mamba),
        "recurrent": recipe.recurrent.as_ref().map(|r| json!({
            "heads": r.heads, "qk_heads": r.qk_heads, "key_dim": r.key_dim, "value_dim": r.value_dim,
            "conv": r.conv, "conv_bias": r.conv_bias,
        })),
        "mlp": recipe.mlp.as_ref().map(|m| json!({"ffn": m.ffn, "activation": m.activation.name()})),
        "unsupported": unsupported(recipe),
    })
}

fn attention(attention: &Attention) -> Option<Value> {
    match attention.kind {
        AttentionKind::Gqa { kv_heads, head_dim } => {
            Some(json!({"heads": attention.heads, "kv_heads": kv_heads, "head_dim": head_dim}))
        }
        AttentionKind::Mla(_) => None,
    }
}

fn moe(moe: &Moe) -> Value {
    let shared = moe.shared.as_ref().map(|s| json!({"ffn": s.ffn, "activation": s.activation.name()}));
    json!({
        "experts": moe.experts, "top_k": moe.top_k, "ffn": moe.ffn, "activation": moe.activation.name(),
        "score": moe.router.score.name(), "shared": shared,
    })
}

fn mamba(mamba: &Mamba) -> Value {
    match mamba {
        Mamba::One(_) => json!({"kind": "mamba1"}),
        Mamba::Two(m) => json!({
            "kind": "mamba2", "heads": m.heads, "head_dim": m.head_dim, "state": m.state, "groups": m.groups,
            "conv": m.conv, "conv_bias": m.conv_bias, "gated_norm": m.gated_norm,
        }),
        Mamba::Three(m) => json!({
            "kind": "mamba3", "heads": m.heads, "head_dim": m.head_dim, "state": m.state, "groups": m.groups,
            "angles": m.angles,
        }),
    }
}

/// What the reference model does not have, by name; empty when it builds the recipe whole.
pub(super) fn unsupported(recipe: &Recipe) -> Vec<String> {
    memory::ledger::fsdp2::missing(recipe).into_iter().map(str::to_string).collect()
}

/// The same as findings: seams where a model of one's own must stand.
pub(super) fn findings(recipe: &Recipe, rule: diag::RuleId) -> Vec<Finding> {
    let refuse = |name: String| {
        let message = format!("the reference model has no {name}; a model of your own with the plan's paths must");
        Finding::error(rule, Blame::Engine, "model", message)
    };
    unsupported(recipe).into_iter().map(refuse).collect()
}
