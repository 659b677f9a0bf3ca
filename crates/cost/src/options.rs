//! What the engine runs: kernels, formats, and what it lets overlap. First guesses by engine; a row
//! or a person who knows better says so.

use layout::Engine;
use recipe::{Dtype, Recipe};
use units::named;

named! {
    /// The format matrix products run in.
    pub enum Format {
        /// 16-bit brain float; 16-bit float runs at the same rate.
        Bf16 = "bf16",
        /// 8-bit float, one scale a tensor or a block.
        Fp8 = "fp8",
        /// 8-bit float with block scales of the hardware.
        Mxfp8 = "mxfp8",
        /// 4-bit float with block scales.
        Nvfp4 = "nvfp4",
    }
}

impl Format {
    /// Bytes of one factor's element.
    pub fn bytes(self) -> f64 {
        match self {
            Format::Bf16 => 2.0,
            Format::Fp8 | Format::Mxfp8 => 1.0,
            Format::Nvfp4 => 0.5,
        }
    }
}

named! {
    /// The kernel under attention.
    pub enum AttentionKernel {
        /// Batched products with a softmax between, which writes every score.
        Unfused = "unfused",
        /// FlashAttention of the first version, as in Triton or in llm-foundry's early runs.
        Flash1 = "flash1",
        /// FlashAttention-2, also what torch's own kernel is.
        Flash2 = "flash2",
        /// FlashAttention-3 or cuDNN's, which use the newer units of Hopper and Blackwell.
        Flash3 = "flash3",
    }
}

named! {
    /// How norms, activations and the like run.
    pub enum Elementwise {
        /// One kernel an operation.
        Eager = "eager",
        /// Hand-fused kernels where an engine has them.
        Fused = "fused",
        /// A compiler fuses neighbours.
        Compiled = "compiled",
    }
}

named! {
    /// How the loss runs.
    pub enum Loss {
        /// Over fp32 logits, operation by operation.
        Eager = "eager",
        /// One kernel that reads logits and writes their gradient.
        Fused = "fused",
    }
}

named! {
    /// How kernels are started.
    pub enum Launch {
        /// One by one from the host, which runs ahead of the device.
        Eager = "eager",
        /// One by one, the host waiting for each (`CUDA_LAUNCH_BLOCKING=1`).
        Blocking = "blocking",
        /// Recorded once and replayed.
        Graphs = "graphs",
    }
}

named! {
    /// How routed tokens travel.
    pub enum Dispatch {
        /// Every rank gathers all tokens.
        AllGather = "all-gather",
        /// One exchange of the library.
        AllToAll = "all-to-all",
        /// Fused kernels that send a token once to each node (DeepEP).
        DeepEp = "deep-ep",
    }
}

named! {
    /// How gradients of weights are summed over microbatches.
    pub enum Accumulate {
        /// The product adds into an fp32 buffer (Megatron's gradient accumulation fusion).
        Fused = "fused",
        /// The product writes, and a second kernel adds into a buffer of the gradients' format.
        Separate = "separate",
        /// Nothing is summed here: what a microbatch leaves is reduced at once (FSDP).
        Reduced = "reduced",
    }
}

/// The kernels an engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// Under attention.
    pub attention: AttentionKernel,
    /// Norms, activations and the like.
    pub elementwise: Elementwise,
    /// The loss.
    pub loss: Loss,
    /// How kernels are started.
    pub launch: Launch,
    /// How routed tokens travel.
    pub dispatch: Dispatch,
    /// How gradients of weights are summed.
    pub accumulate: Accumulate,
}

named! {
    /// What hides tensor-parallel collectives.
    pub enum TpOverlap {
        /// Nothing.
        None = "none",
        /// Backward collectives run beside the other gradient's product.
        Async = "async",
        /// Pieces of a collective run beside pieces of its product, in forward too.
        Userbuffers = "userbuffers",
    }
}

