//! What Megatron is told besides recipe and layout.

use case::{Documents, SparseKernels};
use recipe::{Dtype, Recipe};
use replay::allocator::Segments;
use replay::tape::Microbatches;

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
    /// `MoEFlexTokenDispatcher` over DeepEP.
    DeepEp,
    /// `MoEFlexTokenDispatcher` over HybridEP, inside one NVLink domain.
    HybridEp,
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
    /// cut at tensors, and AdamW's part is shared out by bytes. What `training.py`
    /// `wrap_model_chunks_with_ddp` hands over.
    Layout,
    /// `_shard_params_ping_pong`: weights stay where they are, and whole tensors, AdamW's too, are dealt
    /// out by size. What a launch has: the programs of 0.19 wrap their models in
    /// `training/models/dist_utils.py`, which hands no layout over unless AdamW steps all.
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

/// Tensors that graphs read their inputs from. Transformer Engine records a graph for every layer and microbatch in
/// flight, and each has its own (`cuda_graphs.py` TECudaGraphHelper `_get_sample_arguments`,
/// `transformer_layer.py` `get_layer_static_inputs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphInputs {
    /// Nothing is recorded, or the whole step, which has one set of inputs: its tokens.
    None,
    /// A layer's input.
    OfLayers {
        /// And a mask of one byte a score, where attention is recorded, which its kernel does not read.
        has_mask: bool,
        /// And what a graph hands to the exchange: it stays in the graph's pool.
        hands: Handed,
    },
}

/// What is recorded in front of an exchange and read by it (`token_dispatcher.py` cudagraph_attrs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// Nothing, or what is small: DeepEP reads the chosen alone.
    Nothing,
    /// Tokens that were sorted by expert inside of a graph.
    Permuted,
    /// Scores and map of all experts, which HybridEP reads.
    Scores,
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
    /// Bytes of state an element, main weight and both moments: of an fp32 main weight only what bf16
    /// lacks is kept.
    pub fn bytes(&self) -> u64 {
        2 + (self.exp_avg.bits() + self.exp_avg_sq.bits()) / 8
    }

    /// Megatron's defaults: fp32 throughout.
    pub const FP32: StateFormats = StateFormats {
        main_weights: Dtype::Fp32,
        main_gradients: Dtype::Fp32,
        exp_avg: Dtype::Fp32,
        exp_avg_sq: Dtype::Fp32,
    };
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
    /// Buckets of a rank's parameters, instead of a size (`--ddp-num-buckets`).
    pub num_buckets: Option<u64>,
    /// Whether buckets end at multiples of 65536 (`--ddp-pad-buckets-for-high-nccl-busbw`).
    pub pad_buckets: bool,
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
    /// Whether one kernel squares the ReLU of experts and weighs it (`--use-fused-weighted-squared-relu`).
    pub relu2_fusion: bool,
    /// Whether both products of experts and their activation run as Transformer Engine's fused operations
    /// (`--use-transformer-engine-op-fuser`). Megatron's default is no.
    pub expert_fusion: bool,
    /// What scores, chooses and attends in sparse layers. Megatron's default is single operations.
    pub sparse: SparseKernels,
    /// Inputs that captured graphs hold.
    pub graphs: GraphInputs,
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
    /// Documents that a sequence is packed of (`--dataloader-inter-document-masking`).
    pub documents: Option<Documents>,
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
            num_buckets: None,
            pad_buckets: false,
            trainer: Trainer::Core,
            layer_wise: LayerWise::Layout,
            gradient_accumulation_fusion: false,
            rope_fusion: false,
            permute_fusion: false,
            relu2_fusion: false,
            expert_fusion: false,
            sparse: SparseKernels::Eager,
            graphs: GraphInputs::None,
            attention: AttentionBackend::Fused,
            precision_aware: None,
            segments: Segments::Fixed,
            steps: 3,
            routing: Routing::Random { seed: 0 },
            documents: None,
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
}

#[cfg(test)]
pub mod tests {
    use super::super::{Job, explain, replay};
    use super::*;
    use layout::{LayoutRequest, StagePlan, check};
    use replay::{Phase, PhaseKind, Replay, Unmodelled};

    /// A recipe on eight ranks.
    pub(in super::super) fn on_eight(name: &str, request: LayoutRequest) -> (Recipe, layout::Layout) {
        let recipe = recipe::builtin::find(name).unwrap();
        let checked = check(&recipe, &LayoutRequest { world: Some(8), sequence: Some(2048), ..request });
        let layout = checked.layout.unwrap_or_else(|| panic!("{:?}", checked.findings));
        (checked.recipe, layout)
    }

