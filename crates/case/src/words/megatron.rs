//! Megatron-Core 0.19.2 (`megatron/training/arguments.py`).

use super::{Effect, Known, Passed, Place, Takes, Vocabulary, Word, dtype, flag, number};
use crate::options::{
    Accumulate, AttentionKernel, CrossEntropy, Dispatch, EpOverlap, GraphModule, GraphsBy, TpOverlap,
};
use recipe::import::megatron_args;

use Effect::{Changes, None as Nothing};

const DTYPES: Takes = Takes::OneOf(&["fp32", "fp16", "bf16", "fp8"]);

pub const VOCABULARY: Vocabulary = Vocabulary {
    words: WORDS,
    passed: PASSED,
    // It follows from formats of state other than fp32, and from state on the host.
    implied: &["--use-precision-aware-optimizer"],
    refused: &[],
    ours: OURS,
    tuned: &["--ddp-bucket-size", "--ddp-num-buckets", "--ddp-pad-buckets-for-high-nccl-busbw"],
    close: megatron_args::close,
    knows: known,
};

fn known(name: &str) -> Option<Known> {
    let (least, most) = megatron_args::arity(name)?;
    Some(megatron_args::changes(name).map_or(Known::Takes(least, most), Known::Model))
}

const WORDS: &[Word] = &[
    switch_word!(
        "--overlap-grad-reduce",
        "false",
        overlap.gradients,
        [Changes, Changes],
        "gradients are reduced bucket by bucket under the last backward"
    ),
    switch_word!(
        "--overlap-param-gather",
        "false",
        overlap.weights,
        [Changes, Changes],
        "weights are gathered under the first forward"
    ),
    Word {
        name: "--tp-comm-overlap",
        takes: Takes::Switch,
        place: Place::Argument,
        own: "false",
        get: |o| flag(o.overlap.tp == TpOverlap::Userbuffers),
        set: |o, v| {
            o.overlap.tp = if v == "true" { TpOverlap::Userbuffers } else { TpOverlap::Async };
            Ok(())
        },
        memory: Changes,
        time: Changes,
        what: "pieces of a tensor-parallel collective run beside pieces of its product",
    },
    Word {
        name: "--overlap-moe-expert-parallel-comm",
        takes: Takes::Switch,
        place: Place::Argument,
        own: "false",
        get: |o| flag(o.overlap.ep == EpOverlap::Microbatches),
        set: |o, v| {
            o.overlap.ep = if v == "true" { EpOverlap::Microbatches } else { EpOverlap::None };
            Ok(())
        },
        memory: Nothing("forward takes what backward frees; of two chunks a stage one rank held 1.3% more"),
        time: Changes,
        what: "expert exchanges run under another microbatch's compute",
    },
    switch_word!(
        "--delay-wgrad-compute",
        "false",
        overlap.delay_wgrad,
        [
            Nothing("what waits is of one layer"),
            Nothing("the share of exchanges that hides was set on runs that had both")
        ],
        "weight gradients wait, and the exchange of a backward hides under them"
    ),
    switch_word!(
        "--overlap-p2p-communication",
        "true",
        overlap.p2p,
        [Nothing("the same buffers wait either way"), Changes],
        "activations travel between stages under compute, where a stage has several chunks"
    ),
    Word {
        name: "--gradient-accumulation-fusion",
        takes: Takes::Switch,
        place: Place::Argument,
        own: "true",
        get: |o| flag(o.kernels.accumulate == Accumulate::Fused),
        set: |o, v| {
            o.kernels.accumulate = if v == "true" { Accumulate::Fused } else { Accumulate::Separate };
            Ok(())
        },
        memory: Changes,
        time: Changes,
        what: "the product of a weight's gradient adds into the fp32 buffer (needs APEX's extension)",
    },
    switch_word!("--rope-fusion", "true", kernels.rope_fusion, [Changes, Changes], "rotary embeddings in one kernel"),
    switch_word!(
        "--moe-permute-fusion",
        "false",
        kernels.permute_fusion,
        [Changes, Changes],
        "tokens are sorted by expert, and back, in one kernel each"
    ),
    switch_word!(
        "--use-fused-weighted-squared-relu",
        "false",
        kernels.relu2_fusion,
        [Changes, Changes],
        "squared ReLU of experts and the weights of their tokens in one kernel"
    ),
    switch_word!(
        "--use-transformer-engine-op-fuser",
        "false",
        kernels.expert_fusion,
        [Changes, Changes],
        "products of experts in mxfp8 with their activation in one kernel, on Blackwell (Transformer Engine 2.16, cuDNN's front end)"
    ),
    Word {
        name: "--dsa-kernel-backend",
        takes: Takes::OneOf(&["none", "tilelang"]),
        place: Place::Argument,
        own: "none",
        get: |o| if o.kernels.sparse_fusion { "tilelang" } else { "none" }.to_string(),
        set: |o, v| {
            o.kernels.sparse_fusion = v == "tilelang";
            Ok(())
        },
        memory: Changes,
        time: Changes,
        what: "sparse layers in TileLang's kernels (package tilelang) instead of scores of every head over every key; cudnn is not replayed",
    },
    Word {
        name: "--moe-token-dispatcher-type",
        takes: Takes::OneOf(&["allgather", "alltoall", "flex"]),
        place: Place::Argument,
        own: "allgather",
        get: |o| match o.kernels.dispatch {
            Dispatch::DeepEp | Dispatch::HybridEp => "flex".to_string(),
            other => other.name().to_string(),
        },
        set: |o, v| {
            o.kernels.dispatch = match v {
                "flex" if o.kernels.dispatch == Dispatch::HybridEp => Dispatch::HybridEp,
                "flex" => Dispatch::DeepEp,
                "allgather" => Dispatch::AllGather,
                _ => Dispatch::AllToAll,
            };
            Ok(())
        },
        memory: Changes,
        time: Changes,
        what: "how tokens reach their experts",
    },
    Word {
        name: "--moe-flex-dispatcher-backend",
        takes: Takes::OneOf(&["deepep", "hybridep"]),
        place: Place::Argument,
        own: "deepep",
        get: |o| match o.kernels.dispatch {
            Dispatch::HybridEp => "hybridep".to_string(),
            _ => "deepep".to_string(),
        },
        set: |o, v| {
            o.kernels.dispatch = match (v, o.kernels.dispatch) {
                ("hybridep", Dispatch::DeepEp | Dispatch::HybridEp) => Dispatch::HybridEp,
                ("hybridep", _) => return Err("only dispatcher `flex` has a backend".to_string()),
                (_, Dispatch::HybridEp) => Dispatch::DeepEp,
                (_, other) => other,
            };
            Ok(())
        },
        memory: Changes,
        time: Changes,
        what: "the kernels behind dispatcher `flex`, each a package of its own",
    },
    Word {
        name: "--cross-entropy-loss-fusion",
        takes: Takes::Switch,
        place: Place::Argument,
        own: "false",
        get: |o| flag(o.kernels.cross_entropy != CrossEntropy::Eager),
        set: |o, v| {
            o.kernels.cross_entropy = match (v, o.kernels.cross_entropy) {
                ("true", CrossEntropy::Eager) => CrossEntropy::Native,
                ("true", other) => other,
                _ => CrossEntropy::Eager,
            };
            Ok(())
        },
        memory: Changes,
        time: Changes,
        what: "the loss over the vocabulary in one kernel",
    },
    Word {
        name: "--cross-entropy-fusion-impl",
        takes: Takes::OneOf(&["native", "te"]),
        place: Place::Argument,
        own: "native",
        get: |o| match o.kernels.cross_entropy {
            CrossEntropy::TransformerEngine => "te".to_string(),
            _ => "native".to_string(),
        },
        set: |o, v| {
            o.kernels.cross_entropy = match (v, o.kernels.cross_entropy) {
                ("te", CrossEntropy::Eager) => return Err("it needs --cross-entropy-loss-fusion".to_string()),
                ("te", _) => CrossEntropy::TransformerEngine,
                (_, CrossEntropy::TransformerEngine) => CrossEntropy::Native,
                (_, other) => other,
            };
            Ok(())
        },
        memory: Changes,
        time: Nothing("both are one pass over the logits"),
        what: "whose fused loss",
    },
    Word {
        name: "--attention-backend",
        takes: Takes::OneOf(&["auto", "flash", "fused", "unfused"]),
        place: Place::Argument,
        own: "auto",
        get: |o| match o.kernels.attention {
            AttentionKernel::Unfused => "unfused".to_string(),
            AttentionKernel::Flash1 | AttentionKernel::Flash2 => "flash".to_string(),
            AttentionKernel::Flash3 if o.kernels.names_cudnn => "fused".to_string(),
            AttentionKernel::Flash3 => "auto".to_string(),
        },
        set: |o, v| {
            o.kernels.names_cudnn = v == "fused";
            o.kernels.attention = match v {
                "unfused" => AttentionKernel::Unfused,
                "flash" => AttentionKernel::Flash2,
                _ => AttentionKernel::Flash3,
            };
            Ok(())
        },
        memory: Changes,
        time: Changes,
        what: "the kernel under attention: `fused` is cuDNN's, which `auto` picks on Hopper and newer",
    },
    Word {
        name: "--cuda-graph-impl",
        takes: Takes::OneOf(&["none", "local", "transformer_engine", "full_iteration"]),
        place: Place::Argument,
        own: "none",
        get: |o| o.kernels.graphs.by.name().to_string(),
        set: |o, v| {
            o.kernels.graphs.by = GraphsBy::from_name(v).unwrap_or(GraphsBy::None);
            Ok(())
        },
        memory: Changes,
        time: Changes,
        what: "who records kernels as graphs",
    },
    switch_word!(
        "--check-for-nan-in-loss-and-grad",
        "true",
        kernels.looks_for_nan,
        [Nothing("one value a microbatch"), Nothing("the host waits for the loss either way")],
        "losses and gradients that are no numbers end the run"
    ),
    Word {
        name: "--cuda-graph-modules",
        takes: Takes::Some(&["attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"]),
        place: Place::Argument,
        own: "",
        get: |o| o.kernels.graphs.modules().map(GraphModule::name).collect::<Vec<_>>().join(","),
        set: |o, v| {
            let modules = v.split(',').filter_map(GraphModule::from_name);
            o.kernels.graphs = o.kernels.graphs.of_modules(modules);
            Ok(())
        },
        memory: Changes,
        time: Changes,
        what: "the modules that are recorded; whole layers when none is named",
    },
    Word {
        name: "--main-params-dtype",
        takes: Takes::OneOf(&["fp32", "fp16"]),
        place: Place::Argument,
        own: "fp32",
        get: |o| o.state.main.name().to_string(),
        set: |o, v| dtype(v, &mut o.state.main),
        memory: Changes,
        time: Changes,
        what: "the weights that are stepped",
    },
    Word {
        name: "--exp-avg-dtype",
        takes: DTYPES,
        place: Place::Argument,
        own: "fp32",
        get: |o| o.state.exp_avg.name().to_string(),
        set: |o, v| dtype(v, &mut o.state.exp_avg),
        memory: Changes,
        time: Changes,
        what: "the first moment",
    },
    Word {
        name: "--exp-avg-sq-dtype",
        takes: DTYPES,
        place: Place::Argument,
        own: "fp32",
        get: |o| o.state.exp_avg_sq.name().to_string(),
        set: |o, v| dtype(v, &mut o.state.exp_avg_sq),
        memory: Changes,
        time: Changes,
        what: "the second moment",
    },
    Word {
        name: "--ddp-bucket-size",
        takes: Takes::Number,
        place: Place::Argument,
        own: "",
        get: |o| o.bucket_size.map_or_else(String::new, |size| size.to_string()),
        set: |o, v| {
            o.bucket_size = Some(number(v)?);
            Ok(())
        },
        memory: Changes,
        time: Nothing("the same bytes travel; what more and smaller collectives cost is not priced"),
        what: "elements of a bucket that gradients are reduced in",
    },
    Word {
        name: "--ddp-num-buckets",
        takes: Takes::Number,
        place: Place::Argument,
        own: "",
        get: |o| o.num_buckets.map_or_else(String::new, |buckets| buckets.to_string()),
        set: |o, v| {
            // core/distributed/distributed_data_parallel_config.py
            o.num_buckets = match (number(v)?, o.bucket_size) {
                (0, _) => return Err("num_buckets must be greater than 0".to_string()),
                (_, Some(_)) => return Err("Cannot specify both num_buckets and bucket_size".to_string()),
                (buckets, None) => Some(buckets),
            };
            Ok(())
        },
        memory: Changes,
        time: Nothing("the same bytes travel; what more and smaller collectives cost is not priced"),
        what: "buckets of a rank's parameters, instead of their size",
    },
    switch_word!(
        "--ddp-pad-buckets-for-high-nccl-busbw",
        "false",
        pad_buckets,
        [Changes, Nothing("what aligned messages gain is not priced")],
        "buckets end at multiples of 65536 elements, for message sizes that NCCL moves faster"
    ),
    super::ALLOCATOR,
];