named! {
    /// What hides expert-parallel exchanges.
    pub enum EpOverlap {
        /// Nothing but the shared expert's own products, where there is one.
        None = "none",
        /// The compute of another microbatch, with weight gradients delayed.
        Microbatches = "microbatches",
    }
}

/// What runs beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Gradients are reduced under the last backward.
    pub gradients: bool,
    /// Weights are gathered under the first forward.
    pub weights: bool,
    /// Tensor-parallel collectives.
    pub tp: TpOverlap,
    /// Expert-parallel exchanges.
    pub ep: EpOverlap,
    /// Keys and values travel under attention.
    pub ring: bool,
    /// Activations travel between stages under compute.
    pub p2p: bool,
}

named! {
    /// How an engine reads a recompute policy.
    pub enum Again {
        /// As the layout says it.
        Layout = "layout",
        /// The layout's policy in every second layer.
        EveryOther = "every-other",
        /// By operator: attention and every second product are kept, the rest runs again
        /// (torchtitan's `selective` policy `op`, `torchtitan/distributed/activation_checkpoint.py`).
        ByOperator = "by-operator",
    }
}

/// All of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The format of matrix products.
    pub format: Format,
    /// Kernels.
    pub kernels: Kernels,
    /// Overlap.
    pub overlap: Overlap,
    /// Load of the busiest rank's experts against the mean; one is balance.
    pub overload: f64,
    /// Share of optimizer state kept and stepped in host memory.
    pub offload: f64,
    /// How recompute is read.
    pub again: Again,
    /// Replicas that share out state, where fewer than all do: the others hold copies, and
    /// gradients are summed over them besides (hybrid sharding).
    pub shard_group: Option<u64>,
}

impl Options {
    /// A first guess at what an engine runs.
    pub fn of(engine: Option<Engine>, recipe: &Recipe) -> Options {
        let format = match recipe.precision.weights {
            Dtype::Fp8 => Format::Fp8,
            Dtype::Nvfp4 => Format::Nvfp4,
            Dtype::Fp32 | Dtype::Bf16 | Dtype::Fp16 => Format::Bf16,
        };
        Options {
            format,
            kernels: kernels(engine),
            overlap: overlap(engine),
            overload: 1.0,
            offload: 0.0,
            again: Again::Layout,
            shard_group: None,
        }
    }
}

fn kernels(engine: Option<Engine>) -> Kernels {
    use AttentionKernel::{Flash2, Flash3};
    let (attention, elementwise, loss) = match engine {
        // Transformer Engine picks cuDNN's kernel on Hopper and newer.
        None | Some(Engine::Megatron | Engine::Shardwright) => (Flash3, Elementwise::Fused, Loss::Fused),
        Some(Engine::Torchtitan) => (Flash3, Elementwise::Compiled, Loss::Eager),
        Some(Engine::Maxtext | Engine::XlaSpmd) => (Flash3, Elementwise::Compiled, Loss::Fused),
        Some(Engine::Fsdp2 | Engine::Deepspeed | Engine::Nanotron) => (Flash2, Elementwise::Eager, Loss::Eager),
    };
    let accumulate = match engine {
        None | Some(Engine::Megatron | Engine::Shardwright) => Accumulate::Fused,
        Some(Engine::Nanotron | Engine::Deepspeed) => Accumulate::Separate,
        Some(Engine::Torchtitan | Engine::Fsdp2 | Engine::Maxtext | Engine::XlaSpmd) => Accumulate::Reduced,
    };
    Kernels { attention, elementwise, loss, launch: Launch::Eager, dispatch: Dispatch::AllToAll, accumulate }
}

fn overlap(engine: Option<Engine>) -> Overlap {
    let tp = match engine {
        None | Some(Engine::Megatron | Engine::Shardwright) => TpOverlap::Async,
        _ => TpOverlap::None,
    };
    // nanotron reduces gradients after the last backward unless told otherwise.
    let gradients = engine != Some(Engine::Nanotron);
    Overlap { gradients, weights: gradients, tp, ep: EpOverlap::None, ring: true, p2p: false }
}
