//! What an engine runs besides recipe and layout: kernels, formats, what overlaps, how memory is
//! asked for. [`Options::of`] is what `launch` writes when nobody says otherwise; a person says
//! otherwise in the engine's own words ([`crate::words`]), a measured row by what it says it ran.
//!
//! Each option is read by memory (`ledger`), time (`cost`) and emission (`launch`) from here and
//! nowhere else.

use crate::asked::PrecisionChoice;
use crate::documents::Documents;
use crate::ways::Ways;
use layout::{Engine, Layout};
use recipe::precision::Precision;
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
        /// 32-bit float, which only this project's own runtime computes in.
        F32 = "f32",
        /// 64-bit float, likewise.
        F64 = "f64",
    }
}

impl Format {
    /// Bytes of one factor's element.
    pub fn bytes(self) -> f64 {
        match self {
            Format::Bf16 => 2.0,
            Format::Fp8 | Format::Mxfp8 => 1.0,
            Format::Nvfp4 => 0.5,
            Format::F32 => 4.0,
            Format::F64 => 8.0,
        }
    }

    /// Widths of a product are multiples of it where it runs in this format.
    pub fn multiple(self) -> u64 {
        match self {
            Format::Fp8 => 16,
            Format::Mxfp8 | Format::Nvfp4 => 32,
            Format::Bf16 | Format::F32 | Format::F64 => 1,
        }
    }
}

named! {
    /// Scaling recipes of Transformer Engine, by the word `--precision` takes, and torchao's.
    pub enum Scaling {
        /// Scales from the past.
        Delayed = "fp8-delayed",
        /// Scales from the tensor itself.
        Tensorwise = "fp8-tensorwise",
        /// One scale for 128 elements.
        Blockwise = "fp8-blockwise",
        /// One scale a row of each factor: torchao's, which no engine is told here, and published runs have.
        Rowwise = "fp8-rowwise",
        /// One E8M0 scale for 32 elements of fp8; Blackwell only.
        Mxfp8 = "mxfp8",
        /// One E4M3 scale for 16 elements of fp4, under one fp32 scale; Blackwell only. Megatron
        /// calls its switches `--fp4-format` and `--fp4-recipe`.
        Nvfp4 = "nvfp4",
    }
}

impl Scaling {
    /// The format products run in.
    pub fn format(self) -> Format {
        match self {
            Scaling::Delayed | Scaling::Tensorwise | Scaling::Blockwise | Scaling::Rowwise => Format::Fp8,
            Scaling::Mxfp8 => Format::Mxfp8,
            Scaling::Nvfp4 => Format::Nvfp4,
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
    /// How torch's wrappers lay out weights that replicas share.
    pub enum Gathered {
        /// A tensor each, copied out of what was gathered (`fully_shard`).
        CopiedOut = "copied-out",
        /// The same, but for experts that no replica shares, which are not wrapped (NeMo Automodel, `ep_shard_enabled`).
        WhereShared = "where-shared",
        /// Views of one flat buffer that is gathered in place (`FullyShardedDataParallel`, and what other engines have).
        Flat = "flat",
    }
}

named! {
    /// How the loss over the vocabulary is taken.
    pub enum CrossEntropy {
        /// Over fp32 logits, operation by operation (Megatron's `tensor_parallel/cross_entropy.py`).
        Eager = "eager",
        /// Fused by the engine's own compiler pass (`--cross-entropy-fusion-impl native`).
        Native = "native",
        /// Transformer Engine's one kernel that reads logits and writes their gradient.
        TransformerEngine = "te",
        /// Liger's: the head's product and the loss together, chunk by chunk, gradients already in forward.
        Liger = "liger",
        /// cut-cross-entropy's: logits block by block in registers, in forward and once more in backward.
        Cce = "cce",
    }
}

impl CrossEntropy {
    /// Whether the head's product is part of it, so that logits are never there as a whole.
    pub fn has_head(self) -> bool {
        matches!(self, CrossEntropy::Liger | CrossEntropy::Cce)
    }
}

named! {
    /// Who records graphs, by Megatron's words for `--cuda-graph-impl`.
    pub enum GraphsBy {
        /// Nobody.
        None = "none",
        /// Megatron's own capture, layer by layer.
        Local = "local",
        /// Transformer Engine's, layer by layer.
        TransformerEngine = "transformer_engine",
        /// Forward and backward of the whole step as one graph.
        FullIteration = "full_iteration",
    }
}

named! {
    /// Modules that graphs are recorded of, by Megatron's words for `--cuda-graph-modules`.
    pub enum GraphModule {
        /// Attention blocks.
        Attention = "attn",
        /// Dense feed-forward blocks.
        Mlp = "mlp",
        /// Whole expert layers, which must drop tokens to have fixed shapes.
        Moe = "moe",
        /// Routers and shared experts.
        MoeRouter = "moe_router",
        /// What stands between the router and the exchange.
        MoePreprocess = "moe_preprocess",
        /// Mamba blocks.
        Mamba = "mamba",
    }
}

/// What is recorded as graphs: by whom, and of which modules; whole layers when none is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graphs {
    /// Who records.
    pub by: GraphsBy,
    modules: u8,
}

impl Graphs {
    /// Nothing is recorded.
    pub const NONE: Graphs = Graphs { by: GraphsBy::None, modules: 0 };

