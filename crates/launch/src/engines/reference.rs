//! The reference model that the FSDP2 and XLA lanes carry along: its sizes, and what it does not
//! have. A plan does not depend on it: a model of one's own whose parameters carry the same paths
//! takes its place.

use super::{engine_seams, lane_of, storage_environment};
use crate::emission::{Argument, Emission, File, Starter};
use crate::identity::Identity;
use crate::job::Job;
use crate::record::hash;
use diag::{Blame, Finding, RuleId};
use layout::{Engine, OwnershipTable};
use recipe::kinds::Norm;
use recipe::kinds::attention::{Attention, AttentionKind};
use recipe::kinds::mamba::Mamba;
use recipe::kinds::moe::Moe;
use recipe::pattern::Block;
use recipe::{Mixer, Multipliers, Optimizer, Recipe, Rope};
use serde_json::{Value, json};
use std::collections::BTreeSet;

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
        "rope": recipe.positions.rope().and_then(|rope| Some(rotary(rope, head_dim(recipe)?))),
        "multipliers": multipliers(&recipe.multipliers),
        "engram": recipe.features.engram().map(|engram| json!({
            "layers": engram.layers, "rows": engram.rows, "dim": engram.dim, "heads": engram.heads,
            "ngrams": engram.ngrams, "conv": engram.conv,
        })),
        "mod": recipe.features.depths().map(|depths| json!({"layers": depths.layers, "capacity": depths.capacity})),
        "mhc": recipe.features.mhc().map(|mhc| json!({"streams": mhc.streams, "sinkhorn": mhc.sinkhorn})),
        "layers": layers,
        "attention": recipe.attention().and_then(|a| attention(&a)),
        "moe": recipe.moe.as_ref().map(moe),
        "mamba": recipe.mamba.as_ref().map(mamba),
        "recurrent": recipe.recurrent.as_ref().map(|r| json!({
            "heads": r.heads, "qk_heads": r.qk_heads, "key_dim": r.key_dim, "value_dim": r.value_dim,
            "conv": r.conv, "conv_bias": r.conv_bias, "gradient_clip": r.gradient_clip,
        })),
        "mlp": recipe.mlp.as_ref().map(|m| json!({"ffn": m.ffn, "activation": m.activation.name()})),
        "shared": recipe.shared.as_ref().map(|s| json!({
            "blocks": s.blocks, "heads": s.heads, "kv_heads": s.kv_heads, "head_dim": s.head_dim, "ffn": s.ffn,
            "activation": s.activation.name(), "rank": s.rank,
            "adapted": s.adapted(recipe.hidden).iter().map(|(name, ..)| *name).collect::<Vec<_>>(),
            "rope": recipe.positions.rope().map(|rope| rotary(rope, s.head_dim)),
        })),
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

fn head_dim(recipe: &Recipe) -> Option<u64> {
    match recipe.attention()?.kind {
        AttentionKind::Gqa { head_dim, .. } => Some(head_dim),
        AttentionKind::Mla(_) => None,
    }
}

/// One rate a pair of columns that turn, with the recipe's scaling in it, and YaRN's factor on them.
fn rotary(rope: &Rope, head_dim: u64) -> Value {
    let width = rope.width(head_dim) as usize;
    let plain = |pair: usize| rope.theta.powf(-2.0 * pair as f64 / width as f64);
    let rates = match &rope.scaling {
        Some(scaling) => scaling.rates(rope.theta, width),
        None => (0..width / 2).map(plain).collect(),
    };
    json!({"rates": rates, "amplitude": rope.amplitude()})
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

/// What steps the tensors. AdamW's moments as GPT-3 had them; Muon's momentum and steps as its authors
/// published them.
pub(super) fn optimizers(job: &Job) -> Value {
    let run = &job.policy.run;
    json!({
        "adamw": {"lr": run.learning_rate, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": run.weight_decay},
        "muon": {
            "lr": run.learning_rate, "momentum": 0.95, "weight_decay": run.weight_decay, "newton_schulz_steps": 5,
        },
    })
}

/// The optimizers the programs have; a tensor under another is refused under the engine's `rule`.
pub(super) fn refused_optimizers(table: &OwnershipTable, rule: RuleId) -> Vec<Finding> {
    let others: BTreeSet<&str> = table
        .rows
        .iter()
        .filter(|row| !row.tensor.is_frozen)
        .map(|row| row.tensor.optimizer)
        .filter(|o| !matches!(o, Optimizer::AdamW | Optimizer::Muon))
        .map(|o| o.name())
        .collect();
    let refuse = |name: &str| {
        let message = format!("the lane has AdamW and Muon, not {name}");
        Finding::error(rule, Blame::Engine, "optimizer", message).hint("--optimizer adamw, or --optimizer muon+adamw")
    };
    others.into_iter().map(refuse).collect()
}

/// How the programs train and where they keep things: the policy's part of what they read.
/// `identity` goes into every checkpoint, and one of another is not loaded; of it, the layout may differ.
pub(super) fn run(job: &Job) -> Value {
    let (run, storage) = (&job.policy.run, &job.policy.storage);
    json!({
        "identity": {
            "recipe": job.source.name,
            "recipe_sha256": hash(job.source.to_toml()),
            "mode": job.layout.mode.map(|mode| mode.name()),
            "features": Identity::of(job).features,
            "layout": job.layout.words(job.recipe.uses(Mixer::Moe)).join(" "),
        },
        "steps": run.steps,
        "learning_rate": run.learning_rate,
        "least_learning_rate": run.least_learning_rate,
        "warmup_steps": run.warmup_steps,
        "decay": run.decay.name(),
        "decay_steps": run.decaying(),
        "clip": run.clip,
        "seed": run.seed,
        "log_every": run.log_every,
        "data": job.policy.data.paths,
        "checkpoints": job.checkpoints(),
        "save_every": run.save_every,
        "keep_last": storage.keep_last,
    })
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
    pub assets: Vec<(&'static str, &'static str)>,
    pub arguments: Vec<Argument>,
}

impl Program {
    /// The program as it is handed over, with what the model does not have as seams.
    pub fn emission(self, job: &Job) -> Result<Emission, Vec<Finding>> {
        let missing = missing(job.recipe, self.rule);
        let seams = job.seams.iter().cloned().chain(engine_seams(job, missing)?).collect();
        let assets = self.assets.into_iter().map(|(path, contents)| File::new(path, contents));
        Ok(Emission {
            engine: self.engine,
            lane: lane_of(job),
            mode: job.layout.mode,
            starter: self.starter,
            checkout: None,
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
