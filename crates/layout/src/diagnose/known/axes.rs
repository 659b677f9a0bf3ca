//! Tensor, context, pipeline and sharded data parallelism.

use super::super::{At, Diagnosis};

pub const AXES: &[Diagnosis] = &[
    Diagnosis {
        id: "fsdp-lora",
        at: At::Axis("fsdp"),
        place: "parameters added after sharding",
        because: "adapters injected after fully_shard are not managed by it: nobody gathers them or reduces their gradients",
        inspect: &[
            "whether LoRA parameters existed when fully_shard ran",
            "explicit gradient hooks on them, or ignored_params",
            "adapter weights rank by rank after a step",
        ],
        known_by: &[
            &["lora", "adapter", "adapters"],
            &["fsdp", "fsdp2", "fully_shard", "sharding", "shard"],
            &[
                "gradient",
                "gradients",
                "grad",
                "diverge",
                "drift",
                "hook",
                "hooks",
                "after",
                "learn",
                "learns",
                "learning",
                "train",
                "trains",
                "frozen",
                "update",
                "updates",
                "differ",
            ],
            &["rank", "ranks", "weights", "parameters"],
        ],
    },
    Diagnosis {
        id: "cp-reconstruction",
        at: At::Axis("cp"),
        place: "CP exchange under attention",
        because: "a long context is rebuilt from parts; wrong order or masks show as wrong attention, not as a crash",
        inspect: &[
            "chunk order of the causal balance (rank r holds parts r and 2·cp-1-r)",
            "position ids and masks of the parts",
            "loss of one rank against cp on a short sequence",
        ],
        known_by: &[
            &["context", "long-context", "ring", "cp", "sequence"],
            &["attention", "mask", "position", "positions", "kv"],
            &["wrong", "loss", "diverges", "differs", "reconstruction", "bug", "quality"],
        ],
    },
    Diagnosis {
        id: "cp-recurrence",
        at: At::Axis("cp"),
        place: "CP through a recurrence",
        because: "Mamba and recurrent blocks carry state through time; a part that starts from zero state is wrong though shapes agree",
        inspect: &[
            "whether the mixer receives its boundary state, or exchanges heads for time",
            "the convolution's tail of tokens at the cut",
            "loss with cp against one rank, block by block",
        ],
        known_by: &[
            &["mamba", "recurrent", "recurrence", "state", "ssm", "scan", "m2rnn", "rnn"],
            &["cp", "context", "cut", "split", "parallel"],
            &["wrong", "loss", "diverges", "differs", "carry", "boundary"],
        ],
    },
    Diagnosis {
        id: "tp-divisibility",
        at: At::Axis("tp"),
        place: "TP divisibility",
        because: "TP cuts whole heads, groups and columns",
        inspect: &[
            "query heads, KV heads, Mamba heads and groups against tp",
            "feed-forward and shared-expert widths against tp",
            "`shardwright check nam56r --tp 16` names each with the values that would do",
        ],
        known_by: &[
            &["head", "heads", "ngroups", "nheads", "groups", "kv"],
            &["divisible", "divisble", "multiple", "divide", "divides", "assertion"],
            &["tp", "tensor", "tensor_model_parallel_size"],
        ],
    },
    Diagnosis {
        id: "tp-allreduce",
        at: At::Axis("tp"),
        place: "TP all-reduce placement",
        because: "a missing or doubled sum after a row-parallel projection changes the loss at once, by about tp",
        inspect: &[
            "that every row-parallel output is summed exactly once",
            "biases added after the sum, once",
            "gradients of replicated tensors (norms, routers, latents) reduced over tp under SP",
        ],
        known_by: &[
            &["all-reduce", "allreduce", "all_reduce"],
            &["loss", "gradient", "norm", "grad", "placement", "wrong"],
            &["tp", "tensor", "projection", "row"],
        ],
    },
    Diagnosis {
        id: "tp-replicated-drift",
        at: At::Axis("tp"),
        place: "replicated tensors on the TP axis",
        because: "norms, routers, latents and helper projections are whole on every rank and stay equal only if their gradients are summed",
        inspect: &[
            "that SP marks them for a gradient all-reduce over tp",
            "angle projections and router weights rank by rank",
            "random number streams of tp ranks",
        ],
        known_by: &[
            &["replicas", "replicated", "replica", "ranks"],
            &["drift", "drifts", "diverge", "diverges", "differ", "disagree", "unequal"],
            &["norm", "router", "layernorm", "angle", "weights", "parameters"],
        ],
    },
    Diagnosis {
        id: "pp-edge",
        at: At::Axis("pp"),
        place: "what a stage owns besides layers",
        because: "embedding, head, side channels and prediction heads weigh on the first and last stage before a layer is counted",
        inspect: &[
            "`shardwright stages nam56r --pp 4 --balance params` against equal layers",
            "tied and prediction copies of the embedding on the last stage",
            "logits and loss on the last stage",
        ],
        known_by: &[
            &["stage", "stages", "pipeline", "pp"],
            &["first", "last", "uneven", "imbalance", "unbalanced", "slow", "slower", "slowest", "oom", "memory"],
            &["embedding", "head", "logits", "mtp", "vocab"],
        ],
    },
    Diagnosis {
        id: "pp-aux-loss",
        at: At::Axis("pp"),
        place: "auxiliary losses on stages that are not last",
        because: "an expert layer's balancing loss arises on its own stage and must be scaled and reported from there",
        inspect: &[
            "that auxiliary losses are collected on every stage with experts",
            "their scale by microbatches and data parallel size",
            "the logged loss, which only the last stage sees",
        ],
        known_by: &[
            &["aux", "auxiliary", "balancing", "load-balancing"],
            &["loss", "losses"],
            &["stage", "pipeline", "pp", "missing", "last"],
        ],
    },
    Diagnosis {
        id: "pp-state",
        at: At::Axis("pp"),
        place: "recurrent state across stages",
        because: "a recurrence that runs up the depth must cross the (virtual) stage boundary with its activations",
        inspect: &[
            "cuts to look at, in `shardwright stages nam56r --pp 4`",
            "what the point-to-point message holds",
            "`recurrent.depth_carry` in the recipe",
        ],
        known_by: &[
            &["recurrent", "r-block", "rblock", "state", "m2rnn"],
            &["stage", "virtual", "pipeline", "vpp", "boundary"],
            &["lost", "wrong", "reset", "missing", "crosses"],
        ],
    },
    Diagnosis {
        id: "pp-bubble",
        at: At::Axis("pp"),
        place: "pipeline bubble",
        because: "few microbatches leave stages idle: about (pp-1)/microbatches of the step",
        inspect: &["microbatches against pp", "virtual stages", "the schedule: zb-h1, dualpipe, dualpipev"],
        known_by: &[
            &["bubble", "idle", "utilisation", "utilization", "slow"],
            &["pipeline", "stage", "stages", "pp"],
            &["microbatches", "microbatch", "warmup"],
        ],
    },
    Diagnosis {
        id: "fsdp-buckets",
        at: At::Axis("fsdp"),
        place: "bucket size and padding",
        because: "bucket sizes, padding and chunking belong to one topology; copied to another they lose overlap or alignment",
        inspect: &[
            "the topology the constants came from",
            "bucket padding against dp",
            "overlap in a profile, before and after",
        ],
        known_by: &[
            &["bucket", "buckets", "padding", "overlap", "coalescing"],
            &["slow", "slower", "lost", "regression", "copied", "exposed"],
            &["gradient", "reduce", "gather", "optimizer", "dp"],
        ],
    },
    Diagnosis {
        id: "checkpoint-side",
        at: At::Axis("pp"),
        place: "owner stage of side channels in checkpoints",
        because: "side embeddings belong to a named stage; when the cut moves, the checkpoint must still find their owner",
        inspect: &[
            "the owner stage in the recipe",
            "paths in the checkpoint index",
            "copies on first and prediction stage",
        ],
        known_by: &[
            &["checkpoint", "checkpoints", "load", "resume"],
            &["embedding", "side", "ngram", "structure", "missing", "key", "keys"],
            &["stage", "split", "pp", "reshard", "layout"],
        ],
    },
];
