//! The reference model that the FSDP2 and XLA lanes carry along: its sizes, and what it does not
//! have. A plan does not depend on it: a model of one's own whose parameters carry the same paths
//! takes its place.

use super::{engine_seams, lane_of, storage_environment};
use crate::emission::{Argument, Emission, File, Starter};
use crate::job::Job;
use diag::{Blame, Finding, RuleId};
use layout::Engine;
use recipe::kinds::Norm;
use recipe::kinds::attention::{Attention, AttentionKind};
use recipe::kinds::mamba::Mamba;
use recipe::kinds::moe::Moe;
use recipe::pattern::Block;
use recipe::{Mixer, Recipe};
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
    let theta = recipe.positions.rope().map(|rope| rope.theta);
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
        "unsupported": ledger::fsdp2::missing(recipe),
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

/// How far a balancing bias moves in a step: Megatron-Core's default (`moe_router_bias_update_rate`), and
/// what DeepSeek-V3 trained with (arXiv 2412.19437, section 4.2).
const BIAS_UPDATE_RATE: f64 = 1e-3;

fn moe(moe: &Moe) -> Value {
    let shared = moe.shared.as_ref().map(|s| json!({"ffn": s.ffn, "activation": s.activation.name()}));
    json!({
        "experts": moe.experts, "top_k": moe.top_k, "ffn": moe.ffn, "activation": moe.activation.name(),
        "score": moe.router.score.name(), "shared": shared,
        "aux_loss": moe.router.aux_loss, "expert_bias": moe.router.expert_bias.then_some(BIAS_UPDATE_RATE),
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

/// A program that carries the model along: what one engine starts it with.
pub(super) struct Program {
    pub engine: Engine,
    pub starter: Starter,
    /// The rule that names what the model lacks.
    pub rule: RuleId,
    /// What the program reads.
    pub data: File,
    /// Files that are emitted as they are.
    pub assets: &'static [(&'static str, &'static str)],
    pub arguments: Vec<Argument>,
}

impl Program {
    /// The program as it is handed over, with what the model does not have as seams.
    pub fn emission(self, job: &Job) -> Result<Emission, Vec<Finding>> {
        let missing = missing(job.recipe, self.rule);
        let seams = job.seams.iter().cloned().chain(engine_seams(job, missing)?).collect();
        let assets = self.assets.iter().map(|(path, contents)| File::new(*path, *contents));
        Ok(Emission {
            engine: self.engine,
            lane: lane_of(job),
            mode: job.layout.mode,
            starter: self.starter,
            entry: vec!["train.py".to_string()],
            arguments: self.arguments,
            on_command_line: true,
            environment: storage_environment(job),
            files: std::iter::once(self.data).chain(assets).collect(),
            seams,
        })
    }
}

/// What the model does not have: seams where a model of one's own must stand.
fn missing(recipe: &Recipe, rule: RuleId) -> Vec<Finding> {
    let refuse = |name: &str| {
        let message = format!("the reference model has no {name}; a model of your own with the plan's paths must");
        Finding::error(rule, Blame::Missing, "model", message)
    };
    ledger::fsdp2::missing(recipe).into_iter().map(refuse).collect()
}