    /// Whole layers, or the whole step, recorded by somebody.
    pub fn by(by: GraphsBy) -> Graphs {
        Graphs { by, modules: 0 }
    }

    /// The same, of these modules.
    pub fn of_modules(self, modules: impl IntoIterator<Item = GraphModule>) -> Graphs {
        Graphs { modules: modules.into_iter().fold(0, |set, module| set | 1 << module as u8), ..self }
    }

    /// Whether operations of a module are replayed rather than started one by one. What no module holds is
    /// part of a layer only.
    pub fn records(self, module: Option<GraphModule>) -> bool {
        match self.by {
            GraphsBy::None => false,
            GraphsBy::FullIteration => true,
            GraphsBy::Local | GraphsBy::TransformerEngine if self.modules == 0 => true,
            GraphsBy::Local | GraphsBy::TransformerEngine => {
                module.is_some_and(|module| self.modules >> module as u8 & 1 == 1)
            }
        }
    }

    /// The modules named, in the order Megatron lists them.
    pub fn modules(self) -> impl Iterator<Item = GraphModule> {
        let all = GraphModule::ALL.iter().map(|(_, module)| *module);
        all.filter(move |module| self.modules >> *module as u8 & 1 == 1)
    }
}

named! {
    /// How routed tokens travel.
    pub enum Dispatch {
        /// Every rank gathers all tokens.
        AllGather = "allgather",
        /// One exchange of the library.
        AllToAll = "alltoall",
        /// Fused kernels that send a token once to each node (DeepEP).
        DeepEp = "deepep",
        /// The same idea for racks (HybridEP).
        HybridEp = "hybridep",
    }
}

impl Dispatch {
    /// Ranks of one node, as DeepEP counts them (deepseek-ai/DeepEP, `LEGACY_NUM_MAX_NVL_PEERS`): more travel over the
    /// network.
    pub const DEEPEP_PEERS: u64 = 8;
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
    /// The loss over the vocabulary.
    pub cross_entropy: CrossEntropy,
    /// What is recorded as graphs.
    pub graphs: Graphs,
    /// Whether the host waits for every kernel (`CUDA_LAUNCH_BLOCKING=1`).
    pub blocking: bool,
    /// What weights are in between passes, where replicas share them out.
    pub gathered: Gathered,
    /// Rotary embeddings in one kernel.
    pub rope_fusion: bool,
    /// Tokens gathered by expert, and scattered back, in one kernel each.
    pub permute_fusion: bool,
    /// Squared ReLU of experts and the weights of their tokens in one kernel.
    pub relu2_fusion: bool,
    /// Both products of all local experts with what stands between them in two kernels each way, where products are mxfp8
    /// (Transformer Engine's op fuser over CuTe kernels, Blackwell).
    pub expert_fusion: bool,
    /// Sparse attention, its indexer's scores and choice, and a loss over what was chosen in TileLang's kernels. Without them
    /// Megatron-Core computes scores of every head over every key by single operations.
    pub sparse_fusion: bool,
    /// How routed tokens travel.
    pub dispatch: Dispatch,
    /// How gradients of weights are summed.
    pub accumulate: Accumulate,
    /// Whether cuDNN's attention was named, rather than left to Transformer Engine to pick.
    pub names_cudnn: bool,
    /// Whether losses and gradients that are no numbers end the run.
    pub looks_for_nan: bool,
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
        /// The compute of another microbatch.
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
    /// Weight gradients wait, so that the exchange of a backward hides under them.
    pub delay_wgrad: bool,
    /// Keys and values travel under attention.
    pub ring: bool,
    /// Activations travel between stages under compute, where a stage has several chunks: nothing
    /// else can run in between otherwise (Megatron's `overlap_p2p_comm`).
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

/// Formats of what is stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDtypes {
    /// The weights that are stepped.
    pub main: Dtype,
    /// Gradients as accumulated and reduced.
    pub gradients: Dtype,
    /// The first moment.
    pub exp_avg: Dtype,
    /// The second.
    pub exp_avg_sq: Dtype,
}

impl StateDtypes {
    fn of(precision: &Precision) -> StateDtypes {
        let Precision { main, gradients, moments, .. } = *precision;
        StateDtypes { main, gradients, exp_avg: moments, exp_avg_sq: moments }
    }
}

/// DeepSpeed's sizes, in elements. Defaults are its own (`runtime/zero/config.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroSizes {
    /// Of the buffer that gradients are reduced in.
    pub reduce_bucket: u64,
    /// Gathered at once behind a step of ZeRO 1 and 2; gathered in place.
    pub allgather_bucket: u64,
    /// Weights gathered ahead under ZeRO 3.
    pub prefetch_bucket: u64,
    /// Weights of at most so many are never partitioned away under ZeRO 3.
    pub param_persistence_threshold: u64,
    /// Gathered weights beyond which nothing is gathered ahead.
    pub max_live_parameters: u64,
    /// Gathered weights that are used again within so many are kept.
    pub max_reuse_distance: u64,
    /// Of a rank's part that the optimizer of ZeRO 3 steps at once.
    pub sub_group: u64,
}