    fn dense() -> (Recipe, layout::Layout) {
        on_eight("llama3-8b", LayoutRequest { tp: Some(2), microbatches: Some(2), ..LayoutRequest::default() })
    }

    fn hybrid() -> (Recipe, layout::Layout) {
        let mode = Some(recipe::Mode::NemoNative);
        on_eight("nam56r", LayoutRequest { mode, tp: Some(2), ..LayoutRequest::default() })
    }

    pub(in super::super) fn experts() -> (Recipe, layout::Layout) {
        on_eight("qwen3-30b-a3b", LayoutRequest { ep: Some(8), ..LayoutRequest::default() })
    }

    pub(in super::super) fn run(
        (recipe, layout): &(Recipe, layout::Layout),
        change: impl FnOnce(&mut MegatronOptions),
    ) -> Result<Replay, Unmodelled> {
        let stages = StagePlan::new(recipe, layout, None).unwrap();
        let mut options = MegatronOptions { routing: Routing::Balanced, ..MegatronOptions::launched(recipe) };
        change(&mut options);
        replay(&Job { recipe, layout, stages: &stages, rank: 0, options: &options })
    }

    /// A launch as it is, and with something changed.
    fn both(model: &(Recipe, layout::Layout), change: impl FnOnce(&mut MegatronOptions)) -> (Replay, Replay) {
        (run(model, |_| {}).unwrap(), run(model, change).unwrap())
    }

    fn phase(replay: &Replay, kind: PhaseKind) -> &Phase {
        replay.phase(kind).unwrap()
    }

    pub(in super::super) fn allocated(replay: &Replay, kind: PhaseKind) -> u64 {
        phase(replay, kind).allocated
    }

    #[test]
    fn a_launch_has_fusions_and_both_overlaps() {
        let (recipe, _) = dense();
        let launched = MegatronOptions::launched(&recipe);
        assert!(launched.rope_fusion && launched.gradient_accumulation_fusion && !launched.permute_fusion);
        assert_eq!(launched.reduction, Reduction::Overlapped);
        assert_eq!(launched.param_gather, ParamGather::Overlapped);
        assert_eq!(launched.trainer, Trainer::Pretrain);
        let latent = recipe::builtin::find("deepseek-v3").unwrap();
        assert!(!MegatronOptions::launched(&latent).rope_fusion);
    }

    #[test]
    fn a_rotation_in_one_kernel_keeps_no_factors() {
        let (fused, unfused) = both(&dense(), |told| told.rope_fusion = false);
        // Cosine and sine in bf16, for queries and for keys of 32 layers.
        let factors = 32 * 4 * 2048 * 128 * 2;
        let more = unfused.allocated_peak() - fused.allocated_peak();
        assert!((factors..factors + factors / 4).contains(&more), "{more}");
    }

    #[test]
    fn fused_accumulation_keeps_one_stand_in_a_shape() {
        let (fused, unfused) = both(&dense(), |told| told.gradient_accumulation_fusion = false);
        let shapes = [3072 * 4096, 4096 * 2048, 14336 * 4096, 4096 * 7168, 64128 * 4096].map(|n: u64| n * 2);
        let after = PhaseKind::Update(0);
        let more = allocated(&fused, after) - allocated(&unfused, after);
        let whole: u64 = shapes.iter().sum();
        assert!((whole..whole + (4 << 20)).contains(&more), "{more} and {whole}");
    }

    #[test]
    fn the_trainer_puts_only_the_first_stage_into_buckets() {
        let mode = Some(recipe::Mode::NemoNative);
        let request = LayoutRequest { mode, tp: Some(2), pp: Some(2), microbatches: Some(2), ..Default::default() };
        let (recipe, layout) = on_eight("nam56r", request);
        let stages = StagePlan::new(&recipe, &layout, None).unwrap();
        let buffers = |rank, trainer, bucket_size| {
            let told = MegatronOptions { trainer, bucket_size, ..MegatronOptions::launched(&recipe) };
            let options = MegatronOptions { layer_wise: LayerWise::Layout, steps: 1, ..told };
            let job = Job { recipe: &recipe, layout: &layout, stages: &stages, rank, options: &options };
            allocated(&replay(&job).unwrap(), PhaseKind::Buffers)
        };
        let padded = |rank, trainer| buffers(rank, trainer, Some(1)) > buffers(rank, trainer, Some(u64::MAX));
        let (first, last) = (0, 7);
        assert!(padded(first, Trainer::Pretrain) && !padded(last, Trainer::Pretrain));
        assert!(padded(first, Trainer::Core) && padded(last, Trainer::Core));
    }

