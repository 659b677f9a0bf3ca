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
use recipe::{Mixer, Multipliers, Recipe, Rope, Scaling};
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
    json!({
        "hidden": recipe.hidden,
        "vocab": vocab,
        "tied": recipe.tied,
        "norm": if recipe.norm == Norm::LayerNorm { "layernorm" } else { "rmsnorm" },
        "norm_eps": recipe.norm_eps,
        "init_std": recipe.init_std,
        "rope": recipe.positions.rope().and_then(|rope| rotary(rope, recipe)),
        "multipliers": multipliers(&recipe.multipliers),
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
    let router = &moe.router;
    json!({
        "experts": moe.experts, "top_k": moe.top_k, "ffn": moe.ffn, "activation": moe.activation.name(),
        "shared": shared,
        "router": {
            "score": router.score.name(), "normalize": router.normalize, "scaling": router.scaling,
            "groups": router.groups, "group_top_k": router.group_top_k, "group_score": router.group_score.name(),
            "aux_loss": router.aux_loss, "aux_loss_over": router.aux_loss_over.name(), "z_loss": router.z_loss,
            "bias_rate": router.expert_bias.then(|| router.bias_update_rate.unwrap_or(BIAS_UPDATE_RATE)),
        },
    })
}

/// One rate a pair of columns that turn, with the recipe's scaling in it, and YaRN's factor on them.
fn rotary(rope: &Rope, recipe: &Recipe) -> Option<Value> {
    let AttentionKind::Gqa { head_dim, .. } = recipe.attention()?.kind else { return None };
    let width = rope.width(head_dim) as usize;
    let plain = |pair: usize| rope.theta.powf(-2.0 * pair as f64 / width as f64);
    let rates = match &rope.scaling {
        Some(scaling) => scaling.rates(rope.theta, width),
        None => (0..width / 2).map(plain).collect(),
    };
    let amplitude = match &rope.scaling {
        Some(Scaling::Yarn(yarn)) => yarn.amplitude(),
        _ => 1.0,
    };
    Some(json!({"rates": rates, "amplitude": amplitude}))
}

fn multipliers(by: &Multipliers) -> Value {
    json!({
        "embedding": by.embedding, "residual": by.residual, "attention": by.attention, "logits": by.logits,
        "key": by.key, "attention_in": by.attention_in, "attention_out": by.attention_out,
        "ssm_in": by.ssm_in, "ssm_out": by.ssm_out, "ssm": by.ssm, "mlp": by.mlp,
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
        // Blocks that Megatron needs a custom mixer for are blocks of the model here.
        let kept = job.seams.iter().filter(|seam| !recipe::CUSTOM_MIXERS.contains(&seam.name)).cloned();
        let seams = kept.chain(engine_seams(job, missing)?).collect();
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