impl ZeroSizes {
    /// DeepSpeed's own.
    pub const DEFAULT: ZeroSizes = ZeroSizes {
        reduce_bucket: 500_000_000,
        allgather_bucket: 500_000_000,
        prefetch_bucket: 50_000_000,
        param_persistence_threshold: 100_000,
        max_live_parameters: 1_000_000_000,
        max_reuse_distance: 1_000_000_000,
        sub_group: 1_000_000_000,
    };
}

/// Groups of `fully_shard` that are gathered ahead of the one that runs. The defaults are its own: without
/// forward prefetch the next gather still overlaps, because the host runs ahead of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// In forward (`set_modules_to_forward_prefetch`).
    pub forward: u64,
    /// In backward (`set_modules_to_backward_prefetch`); one by itself.
    pub backward: u64,
}

impl Prefetch {
    /// What `fully_shard` does when it is not told.
    pub const DEFAULT: Prefetch = Prefetch { forward: 0, backward: 1 };
}

/// What an engine runs besides recipe and layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The format of matrix products.
    pub format: Format,
    /// Where scales come from, when products run in fp8 or fp4 under Transformer Engine.
    pub scaling: Option<Scaling>,
    /// Whether weights are kept and gathered in the product's format alone.
    pub fp8_param_gather: bool,
    /// Formats of what is stepped.
    pub state: StateDtypes,
    /// Kernels.
    pub kernels: Kernels,
    /// Overlap.
    pub overlap: Overlap,
    /// Elements of a bucket that gradients are reduced in; the engine's own when none.
    pub bucket_size: Option<u64>,
    /// Buckets that a rank's parameters are dealt into, instead of a size.
    pub num_buckets: Option<u64>,
    /// Whether buckets end where messages of every rank are large powers of two.
    pub pad_buckets: bool,
    /// DeepSpeed's sizes.
    pub zero: ZeroSizes,
    /// What FSDP2 gathers ahead.
    pub prefetch: Prefetch,
    /// Whether the allocator grows its segments (`expandable_segments:True`).
    pub expandable_segments: bool,
    /// Load of the busiest rank's experts against the mean; one is balance.
    pub overload: f64,
    /// Share of AdamW's state kept and stepped in host memory.
    pub offload: f64,
    /// Whether weights that ZeRO 3 shares out are kept in host memory (DeepSpeed's `offload_param`).
    pub offload_params: bool,
    /// Whether what is offloaded lies on a drive of the node instead of in its memory.
    pub on_nvme: bool,
    /// Share of saved activations kept in host memory.
    pub offload_activations: f64,
    /// How recompute is read.
    pub again: Again,
    /// Replicas that share out state, where fewer than all do: the others hold copies, and
    /// gradients are summed over them besides (hybrid sharding).
    pub shard_group: Option<u64>,
    /// How weights are kept, stepped and followed by libraries beside the engine.
    pub ways: Ways,
    /// Documents that a sequence is packed of, where they see nothing of one another.
    pub documents: Option<Documents>,
    /// Whether a script of one's own brings the model, as it may under DeepSpeed, and not the program that `launch` writes.
    pub has_script: bool,
}

impl Options {
    /// What a launch on this engine has when nobody says otherwise; Megatron's when none is named.
    pub fn of(engine: Option<Engine>, recipe: &Recipe) -> Options {
        let format = match recipe.precision.weights {
            Dtype::Fp8 => Format::Fp8,
            Dtype::Nvfp4 => Format::Nvfp4,
            Dtype::Fp32 | Dtype::Bf16 | Dtype::Fp16 => Format::Bf16,
        };
        Options {
            format,
            scaling: None,
            fp8_param_gather: false,
            state: StateDtypes::of(&recipe.precision),
            kernels: kernels(engine, recipe),
            overlap: overlap(engine),
            bucket_size: None,
            num_buckets: None,
            pad_buckets: false,
            zero: ZeroSizes::DEFAULT,
            prefetch: Prefetch::DEFAULT,
            expandable_segments: false,
            overload: 1.0,
            offload: 0.0,
            offload_params: false,
            on_nvme: false,
            offload_activations: 0.0,
            again: Again::Layout,
            shard_group: None,
            ways: Ways::PLAIN,
            documents: None,
            has_script: false,
        }
    }