    #[test]
    fn late_gradients_keep_blocks_reserved_but_not_allocated() {
        let (late, in_time) = both(&dense(), |told| told.trainer = Trainer::Core);
        assert!(late.allocated_peak().abs_diff(in_time.allocated_peak()) < 64 << 20);
        assert!(late.reserved_peak() >= in_time.reserved_peak());
    }

    #[test]
    fn tensors_that_are_dealt_out_need_no_second_copy_of_the_weights() {
        let model = hybrid();
        let (dealt, laid_out) = both(&model, |told| told.layer_wise = LayerWise::Layout);
        let peak = |replay: &Replay| phase(replay, PhaseKind::Buffers).peak.allocated;
        assert!(peak(&laid_out) - peak(&dealt) > dealt.params * 2);
    }

    #[test]
    fn gathering_behind_the_step_holds_every_weight_once_more() {
        let (ahead, behind) = both(&hybrid(), |told| told.param_gather = ParamGather::AtTheStep);
        let over = |replay: &Replay| {
            let update = phase(replay, PhaseKind::Update(1));
            update.peak.allocated - update.allocated
        };
        assert!(over(&behind) >= behind.params * 2);
        assert!(over(&ahead) < ahead.params * 2);
    }

    #[test]
    fn a_bucket_size_decides_how_often_a_buffer_is_padded() {
        let model = on_eight(
            "nam56r",
            LayoutRequest { mode: Some(recipe::Mode::NemoNative), tp: Some(2), ..LayoutRequest::default() },
        );
        let plain = |told: &mut MegatronOptions| {
            told.layer_wise = LayerWise::Layout;
            told.bucket_size = Some(1);
        };
        let small = run(&model, plain).unwrap();
        let whole = run(&model, |told| {
            plain(told);
            told.reduction = Reduction::AtTheEnd;
        });
        let setup = PhaseKind::Buffers;
        assert!(allocated(&small, setup) > allocated(&whole.unwrap(), setup));
    }

    #[test]
    fn padded_and_numbered_buckets_are_priced() {
        let request = LayoutRequest { mode: Some(recipe::Mode::NemoNative), tp: Some(2), ..LayoutRequest::default() };
        let model = on_eight("nam56r", request);
        let buffers = |change: fn(&mut MegatronOptions)| {
            let replay = run(&model, |told| {
                told.layer_wise = LayerWise::Layout;
                change(told);
            });
            allocated(&replay.unwrap(), PhaseKind::Buffers)
        };
        let plain = buffers(|told| told.bucket_size = Some(1));
        assert!(buffers(|told| (told.bucket_size, told.pad_buckets) = (Some(1), true)) > plain);
        let one = buffers(|told| told.bucket_size = Some(u64::MAX));
        assert_eq!(buffers(|told| told.num_buckets = Some(1)), one);
        assert_eq!(buffers(|told| told.num_buckets = Some(u64::MAX)), plain);
    }

    #[test]
    fn narrow_state_is_made_at_the_first_step() {
        let narrow = StateFormats { exp_avg: Dtype::Bf16, exp_avg_sq: Dtype::Bf16, ..StateFormats::FP32 };
        let model = dense();
        let (wide, narrow) = both(&model, |told| told.precision_aware = Some(narrow));
        let shard = wide.params / 4;
        let near = |bytes: u64, elements: u64| bytes.abs_diff(elements) < elements / 100;
        let setup = PhaseKind::Optimizer;
        assert!(near(allocated(&wide, setup) - allocated(&narrow, setup), 4 * shard));
        // Two bytes a moment and two that bf16 weights lack, where fp32 state has twelve.
        let after = PhaseKind::Update(0);
        assert!(near(allocated(&wide, after) - allocated(&narrow, after), 6 * shard));
        let half = StateFormats { exp_avg: Dtype::Fp16, exp_avg_sq: Dtype::Fp16, ..StateFormats::FP32 };
        let half = run(&model, |told| told.precision_aware = Some(half)).unwrap();
        // The kernel reads fp32 or bf16, so that fp16 moments are both made fp32 for the step.
        let update = phase(&half, PhaseKind::Update(1));
        assert!(near(update.peak.allocated - update.allocated, 8 * shard));
    }

    #[test]
    fn a_fused_permutation_keeps_a_map_of_rows() {
        let (unfused, fused) = both(&experts(), |told| told.permute_fusion = true);
        // Two int32 an expert and one more of 2048 tokens in 48 layers, for eight int64.
        let maps = 48 * 2048 * (4 * (2 * 128 + 1) - 8 * 8);
        let after = PhaseKind::Update(0);
        let more = allocated(&fused, after) - allocated(&unfused, after);
        assert!(more.abs_diff(maps) < maps / 50, "{more} and {maps}");
    }

