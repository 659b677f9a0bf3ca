//! What Megatron is told besides recipe and layout.

use layout::measured::Case;
use recipe::{Dtype, Recipe};
use replay::Unmodelled;
use replay::allocator::Segments;

/// How the loss over the vocabulary is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossEntropy {
    /// `tensor_parallel/cross_entropy.py`, the default.
    Unfused,
    /// `--cross-entropy-loss-fusion` with the `native` implementation.
    FusedNative,
    /// `--cross-entropy-loss-fusion` with the `te` implementation, Transformer Engine's.
    FusedTransformerEngine,
}

/// How tokens reach their experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatcher {
    /// `MoEAlltoAllTokenDispatcher`.
    AllToAll,
    /// `MoEAllGatherTokenDispatcher`.
    AllGather,
}

/// Transformer Engine's scaling recipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Recipe {
    /// Scales from the past.
    Delayed,
    /// Scales from the tensor itself.
    Tensorwise,
    /// One scale for 128 elements.
    Blockwise,
    /// One E8M0 scale for 32 elements of fp8; Blackwell only.
    Mxfp8,
    /// One E4M3 scale for 16 elements of fp4, under one fp32 scale; Blackwell only. Megatron calls
    /// its switches `--fp4-format` and `--fp4-recipe`.
    Nvfp4,
}

/// How routed tokens fall on ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// Every rank receives its even share.
    Balanced,
    /// Each layer and microbatch draws around the even share, as a random router does.
    Random {
        /// Chooses the draw.
        seed: u64,
    },
    /// The rank's experts are hot: it receives a multiple of its even share.
    Overloaded {
        /// Tokens received, over the even share.
        factor: f64,
    },
}

/// When gradients are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// In one bucket, after backward.
    AtTheEnd,
    /// Bucket by bucket, during backward.
    Overlapped,
}

/// When updated weights are gathered from the ranks that stepped them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamGather {
    /// Behind the optimizer's step, Megatron's default.
    AtTheStep,
    /// Bucket by bucket in the next forward (`--overlap-param-gather`).
    Overlapped,
}

/// Who calls Megatron-Core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trainer {
    /// A loop of one's own over Megatron-Core, everything on one stream and every chunk in buckets:
    /// how the rows of `megatron_h200.jsonl` were taken.
    Core,
    /// `pretrain_gpt.py` and `pretrain_hybrid.py` over `megatron/training/training.py`, which is what
    /// a launch runs.
    Pretrain,
}

/// How whole tensors are shared out where Muon steps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerWise {
    /// `LayerWiseDistributedOptimizer.compute_full_param_layout`: weights move into buffers that are
    /// cut at tensors, and AdamW's part is shared out by bytes. The default of 0.19.2's source.
    Layout,
    /// `_shard_params_ping_pong` (`--no-use-layer-wise-param-layout`): weights stay where they are,
    /// and whole tensors, AdamW's too, are dealt out by size.
    PingPong,
}

/// Which kernel attention's core is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBackend {
    /// cuDNN's fused attention, which Transformer Engine prefers on Hopper.
    Fused,
    /// FlashAttention (`--attention-backend flash`).
    Flash,
    /// Products and a softmax of torch's (`--attention-backend unfused`).
    Unfused,
}

/// Formats of AdamW's state under `--use-precision-aware-optimizer`; without it all are fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateFormats {
    /// `--main-params-dtype`: fp32, or fp16 with a scale a shard.
    pub main_weights: Dtype,
    /// `--main-grads-dtype`: fp32, or bf16. Read where they lie in the gradient buffer.
    pub main_gradients: Dtype,
    /// `--exp-avg-dtype`: fp32, fp16, bf16 or fp8.
    pub exp_avg: Dtype,
    /// `--exp-avg-sq-dtype`: the same.
    pub exp_avg_sq: Dtype,
}

impl StateFormats {
    /// Megatron's defaults: fp32 throughout.
    pub const FP32: StateFormats = StateFormats {
        main_weights: Dtype::Fp32,
        main_gradients: Dtype::Fp32,
        exp_avg: Dtype::Fp32,
        exp_avg_sq: Dtype::Fp32,
    };
}

/// How many of a step's microbatches are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Microbatches {
    /// Until the steady state repeats itself, and those that drain it.
    Steady,
    /// All of them.
    All,
}

