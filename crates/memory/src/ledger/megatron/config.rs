//! Recipe, layout and options as the sizes one rank works with, or by name what is not modelled.

use super::options::{CrossEntropy, Dispatcher, Fp8Recipe, Reduction, Routing};
use super::{Job, MegatronOptions};
use crate::Unmodelled;
use crate::tape::{BF16, FP32};
use layout::request::RecomputeModule;
use layout::{Axis, Layout, Mesh, Order, Recompute, Schedule, ZeroStage};
use recipe::kinds::attention::{Attention, AttentionKind, QkNorm};
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::moe::{Moe, ScoreFunction};
use recipe::kinds::{Activation, Norm};
use recipe::{Dtype, Layer, Mixer, Optimizer, Positions, Recipe};

/// Sizes of the attention of one rank.
#[derive(Clone, Debug)]
pub(super) struct AttentionSizes {
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub qk_norm: bool,
    pub mla: Option<recipe::kinds::mla::Mla>,
}

/// A feed-forward block's inner width over all ranks, and whether a second projection gates it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feed {
    pub ffn: u64,
    pub is_gated: bool,
}

/// Sizes of expert layers.
#[derive(Clone, Debug)]
pub(super) struct MoeSizes {
    pub experts: u64,
    pub top_k: u64,
    pub feed: Feed,
    pub shared: Option<Feed>,
    pub local_experts: u64,
    pub score: ScoreFunction,
    pub has_expert_bias: bool,
    pub has_balance_loss: bool,
    /// Bytes of a routing score.
    pub score_width: u64,
    pub capacity_factor: Option<f64>,
    pub dispatcher: Dispatcher,
    pub routing: Routing,
    /// Whether experts have gradient buffers and a data-parallel group of their own.
    pub own_buffers: bool,
}

/// What is computed again.
#[derive(Clone, Debug)]
pub(super) struct Recomputed {
    pub whole_layers: bool,
    modules: Vec<RecomputeModule>,
}

impl Recomputed {
    pub fn has(&self, module: RecomputeModule) -> bool {
        self.modules.contains(&module)
    }
}

/// A chunk of depth this rank holds.
#[derive(Clone, Debug)]
pub(super) struct ChunkLayers {
    pub layers: Vec<(u32, Vec<Mixer>)>,
    pub is_first: bool,
    pub is_last: bool,
}

/// All sizes of one rank.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub hidden: u64,
    /// Rows of the vocabulary on this rank.
    pub vocab: u64,
    pub is_tied: bool,
    pub rotates: bool,
    pub tp: u64,
    pub sp: bool,
    pub cp: u64,
    pub cp_rank: u64,
    pub pp: u64,
    pub stage: u64,
    pub ep: u64,
    pub etp: u64,
    pub dp: u64,
    /// Data-parallel group of dense parameters, context parts included, and this rank's place.
    pub dense_group: (u64, u64),
    /// The same of experts with buffers of their own.
    pub expert_group: (u64, u64),
    pub micro_batch: u64,
    pub microbatches: u64,
    /// Tokens of a whole sequence, and of this rank's part of it.
    pub full_sequence: u64,
    pub sequence: u64,
    /// Tokens of a microbatch inside tensor-parallel regions.
    pub tokens: u64,
    /// Tokens of a microbatch between them.
    pub local_tokens: u64,
    pub attention: Option<AttentionSizes>,
    pub mlp: Option<Feed>,
    pub moe: Option<MoeSizes>,
    pub mamba: Option<Mamba2>,
    pub recompute: Recomputed,
    pub shards_optimizer: bool,
    pub grad_width: u64,
    pub reduction: Reduction,
    pub cross_entropy: CrossEntropy,
    pub fp8: Option<Fp8Recipe>,
    pub chunks: Vec<ChunkLayers>,
}

impl Config {
    pub fn new(job: &Job) -> Result<Config, Unmodelled> {
        let Job { recipe, layout, options, .. } = *job;
        refuse_features(recipe)?;
        refuse_layout(layout)?;
        let mesh = Mesh::new(layout, Order::Megatron, recipe.uses(Mixer::Moe))
            .map_err(|finding| Unmodelled::new("this mesh", finding.message))?;
        let at = mesh.coordinates(job.rank);
        let on = |axis| at.on(axis);
        let cp = layout.cp.get();
        let sequence = layout.sequence / cp;
        let tokens = sequence * layout.micro_batch;
        Ok(Config {
            hidden: recipe.hidden,
            vocab: layout.padded_vocab(recipe.vocab) / layout.tp.get(),
            is_tied: recipe.tied,
            rotates: matches!(recipe.positions, Positions::Rope { .. }),
            tp: layout.tp.get(),
            sp: layout.sp && layout.tp.splits(),
            cp,
            cp_rank: on(Axis::Cp),
            pp: layout.pp.get(),
            stage: on(Axis::Pp),
            ep: layout.ep.get(),
            etp: layout.etp.get(),
            dp: layout.dp.get(),
            dense_group: (layout.dense_shards(), on(Axis::Dp) * cp + on(Axis::Cp)),
            expert_group: (layout.edp.get(), on(Axis::Edp)),
            micro_batch: layout.micro_batch,
            microbatches: layout.microbatches,
            full_sequence: layout.sequence,
            sequence,
            tokens,
            local_tokens: layout.tokens_per_microbatch_per_rank(),
            attention: recipe.attention().map(|a| attention(&a, recipe)).transpose()?,
            mlp: recipe.mlp.as_ref().map(|mlp| feed(mlp.ffn, mlp.activation, mlp.bias, "mlp")).transpose()?,
            moe: recipe.moe.as_ref().map(|moe| experts(moe, layout, options)).transpose()?,
            mamba: mamba(recipe)?,
            recompute: recomputed(&layout.recompute)?,
            shards_optimizer: layout.zero == ZeroStage::One,
            grad_width: width(options.gradients, "gradients")?,
            reduction: options.reduction,
            cross_entropy: options.cross_entropy,
            fp8: options.fp8,
            chunks: chunks(job, on(Axis::Pp) as usize)?,
        })
    }