    /// What a launch holds above its weights when a step begins to go back is three bf16 and an fp32 tensor of every
    /// expert's activation less: of relu², its product with fp32 weights and the cast only the last is left.
    #[test]
    fn a_fused_squared_relu_keeps_its_input_and_its_output() {
        let request = LayoutRequest {
            mode: Some(recipe::Mode::NemoNative),
            tp: Some(1),
            ep: Some(8),
            ..LayoutRequest::default()
        };
        let model = on_eight("nam56r", LayoutRequest { microbatches: Some(1), ..request });
        let balanced = |told: &mut MegatronOptions| told.routing = Routing::Balanced;
        let unfused = run(&model, balanced).unwrap();
        let fused = run(&model, |told| {
            balanced(told);
            told.relu2_fusion = true;
        });
        // 2048 tokens to four experts of 896 in each of 22 layers: relu² in bf16 that the product saves.
        let saved = 22 * 2048 * 4 * 896 * 2;
        let less = unfused.allocated_peak() - fused.unwrap().allocated_peak();
        assert!(less.abs_diff(saved) < saved / 10, "{less} and {saved}");
    }

    /// 16 layers of a stage with two microbatches in flight: inputs of 1024 tokens of 4096 elements, and masks of 2048
    /// by 2048 bytes.
    #[test]
    fn graphs_of_layers_hold_inputs_for_every_microbatch_in_flight() {
        let request = LayoutRequest { tp: Some(2), pp: Some(2), microbatches: Some(4), ..LayoutRequest::default() };
        let model = on_eight("llama3-8b", request);
        let with = |has_mask| {
            run(&model, |told| told.graphs = GraphInputs::OfLayers { has_mask, hands: Handed::Nothing }).unwrap()
        };
        let (plain, masked) = (run(&model, |_| {}).unwrap(), with(true));
        let after = PhaseKind::Update(2);
        let (inputs, masks) = (16 * 2 * 1024 * 4096 * 2, 16 * 2 * 2048 * 2048);
        assert_eq!(allocated(&with(false), after) - allocated(&plain, after), inputs);
        assert_eq!(allocated(&masked, after) - allocated(&plain, after), inputs + masks);
        // The first step warms up without them.
        assert_eq!(allocated(&masked, PhaseKind::Update(0)), allocated(&plain, PhaseKind::Update(0)));
    }

    #[test]
    fn expandable_segments_reserve_less() {
        let (fixed, expandable) = both(&dense(), |told| told.segments = Segments::Expandable);
        assert!(expandable.reserved_peak() < fixed.reserved_peak());
        assert!(expandable.reserved_peak() >= expandable.allocated_peak());
        assert!(expandable.allocated_peak().abs_diff(fixed.allocated_peak()) < 64 << 20);
    }

    #[test]
    fn what_is_not_replayed_is_refused_by_name() {
        let model = dense();
        let refused = |change: fn(&mut MegatronOptions)| run(&model, change).unwrap_err().what;
        assert_eq!(refused(|told| told.attention = AttentionBackend::Flash), "FlashAttention");
        assert_eq!(refused(|told| told.attention = AttentionBackend::Unfused), "unfused attention");
        let narrow = |told: &mut MegatronOptions| {
            told.precision_aware = Some(StateFormats { main_gradients: Dtype::Bf16, ..StateFormats::FP32 });
        };
        assert_eq!(refused(narrow), "bf16 main gradients");
        let padded = |told: &mut MegatronOptions| {
            told.dispatcher = Dispatcher::DeepEp;
            told.capacity_factor = Some(1.0);
        };
        assert_eq!(run(&experts(), padded).unwrap_err().what, "experts of a fixed capacity over DeepEP");
        let fused = |change: fn(&mut MegatronOptions)| {
            let change = |told: &mut MegatronOptions| {
                told.expert_fusion = true;
                change(told);
            };
            run(&experts(), change).unwrap_err().what
        };
        assert_eq!(fused(|_| {}), "Transformer Engine's op fuser without mxfp8");
        assert_eq!(refused(|told| told.expert_fusion = true), "Transformer Engine's op fuser in dense blocks");
    }

    #[test]
    fn stand_ins_are_named_among_the_holders() {
        let (recipe, layout) = dense();
        let stages = StagePlan::new(&recipe, &layout, None).unwrap();
        let options = MegatronOptions::launched(&recipe);
        let job = Job { recipe: &recipe, layout: &layout, stages: &stages, rank: 0, options: &options };
        let replay = explain(&job).unwrap();
        assert!(replay.holders.iter().any(|holder| holder.name == "dummy weight gradient"));
        assert_eq!(replay.holders.iter().map(|h| h.bytes).sum::<u64>(), replay.allocated_peak());
    }
}