/// What Megatron is told besides recipe and layout.
#[derive(Clone, Debug, PartialEq)]
pub struct MegatronOptions {
    /// Format gradients are accumulated in.
    pub gradients: Dtype,
    /// How the loss is taken.
    pub cross_entropy: CrossEntropy,
    /// Scaling recipe, when products run in fp8.
    pub fp8: Option<Fp8Recipe>,
    /// Whether weights of Transformer Engine's projections are kept in the recipe's format alone
    /// (`--fp8-param-gather`; for NVFP4 `--fp4-param-gather`).
    pub fp8_param_gather: bool,
    /// How tokens reach their experts.
    pub dispatcher: Dispatcher,
    /// Tokens an expert accepts, over the balanced share, padded to it; dropless when none.
    pub capacity_factor: Option<f64>,
    /// Format of the router's scores.
    pub router: Dtype,
    /// When gradients are reduced. Megatron's default is [`Reduction::AtTheEnd`].
    pub reduction: Reduction,
    /// When updated weights are gathered. Megatron's default is [`ParamGather::AtTheStep`].
    pub param_gather: ParamGather,
    /// Elements after which a bucket is closed (`--ddp-bucket-size`). Without it, Megatron's default,
    /// 40 million or a million a data-parallel rank, whichever is more.
    pub bucket_size: Option<u64>,
    /// Who calls Megatron-Core.
    pub trainer: Trainer,
    /// How whole tensors are shared out where Muon steps them.
    pub layer_wise: LayerWise,
    /// Whether products add weight gradients to the buffer themselves. Megatron's default is yes
    /// (`--no-gradient-accumulation-fusion`), and it needs APEX.
    pub gradient_accumulation_fusion: bool,
    /// Whether one kernel rotates a tensor. Megatron's default is yes (`--no-rope-fusion`).
    pub rope_fusion: bool,
    /// Whether one kernel permutes tokens (`--moe-permute-fusion`). Megatron's default is no.
    pub permute_fusion: bool,
    /// Which kernel attention's core is. Megatron's default, `auto`, is cuDNN's on Hopper.
    pub attention: AttentionBackend,
    /// Formats of AdamW's state, under a precision-aware optimizer. Megatron's default is none.
    pub precision_aware: Option<StateFormats>,
    /// How torch asks the device for memory. Torch's default is [`Segments::Fixed`].
    pub segments: Segments,
    /// Steps to replay; the second sees the optimizer's moments, later ones fragmentation.
    pub steps: u32,
    /// How routed tokens fall on ranks.
    pub routing: Routing,
    /// How many of a step's microbatches are replayed.
    pub microbatches: Microbatches,
}

impl MegatronOptions {
    /// Megatron-Core by itself under a recipe's formats, without fusions and overlaps: what the rows
    /// of `megatron_h200.jsonl` were taken with.
    pub fn of(recipe: &Recipe) -> MegatronOptions {
        MegatronOptions {
            gradients: recipe.precision.gradients,
            cross_entropy: CrossEntropy::Unfused,
            fp8: None,
            fp8_param_gather: false,
            dispatcher: Dispatcher::AllToAll,
            capacity_factor: recipe.moe.as_ref().and_then(|moe| moe.capacity_factor),
            router: recipe.moe.as_ref().map_or(Dtype::Bf16, |moe| moe.router.dtype),
            reduction: Reduction::AtTheEnd,
            param_gather: ParamGather::AtTheStep,
            bucket_size: None,
            trainer: Trainer::Core,
            layer_wise: LayerWise::Layout,
            gradient_accumulation_fusion: false,
            rope_fusion: false,
            permute_fusion: false,
            attention: AttentionBackend::Fused,
            precision_aware: None,
            segments: Segments::Fixed,
            steps: 3,
            routing: Routing::Random { seed: 0 },
            microbatches: Microbatches::Steady,
        }
    }

    /// What a launch has: Megatron's own trainer with its fusions, and both overlaps.
    pub fn launched(recipe: &Recipe) -> MegatronOptions {
        MegatronOptions {
            reduction: Reduction::Overlapped,
            param_gather: ParamGather::Overlapped,
            trainer: Trainer::Pretrain,
            layer_wise: LayerWise::PingPong,
            gradient_accumulation_fusion: true,
            // The fused rotation of latent attention is for yarn only, and a launch switches it off.
            rope_fusion: !recipe.is_latent(),
            ..MegatronOptions::of(recipe)
        }
    }

    /// The options a measured row was run with; its router was forced to balance at random.
    pub fn measured(case: &Case) -> Result<MegatronOptions, Unmodelled> {
        let told = &case.told;
        let unknown = |what: &str| Err(Unmodelled::new(what, "the row names an option we do not know"));
        let fp8 = match told.fp8.as_deref() {
            None => None,
            Some("delayed") => Some(Fp8Recipe::Delayed),
            Some("tensorwise") => Some(Fp8Recipe::Tensorwise),
            Some("blockwise") => Some(Fp8Recipe::Blockwise),
            Some("mxfp8") => Some(Fp8Recipe::Mxfp8),
            Some("nvfp4") => Some(Fp8Recipe::Nvfp4),
            Some(other) => return unknown(other),
        };
        let dispatcher = match told.dispatcher.as_deref() {
            None | Some("alltoall") => Dispatcher::AllToAll,
            Some("allgather") => Dispatcher::AllGather,
            Some(other) => return unknown(other),
        };
        let width = |is_fp32| if is_fp32 { Dtype::Fp32 } else { Dtype::Bf16 };
        Ok(MegatronOptions {
            gradients: width(told.grad_fp32),
            cross_entropy: if told.ce_fusion { CrossEntropy::FusedNative } else { CrossEntropy::Unfused },
            fp8,
            dispatcher,
            capacity_factor: told.capacity,
            router: width(told.router_fp32),
            reduction: if told.overlap { Reduction::Overlapped } else { Reduction::AtTheEnd },
            steps: told.steps,
            ..MegatronOptions::of(&case.recipe)
        })
    }
}