const PASSED: &[Passed] = &[
    Passed { name: "--moe-router-force-load-balancing", values: 0, why: "the estimate has balanced routing already" },
    Passed { name: "--log-throughput", values: 0, why: "a line of the log" },
    Passed { name: "--log-params-norm", values: 0, why: "one reduction behind a step" },
    Passed { name: "--log-num-zeros-in-grad", values: 0, why: "one reduction behind a step" },
    Passed { name: "--log-timers-to-tensorboard", values: 0, why: "a line of the log" },
    Passed { name: "--log-memory-to-tensorboard", values: 0, why: "a line of the log" },
    Passed { name: "--timing-log-level", values: 1, why: "timers" },
    Passed { name: "--distributed-timeout-minutes", values: 1, why: "a limit" },
    Passed { name: "--manual-gc", values: 0, why: "when Python collects" },
    Passed { name: "--manual-gc-interval", values: 1, why: "when Python collects" },
    Passed { name: "--num-workers", values: 1, why: "processes of the data loader on the host" },
    Passed { name: "--wandb-project", values: 1, why: "where the log goes" },
    Passed { name: "--wandb-exp-name", values: 1, why: "where the log goes" },
    Passed {
        name: "--dist-ckpt-optim-fully-reshardable",
        values: 0,
        why: "nothing of a step: state gathers on the first replica while a checkpoint is written",
    },
    Passed { name: "--fake-process-group", values: 0, why: "for a rank by itself: collectives return at once" },
];