    /// Attention's sizes; a block of attention is only built when there are some.
    pub fn attention(&self) -> &AttentionSizes {
        self.attention.as_ref().expect("a valid recipe with attention blocks has an attention table")
    }

    pub fn moe(&self) -> &MoeSizes {
        self.moe.as_ref().expect("a valid recipe with expert blocks has a moe table")
    }

    pub fn mlp(&self) -> Feed {
        self.mlp.expect("a valid recipe with dense blocks has an mlp table")
    }

    pub fn mamba(&self) -> &Mamba2 {
        self.mamba.as_ref().expect("a valid recipe with Mamba blocks has a mamba table")
    }

    pub fn recomputes(&self, module: RecomputeModule) -> bool {
        self.recompute.has(module)
    }
}

fn width(dtype: Dtype, what: &str) -> Result<u64, Unmodelled> {
    match dtype {
        Dtype::Fp32 => Ok(FP32),
        Dtype::Bf16 | Dtype::Fp16 => Ok(BF16),
        other => Err(Unmodelled::new(format!("{} {what}", other.name()), "Megatron keeps them in fp32 or bf16")),
    }
}

fn refuse_features(recipe: &Recipe) -> Result<(), Unmodelled> {
    let refuse = |what: &str, why: &str| Err(Unmodelled::new(what, why));
    if recipe.features.mtp().is_some() {
        return refuse("multi-token prediction", "the prediction suffix is not replayed yet");
    }
    if recipe.features.dsa().is_some() {
        return refuse("sparse attention", "the indexer's scores are not replayed yet");
    }
    if recipe.features.sides().next().is_some() {
        return refuse("side embeddings", "Megatron has none, so there is no code to follow");
    }
    if recipe.norm != Norm::RmsNorm {
        return refuse("layernorm", "its mean and shift are not replayed yet");
    }
    if matches!(recipe.positions, Positions::Learned { .. }) {
        return refuse("learned positions", "the position table's backward is not replayed yet");
    }
    if recipe.precision.weights != Dtype::Bf16 {
        return refuse("weights other than bf16", "parameter buffers of other formats are not replayed yet");
    }
    if recipe.tensors().iter().any(|tensor| tensor.optimizer != Optimizer::AdamW) {
        return refuse("optimizers other than AdamW", "Muon's layer-wise state is not replayed yet");
    }
    Ok(())
}

fn refuse_layout(layout: &Layout) -> Result<(), Unmodelled> {
    if !matches!(layout.schedule, Schedule::OneF1b | Schedule::Interleaved) {
        return Err(Unmodelled::new(format!("schedule {}", layout.schedule), "Megatron-Core does not have it"));
    }
    if layout.zero > ZeroStage::One {
        let what = format!("zero {} under Megatron-Core", layout.zero);
        return Err(Unmodelled::new(what, "its distributed optimizer shards optimizer state only"));
    }
    Ok(())
}

fn attention(attention: &Attention, recipe: &Recipe) -> Result<AttentionSizes, Unmodelled> {
    let refuse = |what: &str| Err(Unmodelled::new(what, "what it saves is not replayed yet"));
    if attention.qkv_bias || attention.out_bias {
        return refuse("attention biases");
    }
    if attention.sinks || attention.output_gate {
        return refuse("attention sinks and output gates");
    }
    let heads = attention.heads;
    let sizes = match &attention.kind {
        AttentionKind::Gqa { kv_heads, head_dim } => AttentionSizes {
            heads,
            kv_heads: *kv_heads,
            head_dim: *head_dim,
            qk_norm: attention.qk_norm == QkNorm::Head,
            mla: None,
        },
        // Without `--kv-channels` Megatron takes hidden / heads for what latent attention replaces.
        AttentionKind::Mla(mla) => AttentionSizes {
            heads,
            kv_heads: heads,
            head_dim: recipe.hidden / heads,
            qk_norm: false,
            mla: Some(mla.clone()),
        },
    };
    if attention.qk_norm == QkNorm::Full {
        return refuse("a norm over all queries");
    }
    if sizes.mla.as_ref().is_some_and(|mla| mla.bias) {
        return refuse("latent biases");
    }
    Ok(sizes)
}