    /// Whether a script brings the model under DeepSpeed: the program that `launch` writes splits over replicas alone.
    pub fn is_of_script(&self, layout: &Layout) -> bool {
        self.has_script || layout.tp.splits() || layout.cp.splits()
    }

    /// The same around a model as Hugging Face writes it, which brings its own attention.
    pub fn with_script(mut self) -> Options {
        (self.has_script, self.kernels.attention) = (true, AttentionKernel::Flash2);
        self
    }

    /// The same with products in this format.
    pub fn in_precision(mut self, precision: PrecisionChoice) -> Options {
        (self.format, self.scaling) = match precision {
            PrecisionChoice::Bf16 => (Format::Bf16, None),
            PrecisionChoice::F32 => (Format::F32, None),
            PrecisionChoice::F64 => (Format::F64, None),
            PrecisionChoice::Scaled(scaling) => (scaling.format(), Some(scaling)),
        };
        self
    }
}

fn kernels(engine: Option<Engine>, recipe: &Recipe) -> Kernels {
    use AttentionKernel::{Flash2, Flash3};
    use CrossEntropy::{Eager, Native};
    let (attention, elementwise, cross_entropy) = match engine {
        // Transformer Engine picks cuDNN's kernel on Hopper and newer.
        None | Some(Engine::Megatron | Engine::Shardwright) => (Flash3, Elementwise::Fused, Eager),
        // `compile.enable` is off unless asked for, as torchtitan has it.
        Some(Engine::Torchtitan) => (Flash3, Elementwise::Eager, Eager),
        Some(Engine::Maxtext | Engine::XlaSpmd) => (Flash3, Elementwise::Compiled, Native),
        // torch 2.11 takes cuDNN's kernels (profiles of the FSDP2 program on an H200); DeepSpeed's has the same blocks.
        Some(Engine::Fsdp2 | Engine::Deepspeed) => (Flash3, Elementwise::Eager, Eager),
        Some(Engine::Nanotron) => (Flash2, Elementwise::Eager, Eager),
    };
    let accumulate = match engine {
        Some(Engine::Shardwright) => Accumulate::Fused,
        // Megatron's fusion needs APEX's extension, which no package index has.
        None | Some(Engine::Megatron | Engine::Nanotron | Engine::Deepspeed) => Accumulate::Separate,
        Some(Engine::Torchtitan | Engine::Fsdp2 | Engine::Maxtext | Engine::XlaSpmd) => Accumulate::Reduced,
    };
    Kernels {
        attention,
        elementwise,
        cross_entropy,
        graphs: Graphs::NONE,
        blocking: false,
        gathered: match engine {
            Some(Engine::Fsdp2 | Engine::Torchtitan) => Gathered::CopiedOut,
            _ => Gathered::Flat,
        },
        // The fused rotation of latent attention is for yarn only (`transformer_config.py`), and that of other heads
        // takes no factor on what it turns (`rope_utils.py`).
        rope_fusion: matches!(engine, None | Some(Engine::Megatron))
            && !recipe.is_latent()
            && recipe.positions.rope().is_none_or(|rope| rope.amplitude() == 1.0),
        // Transformer Engine's kernel for tokens that no capacity pads; Megatron is told by a flag.
        permute_fusion: matches!(engine, None | Some(Engine::Megatron))
            && recipe.moe.as_ref().is_some_and(|moe| moe.capacity_factor.is_none()),
        relu2_fusion: false,
        expert_fusion: false,
        sparse_fusion: false,
        dispatch: Dispatch::AllToAll,
        accumulate,
        names_cudnn: false,
        looks_for_nan: true,
    }
}

fn overlap(engine: Option<Engine>) -> Overlap {
    let is_megatron = matches!(engine, None | Some(Engine::Megatron | Engine::Shardwright));
    let tp = if is_megatron { TpOverlap::Async } else { TpOverlap::None };
    // nanotron reduces gradients after the last backward under ZeRO 1 (without, `cost` hides them), and so does DeepSpeed
    // below ZeRO 3 (`overlap_comm`, runtime/zero/config.py), under which it always overlaps.
    let gradients = !matches!(engine, Some(Engine::Nanotron | Engine::Deepspeed));
    Overlap { gradients, weights: gradients, tp, ep: EpOverlap::None, delay_wgrad: false, ring: true, p2p: is_megatron }
}
