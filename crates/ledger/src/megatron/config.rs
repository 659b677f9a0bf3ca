//! Recipe, layout and options as the sizes one rank works with, or by name what is not modelled.

use super::Job;
use super::options::{CrossEntropy, Dispatcher, Fp8Recipe, LayerWise, MegatronOptions, Routing, Trainer};
use super::supported::{self, Sharding};
use layout::order::Pipeline;
use layout::request::RecomputeModule;
use layout::{Axis, Mesh, Order};
use recipe::kinds::gated_delta::GatedDelta;
use recipe::kinds::m2rnn::M2rnn;
use recipe::kinds::mamba2::Mamba2;
use recipe::kinds::mamba3::Mamba3;
use recipe::kinds::moe::ScoreFunction;
use recipe::kinds::side::SideEmbedding;
use recipe::kinds::{Activation, Norm};
use recipe::precision::OptimizerPolicy;
use recipe::{Mixer, Optimizer, Positions, Role};
use replay::Unmodelled;

/// Sizes of the attention of one rank.
#[derive(Clone, Debug)]
pub(super) struct AttentionSizes {
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub qk_norm: bool,
    pub has_in_bias: bool,
    pub has_out_bias: bool,
    /// Whether every head has a sink.
    pub has_sinks: bool,
    /// Whether a gate as wide as the queries multiplies the output.
    pub has_gate: bool,
    pub mla: Option<recipe::kinds::mla::Mla>,
}

/// A feed-forward block's inner width over all ranks, and what stands between its projections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feed {
    pub ffn: u64,
    pub activation: Activation,
    pub has_bias: bool,
}

/// Sizes of expert layers.
#[derive(Clone, Debug)]
pub(super) struct MoeSizes {
    pub experts: u64,
    pub top_k: u64,
    pub feed: Feed,
    pub shared: Option<Feed>,
    /// Whether a scalar gate a token weighs the shared expert.
    pub gates_shared: bool,
    /// Width experts work in, when it is not the hidden width.
    pub latent: Option<u64>,
    pub local_experts: u64,
    pub score: ScoreFunction,
    /// Whether its logits have a bias that is trained.
    pub has_router_bias: bool,
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
    pub modules: Vec<RecomputeModule>,
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

/// The sparse indexer, and the layers it stands on.
#[derive(Clone, Debug)]
pub(super) struct Indexer {
    pub heads: u64,
    pub head_dim: u64,
    pub top_k: u64,
    /// Layers that attend to chosen tokens.
    pub sparse: Vec<u32>,
    /// Those of them that choose.
    pub layers: Vec<u32>,
    /// Whether other layers read what these choose.
    pub is_shared: bool,
}

fn microbatches(job: &Job, stage: usize) -> u64 {
    let Job { recipe, layout, stages, rank, options } = *job;
    super::microbatches_walked(options, &crate::RankJob { recipe, layout, stages, rank }, stage)
}

/// The prediction suffix: one stack a depth, or one for all.
#[derive(Clone, Debug)]
pub(super) struct Suffix {
    pub depth: u32,
    pub shared: bool,
    pub mixers: Vec<Mixer>,
}

/// All sizes of one rank.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub hidden: u64,
    /// Rows of the vocabulary on this rank.
    pub vocab: u64,
    pub is_tied: bool,
    pub rotates: bool,
    /// Rows of the learned position table, when there is one.
    pub positions: Option<u64>,
    pub norm: Norm,
    pub optimizer: OptimizerPolicy,
    /// The order of the microbatches that are replayed.
    pub order: Pipeline,
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
    /// Microbatches that are replayed, which may be fewer than a step has.
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
    pub mamba3: Option<Mamba3>,
    pub recurrent: Option<M2rnn>,
    pub gated_delta: Option<GatedDelta>,
    pub sides: Vec<SideEmbedding>,
    pub suffix: Option<Suffix>,
    pub indexer: Option<Indexer>,
    pub recompute: Recomputed,
    pub sharding: Sharding,
    pub grad_width: u64,
    /// What Megatron was told, for switches that one place reads.
    pub told: MegatronOptions,
    pub cross_entropy: CrossEntropy,
    pub fp8: Option<Fp8Recipe>,
    /// The recipe weights of projections are kept in, when they are not in bf16.
    pub quantized_weights: Option<Fp8Recipe>,
    pub chunks: Vec<ChunkLayers>,
}