fn feed(ffn: u64, activation: Activation, has_bias: bool, what: &str) -> Result<Feed, Unmodelled> {
    let is_gated = match activation {
        Activation::SwiGlu => true,
        Activation::Relu2 => false,
        other => {
            let what = format!("{} in {what}", other.name());
            return Err(Unmodelled::new(what, "what its kernel saves is not replayed yet"));
        }
    };
    if has_bias {
        return Err(Unmodelled::new(format!("biases in {what}"), "what they save is not replayed yet"));
    }
    Ok(Feed { ffn, is_gated })
}

fn experts(moe: &Moe, layout: &Layout, options: &MegatronOptions) -> Result<MoeSizes, Unmodelled> {
    let refuse = |what: &str| Err(Unmodelled::new(what, "what it saves is not replayed yet"));
    if moe.latent.is_some() {
        return refuse("a latent space around experts");
    }
    if moe.router.bias {
        return refuse("a router bias");
    }
    if moe.shared.as_ref().is_some_and(|shared| shared.gate) {
        return refuse("a gated shared expert");
    }
    let shared = moe.shared.as_ref().map(|s| feed(s.ffn, s.activation, s.bias, "the shared expert"));
    Ok(MoeSizes {
        experts: moe.experts,
        top_k: moe.top_k,
        feed: feed(moe.ffn, moe.activation, moe.bias, "experts")?,
        shared: shared.transpose()?,
        local_experts: moe.experts / layout.ep.get(),
        score: moe.router.score,
        has_expert_bias: moe.router.expert_bias,
        has_balance_loss: moe.router.aux_loss.is_some(),
        score_width: width(options.router, "routing scores")?,
        capacity_factor: options.capacity_factor,
        dispatcher: options.dispatcher,
        routing: options.routing,
        own_buffers: layout.ep.splits() || layout.etp != layout.tp,
    })
}

fn mamba(recipe: &Recipe) -> Result<Option<Mamba2>, Unmodelled> {
    let refuse = |what: &str, why: &str| Err(Unmodelled::new(what, why));
    match &recipe.mamba {
        Some(Mamba::Two(mamba)) if mamba.in_bias || mamba.out_bias || !mamba.conv_bias || !mamba.gated_norm => {
            refuse("Mamba-2 with other biases or without its gated norm", "Megatron's mixer is built one way only")
        }
        Some(Mamba::Two(mamba)) => Ok(Some(mamba.clone())),
        Some(other) if recipe.uses(Mixer::Mamba) => {
            refuse(other.kind().name(), "Megatron-Core's `M` is Mamba-2, so there is no code to follow")
        }
        _ => Ok(None),
    }
}

fn recomputed(recompute: &Recompute) -> Result<Recomputed, Unmodelled> {
    let modules = match recompute {
        Recompute::Selective(modules) => modules.clone(),
        _ => Vec::new(),
    };
    if modules.contains(&RecomputeModule::GdnNormOut) {
        return Err(Unmodelled::new("recompute of gdn_norm_out", "gated delta nets are not replayed yet"));
    }
    Ok(Recomputed { whole_layers: *recompute == Recompute::Full, modules })
}

fn chunks(job: &Job, stage: usize) -> Result<Vec<ChunkLayers>, Unmodelled> {
    let last = job.stages.chunks.len() - 1;
    let held = job.stages.by_stage[stage].iter().map(|&index| &job.stages.chunks[index]);
    held.map(|chunk| {
        let layers = chunk.layers.clone().map(|index| Ok((index as u32, mixers(&job.recipe.layers[index], index)?)));
        Ok(ChunkLayers {
            layers: layers.collect::<Result<_, Unmodelled>>()?,
            is_first: chunk.index == 0,
            is_last: chunk.index == last,
        })
    })
    .collect()
}

/// The mixers of a layer: one block as in a hybrid stack, or attention and then a feed-forward
/// block as in a transformer layer.
fn mixers(layer: &Layer, index: usize) -> Result<Vec<Mixer>, Unmodelled> {
    let refuse = |what: String, why: &str| Err(Unmodelled::new(what, why));
    if layer.blocks.iter().any(|block| block.mixers.len() > 1) {
        return refuse(format!("layer {index}: parallel mixers"), "Megatron-Core has no such block");
    }
    let mixers: Vec<Mixer> = layer.mixers().collect();
    for mixer in &mixers {
        match mixer {
            Mixer::Recurrent => {
                return refuse(format!("layer {index}: a recurrent mixer"), "Megatron-Core has no such mixer");
            }
            Mixer::GatedDelta => {
                return refuse(format!("layer {index}: a gated delta net"), "its chunked scan is not replayed yet");
            }
            Mixer::Attention | Mixer::Moe | Mixer::Mamba | Mixer::Mlp => {}
        }
    }
    match mixers[..] {
        [_] | [Mixer::Attention, Mixer::Mlp | Mixer::Moe] => Ok(mixers),
        _ => refuse(format!("layer {index}: `{layer}`"), "a Megatron-Core layer is one block, or attention and an MLP"),
    }
}