const OURS: &[(&str, &str)] = &[
    ("--tensor-model-parallel-size", "--tp"),
    ("--pipeline-model-parallel-size", "--pp"),
    ("--num-virtual-stages-per-pipeline-rank", "--vpp"),
    ("--num-layers-per-virtual-pipeline-stage", "--vpp"),
    ("--context-parallel-size", "--cp"),
    ("--expert-model-parallel-size", "--ep"),
    ("--expert-tensor-parallel-size", "--etp"),
    ("--sequence-parallel", "--sp"),
    ("--micro-batch-size", "--mbs"),
    ("--global-batch-size", "--gbs"),
    ("--seq-length", "--seq"),
    ("--recompute-granularity", "--recompute"),
    ("--recompute-modules", "--recompute"),
    ("--recompute-method", "--recompute"),
    ("--recompute-num-layers", "--recompute"),
    ("--recompute-activations", "--recompute"),
    ("--use-distributed-optimizer", "--zero"),
    ("--use-megatron-fsdp", "--zero"),
    ("--data-parallel-sharding-strategy", "--zero"),
    ("--optimizer", "--optimizer"),
    ("--optimizer-cpu-offload", "--offload-optimizer"),
    ("--optimizer-offload-fraction", "--offload-optimizer"),
    ("--fp8-format", "--precision"),
    ("--fp8-recipe", "--precision"),
    ("--fp4-format", "--precision"),
    ("--fp4-recipe", "--precision"),
    ("--fp8-param-gather", "--fp8-param-gather"),
    ("--bf16", "--precision"),
    ("--main-grads-dtype", "--gradients"),
    ("--grad-reduce-in-bf16", "--gradients"),
    ("--accumulate-allreduce-grads-in-fp32", "--gradients"),
    ("--make-vocab-size-divisible-by", "--vocab-multiple"),
    ("--init-method-std", "the recipe's `init_std`"),
    ("--norm-epsilon", "the recipe's `norm_eps`"),
    ("--hidden-dropout", "the recipe's `dropout`"),
    ("--attention-dropout", "the recipe's `attention.dropout`"),
    ("--rotary-percent", "the recipe's `rope.fraction`"),
    ("--moe-mlp-glu-interleave-size", "--use-transformer-engine-op-fuser"),
    ("--moe-aux-loss-coeff", "the recipe's `moe.router.aux_loss`"),
    ("--moe-z-loss-coeff", "the recipe's `moe.router.z_loss`"),
    ("--moe-router-topk-scaling-factor", "the recipe's `moe.router.scaling`"),
];
