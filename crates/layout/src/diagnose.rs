//! From a symptom to the split to look at. Words of the symptom are matched against what each
//! diagnosis is known by; the best match wins, and ties are all shown.

/// A known failure, the axis it points at, and what to inspect.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Diagnosis {
    /// Stable name.
    pub id: &'static str,
    /// The axis to look at, as in `shardwright axes`.
    pub axis: &'static str,
    /// Where on it.
    pub place: &'static str,
    /// Why the symptom points there.
    pub because: &'static str,
    /// What to look at, in order.
    pub inspect: &'static [&'static str],
    /// Words that speak for it; those of one entry are synonyms.
    #[serde(skip)]
    known_by: &'static [&'static [&'static str]],
}

/// Every diagnosis.
pub const DIAGNOSES: &[Diagnosis] = &[
    Diagnosis {
        id: "sp-dtype",
        axis: "sp",
        place: "SP on the TP axis",
        because: "a reduce-scatter of activations is sequence parallelism's half of a pair; both ends must hold one dtype",
        inspect: &[
            "dtype on both sides of the reduce-scatter / all-gather pair (fp8 activations are cast back before it)",
            "where norms and dropout stand relative to the pair",
            "that --sequence-parallel is on for every block of the stage, or for none",
        ],
        known_by: &[
            &["reduce-scatter", "reduce_scatter", "reducescatter"],
            &["dtype", "type", "mismatch", "cast"],
            &["fp8", "float8", "activations", "activation"],
            &["norm", "layernorm", "dropout", "sequence-parallel", "sp"],
        ],
    },
    Diagnosis {
        id: "sp-activation-pressure",
        axis: "sp",
        place: "SP on the TP axis, then recompute",
        because: "plain activation pressure around dense blocks is what SP shrinks, by tp, and it changes no parameter",
        inspect: &[
            "whether SP is on wherever TP is",
            "the recompute policy in force against the activation line",
            "microbatch and sequence, which the line scales with",
        ],
        known_by: &[
            &["activation", "activations"],
            &["memory", "oom", "pressure", "out-of-memory"],
            &["norm", "residual", "dense", "layernorm"],
            &["replicated", "tp"],
        ],
    },
    Diagnosis {
        id: "ep-hang",
        axis: "ep",
        place: "EP dispatch and combine",
        because: "an all-to-all waits for every expert-parallel peer: one wrong count or skipped call stops all of them",
        inspect: &[
            "send and receive counts on every rank of the group (they must be transposes)",
            "a rank with zero tokens that skips the collective",
            "that every rank enters the layer: conditional compute around routing",
        ],
        known_by: &[
            &["all-to-all", "all_to_all", "alltoall", "a2a", "dispatch", "combine"],
            &["hang", "hangs", "hung", "stuck", "deadlock", "timeout", "stall", "stalls"],
            &["expert", "experts", "moe", "routing", "ep"],
        ],
    },
    Diagnosis {
        id: "ep-imbalance",
        axis: "ep",
        place: "EP routing load",
        because: "routing is live: a hot expert overloads the rank that owns it, in memory and in time",
        inspect: &[
            "tokens per expert, over steps; the balancing loss or bias",
            "capacity factor: with one, tokens drop; without, receive buffers grow",
            "memory at an overload factor above 1 on the owning rank",
        ],
        known_by: &[
            &["imbalance", "imbalanced", "skew", "skewed", "drift", "drifts", "overload", "uneven", "hot"],
            &["expert", "experts", "router", "routing", "moe", "tokens", "token", "routed-token"],
            &["oom", "memory", "later", "steps", "slow"],
        ],
    },
    Diagnosis {
        id: "ep-zero-token",
        axis: "ep",
        place: "experts without tokens",
        because: "an expert no token reached has no gradient, and a reduction or autograd graph that expects one breaks",
        inspect: &[
            "that zero-token experts still produce zero gradients",
            "that the gradient reduction does not skip parameters by rank",
            "grouped products with an empty group",
        ],
        known_by: &[
            &["zero", "zero-token", "empty", "unused", "no"],
            &["expert", "experts"],
            &["token", "tokens", "gradient", "gradients", "grad"],
            &["none", "unused", "reduction", "autograd"],
        ],
    },
    Diagnosis {
        id: "ep-expert-count",
        axis: "ep",
        place: "EP divisibility",
        because: "EP deals whole experts out, so it must divide their number",
        inspect: &["routed experts against ep", "world size against etp·ep·pp", "whether MoE is on at all"],
        known_by: &[
            &["experts", "expert", "num_experts", "num-experts"],
            &["divisible", "multiple", "divide", "divides", "assertion"],
        ],
    },
    Diagnosis {
        id: "sp-after-ep",
        axis: "sp",
        place: "the way back from EP to SP",
        because: "combine must restore the sequence-sharded view before the next norm or projection reads it",
        inspect: &[
            "that unpermute follows combine on every path",
            "shape after the expert layer: sequence / tp, not sequence",
            "shared-expert output added in the same view",
        ],
        known_by: &[
            &["shape", "size", "dimension"],
            &["after", "combine", "unpermute", "unpermutation"],
            &["moe", "expert", "experts", "ep"],
            &["sequence", "norm", "residual", "next"],
        ],
    },
    Diagnosis {
        id: "cp-reconstruction",
        axis: "cp",
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
        axis: "cp",
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
        axis: "tp",
        place: "TP divisibility",
        because: "TP cuts whole heads, groups and columns",
        inspect: &[
            "query heads, KV heads, Mamba heads and groups against tp",
            "feed-forward and shared-expert widths against tp",
            "`shardwright check` names each with the values that would do",
        ],
        known_by: &[
            &["head", "heads", "ngroups", "nheads", "groups", "kv"],
            &["divisible", "divisble", "multiple", "divide", "divides", "assertion"],
            &["tp", "tensor", "tensor_model_parallel_size"],
        ],
    },
    Diagnosis {
        id: "tp-allreduce",
        axis: "tp",
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
        axis: "tp",
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
        axis: "pp",
        place: "what a stage owns besides layers",
        because: "embedding, head, side channels and prediction heads weigh on the first and last stage before a layer is counted",
        inspect: &[
            "`shardwright stages --balance params` against equal layers",
            "tied and prediction copies of the embedding on the last stage",
            "logits and loss on the last stage",
        ],
        known_by: &[
            &["stage", "stages", "pipeline", "pp"],
            &["first", "last", "uneven", "imbalance", "unbalanced", "slow", "oom", "memory"],
            &["embedding", "head", "logits", "mtp", "vocab"],
        ],
    },
    Diagnosis {
        id: "pp-aux-loss",
        axis: "pp",
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
        axis: "pp",
        place: "recurrent state across stages",
        because: "a recurrence that runs up the depth must cross the (virtual) stage boundary with its activations",
        inspect: &[
            "seams in `shardwright stages`",
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
        axis: "pp",
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
        id: "fsdp-lora",
        axis: "fsdp",
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
            &["gradient", "gradients", "diverge", "drift", "hook", "hooks", "after"],
        ],
    },
    Diagnosis {
        id: "fsdp-buckets",
        axis: "fsdp",
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
        id: "startup-peak",
        axis: "fsdp",
        place: "the runtime tail, on no axis",
        because: "process groups, compile, the first backward and the first optimizer step peak above the settled state",
        inspect: &[
            "allocated against reserved memory at the first step",
            "when optimizer moments are made",
            "memory outside the allocator: context, communicators, workspaces",
        ],
        known_by: &[
            &["startup", "start", "first", "launch", "compile"],
            &["oom", "memory", "out-of-memory", "peak"],
            &["step", "backward", "init", "fragmentation", "reserve"],
        ],
    },
    Diagnosis {
        id: "checkpoint-side",
        axis: "pp",
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

/// A diagnosis with how many of its word groups the symptom touched.
#[derive(Clone, Copy, Debug)]
pub struct Match {
    /// The diagnosis.
    pub diagnosis: &'static Diagnosis,
    /// Groups touched.
    pub score: usize,
}

/// The diagnoses a symptom points at, best first; empty when no word is known.
pub fn diagnose(symptom: &str) -> Vec<Match> {
    let lower: String = symptom.chars().take(4096).collect::<String>().to_lowercase();
    let split = |c: char| !(c.is_alphanumeric() || c == '-' || c == '_');
    let words: Vec<&str> = lower.split(split).filter(|w| !w.is_empty()).collect();
    let spoken = |word: &&str| words.contains(word) || (word.contains('-') && lower.contains(&word.replace('-', " ")));
    let score = |d: &'static Diagnosis| {
        let touched = d.known_by.iter().filter(|group| group.iter().any(&spoken)).count();
        Match { diagnosis: d, score: touched }
    };
    let mut matches: Vec<Match> = DIAGNOSES.iter().map(score).filter(|m| m.score >= 2).collect();
    matches.sort_by_key(|m| std::cmp::Reverse(m.score));
    matches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(symptom: &str) -> &'static str {
        diagnose(symptom).first().map_or("none", |m| m.diagnosis.id)
    }

    #[test]
    fn symptoms_of_the_texts_point_where_the_texts_point() {
        assert_eq!(first("reduce-scatter dtype mismatch with fp8 activations"), "sp-dtype");
        assert_eq!(first("all-to-all hang in the MoE layer"), "ep-hang");
        assert_eq!(first("routed-token imbalance"), "ep-imbalance");
        assert_eq!(first("long-context attention reconstruction bug"), "cp-reconstruction");
        assert_eq!(
            first("num_attention_heads must be divisible by tensor_model_parallel_size: heads"),
            "tp-divisibility"
        );
        assert_eq!(first("Mamba loss differs with context parallel"), "cp-recurrence");
        assert_eq!(first("LoRA gradients diverge after fully_shard"), "fsdp-lora");
        assert_eq!(first("OOM on the last pipeline stage with a big vocab"), "pp-edge");
        assert_eq!(first("zero-token expert has no gradient"), "ep-zero-token");
        assert_eq!(first("out of memory hundreds of steps later when routing drifts"), "ep-imbalance");
        assert_eq!(first("auxiliary loss missing on the first stage"), "pp-aux-loss");
        assert_eq!(first("OOM in the first backward"), "startup-peak");
        assert_eq!(first("it is broken"), "none");
    }

    #[test]
    fn every_diagnosis_names_a_known_axis() {
        for d in DIAGNOSES {
            assert!(crate::axes::find(d.axis).is_some(), "{} names axis {}", d.id, d.axis);
            assert!(!d.inspect.is_empty());
        }
    }
}