impl Config {
    pub fn new(job: &Job) -> Result<Config, Unmodelled> {
        let Job { recipe, layout, options, .. } = *job;
        let skew = match options.routing {
            Routing::Overloaded { factor } => factor,
            Routing::Balanced | Routing::Random { .. } => 1.0,
        };
        crate::countable(recipe, layout, skew)?;
        supported::features(recipe)?;
        supported::options(recipe, layout, options)?;
        let mesh = Mesh::new(layout, Order::Megatron, recipe.uses(Mixer::Moe))
            .map_err(|finding| Unmodelled::new("this mesh", finding.message))?;
        let at = mesh.coordinates(job.rank);
        let on = |axis| at.on(axis);
        let stage = on(Axis::Pp) as usize;
        let cp = layout.cp.get();
        let sequence = layout.sequence / cp;
        let positions = match recipe.positions {
            Positions::Learned { count } => Some(count),
            _ => None,
        };
        Ok(Config {
            hidden: recipe.hidden,
            vocab: layout.padded_vocab(recipe.vocab) / layout.tp.get(),
            is_tied: recipe.tied,
            rotates: matches!(recipe.positions, Positions::Rope(_)),
            positions,
            norm: recipe.norm,
            optimizer: recipe.optimizer.clone(),
            order: supported::order(layout, microbatches(job, stage))?,
            tp: layout.tp.get(),
            sp: layout.sp && layout.tp.splits(),
            cp,
            cp_rank: on(Axis::Cp),
            pp: layout.pp.get(),
            stage: stage as u64,
            ep: layout.ep.get(),
            etp: layout.etp.get(),
            dp: layout.dp.get(),
            dense_group: (layout.dense_shards(), on(Axis::Dp) * cp + on(Axis::Cp)),
            expert_group: (layout.edp.get(), on(Axis::Edp)),
            micro_batch: layout.micro_batch,
            microbatches: microbatches(job, stage),
            full_sequence: layout.sequence,
            sequence,
            tokens: sequence * layout.micro_batch,
            local_tokens: layout.tokens_per_microbatch_per_rank(),
            attention: recipe.attention().map(|a| supported::attention(&a, recipe)).transpose()?,
            mlp: recipe.mlp.as_ref().map(supported::mlp).transpose()?,
            moe: recipe.moe.as_ref().map(|moe| supported::experts(moe, layout, options)).transpose()?,
            mamba: supported::mamba2(recipe)?,
            mamba3: supported::mamba3(recipe, layout)?,
            recurrent: supported::recurrent(recipe, layout)?,
            gated_delta: supported::gated_delta(recipe, layout)?,
            sides: supported::sides(recipe)?,
            suffix: supported::suffix(recipe)?,
            indexer: supported::indexer(recipe, layout)?,
            recompute: supported::recomputed(&layout.recompute)?,
            sharding: supported::sharding(recipe, layout)?,
            grad_width: supported::width(options.gradients, "gradients")?,
            told: options.clone(),
            cross_entropy: options.cross_entropy,
            fp8: options.fp8,
            quantized_weights: supported::quantized_weights(recipe, layout, options)?,
            chunks: supported::chunks(job, stage)?,
        })
    }

    /// Whether Megatron's own trainer runs.
    pub fn is_trained(&self) -> bool {
        self.told.trainer == Trainer::Pretrain
    }

    /// Whether whole tensors are dealt out to data-parallel ranks, weights staying where they are.
    pub fn deals_tensors(&self) -> bool {
        let has_muon =
            [Role::Matrix, Role::Expert].iter().any(|role| self.optimizer.of(*role, true) == Optimizer::Muon);
        self.sharding == Sharding::Optimizer && self.told.layer_wise == LayerWise::PingPong && has_muon
    }

    /// Whether a block's output, its bias and the residual are added in one kernel: not beside biases of experts
    /// (`--no-bias-dropout-fusion`).
    pub fn fuses_residual(&self) -> bool {
        !self.moe.as_ref().is_some_and(|moe| moe.feed.has_bias)
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

    pub fn recurrent(&self) -> &M2rnn {
        self.recurrent.as_ref().expect("a valid recipe with recurrent blocks has a recurrent table")
    }

    pub fn gated_delta(&self) -> &GatedDelta {
        self.gated_delta.as_ref().expect("a valid recipe with gated delta nets has their table")
    }

    /// Width experts work in.
    pub fn expert_hidden(&self) -> u64 {
        self.moe.as_ref().and_then(|moe| moe.latent).unwrap_or(self.hidden)
    }

    pub fn recomputes(&self, module: RecomputeModule) -> bool {
        self.recompute.has(module)
    }
}
