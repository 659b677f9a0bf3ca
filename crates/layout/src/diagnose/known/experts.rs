//! Sequence and expert parallelism: dispatch, routing load, and the way in and out of both.

use super::super::{At, Diagnosis};

pub const EXPERTS: &[Diagnosis] = &[
    Diagnosis {
        id: "sp-dtype",
        at: At::Axis("sp"),
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
        at: At::Axis("sp"),
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
        at: At::Axis("ep"),
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
        at: At::Axis("ep"),
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
        at: At::Axis("ep"),
        place: "experts without tokens",
        because: "an expert no token reached has no gradient, and a reduction or autograd graph that expects one breaks",
        inspect: &[
            "that zero-token experts still produce zero gradients",
            "that the gradient reduction does not skip parameters by rank",
            "grouped products with an empty group",
        ],
        known_by: &[
            &["zero", "zero-token", "empty", "unused", "no-token", "no-tokens"],
            &["expert", "experts"],
            &["token", "tokens", "gradient", "gradients", "grad"],
            &["none", "unused", "reduction", "autograd"],
        ],
    },
    Diagnosis {
        id: "ep-expert-count",
        at: At::Axis("ep"),
        place: "EP divisibility",
        because: "EP deals whole experts out, so it must divide their number",
        inspect: &["routed experts against ep", "world size against etp·ep·pp", "whether MoE is on at all"],
        known_by: &[
            &["experts", "expert", "num_experts", "num-experts"],
            &["divisible", "multiple", "divide", "divides", "assertion"],
        ],
    },
    Diagnosis {
        id: "ep-capacity",
        at: At::Axis("ep"),
        place: "expert capacity",
        because: "tokens drop only where a capacity factor caps what an expert accepts; without one the buffers grow instead",
        inspect: &[
            "the capacity factor, and whether the model was meant to have one",
            "tokens per expert against capacity = tokens·top_k/experts · factor",
            "the balancing loss or bias, which decides how often the cap is met",
        ],
        known_by: &[
            &["dropped", "drop", "drops", "dropping", "capacity", "overflow"],
            &["token", "tokens", "routed-token"],
            &["router", "routing", "expert", "experts", "moe"],
        ],
    },
    Diagnosis {
        id: "ep-scratch",
        at: At::Axis("ep"),
        place: "routing scratch",
        because: "dispatch counts grow with the experts of the layer, receive and combine buffers with capacity and local experts: a line of its own, that neither weights nor saved activations show",
        inspect: &[
            "routing scratch as a line of its own, apart from saved activations",
            "local experts (experts / ep) and the capacity factor",
            "tokens of a microbatch on a rank, and top_k",
        ],
        known_by: &[
            &["scratch", "buffer", "buffers", "workspace", "permute", "permutation"],
            &["router", "routing", "dispatch", "combine", "moe"],
            &["expert", "experts"],
            &["grow", "grows", "growing", "memory", "oom", "out-of-memory"],
        ],
    },
    Diagnosis {
        id: "etp-reduction",
        at: At::Axis("etp"),
        place: "reductions inside and between expert replicas",
        because: "experts live on their own mesh: etp sums inside an expert, edp between its copies, and neither is tp or dp",
        inspect: &[
            "that expert outputs are summed over etp, once, and not over tp",
            "that expert gradients are reduced over edp = world / (etp·ep·pp), not over dp·cp",
            "the divisor of the average: every token of the ep group reached these experts",
        ],
        known_by: &[
            &["etp", "edp", "expert-tensor", "expert-data", "expert-tensor-parallel", "expert-data-parallel"],
            &["gradient", "gradients", "grad", "reduction", "norm"],
            &["wrong", "differ", "differs", "scaled", "doubled", "mismatch", "diverge", "diverges"],
        ],
    },
    Diagnosis {
        id: "sp-after-ep",
        at: At::Axis("sp"),
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
];
