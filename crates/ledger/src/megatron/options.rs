//! What Megatron is told besides recipe and layout.

use recipe::{Dtype, Recipe};

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
    /// When gradients are reduced.
    pub reduction: Reduction,
    /// Steps to replay; the second sees the optimizer's moments, later ones fragmentation.
    pub steps: u32,
    /// How routed tokens fall on ranks.
    pub routing: Routing,
    /// How many of a step's microbatches are replayed.
    pub microbatches: Microbatches,
}

impl MegatronOptions {
    /// Megatron's own defaults under a recipe's formats.
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
            steps: 3,
            routing: Routing::Random { seed: 0 },
            microbatches: Microbatches::Steady,
        }
    }
}
