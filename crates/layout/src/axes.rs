//! What each axis is: the object it partitions, what it communicates, where it belongs, and what
//! it cannot fix. Sequence parallelism and state sharding are listed beside the mesh axes,
//! because people reach for them by name.

/// One axis, explained.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct AxisFacts {
    /// As typed.
    pub name: &'static str,
    /// In words.
    pub title: &'static str,
    /// What it partitions.
    pub partitions: &'static str,
    /// What it communicates.
    pub communicates: &'static str,
    /// What it is for.
    pub best_for: &'static str,
    /// What it must divide or need.
    pub needs: &'static str,
    /// What it cannot fix.
    pub cannot_fix: &'static str,
    /// Where in a cluster it belongs.
    pub placement: &'static str,
    /// Its place in the order of application, if it has one.
    pub order: Option<u8>,
}

/// The order in which splits are applied, and why.
pub const ORDER: &str = "TP → PP → FSDP → EP: matrix ownership first, then whole layers, then state of what a stage holds, \
then experts, whose routing needs the rest in place";

/// Every axis, in the order of application first.
pub const AXES: &[AxisFacts] = &[
    AxisFacts {
        name: "tp",
        title: "tensor parallelism",
        partitions: "weight matrices and head groups of TP-aware modules",
        communicates: "all-reduce, or reduce-scatter and all-gather with SP, twice a block in forward and again in backward",
        best_for: "dense projections whose weights or activations do not fit one rank",
        needs: "divides query heads, Mamba heads and groups, feed-forward columns; KV heads divide or are divided",
        cannot_fix: "expert ownership, replicated tensors (norms, routers, latents, helper projections), cuts in time",
        placement: "inside the fast island: its collectives stand in the layer body",
        order: Some(1),
    },
    AxisFacts {
        name: "sp",
        title: "sequence parallelism",
        partitions: "activations between TP regions (norms, residuals, dropout), along the sequence, on the TP axis",
        communicates: "the reduce-scatter / all-gather pair that replaces TP's all-reduce; the same bytes",
        best_for: "activation memory around TP compute; required when TP meets experts",
        needs: "sequence divides by tp·cp; both sides of the pair agree on dtype",
        cannot_fix: "parameter count, optimizer state, expert banks; it owns no rank and no weight",
        placement: "wherever TP is",
        order: None,
    },
    AxisFacts {
        name: "pp",
        title: "pipeline parallelism",
        partitions: "depth: whole layers to stages, with the edges each stage owns besides",
        communicates: "activations and their gradients from stage to stage, point to point",
        best_for: "models too deep for an island; crossing the slower fabric",
        needs: "at least one layer a chunk; microbatches to fill the pipeline",
        cannot_fix: "a layer too wide for its ranks, the bubble of few microbatches, activations of early stages",
        placement: "may cross islands: it sends little and can wait",
        order: Some(2),
    },
    AxisFacts {
        name: "fsdp",
        title: "data parallelism with sharded state (ZeRO 1 to 3)",
        partitions: "optimizer state (1), gradients (2), weights (3) of what a stage and TP rank hold, over replicas",
        communicates: "reduce-scatter of gradients, all-gather of weights (every use under ZeRO 3)",
        best_for: "state memory once the matrices fit; scaling the batch",
        needs: "the global batch is a multiple of dp·mbs",
        cannot_fix: "activations, routing scratch, or a layer whose gathered weights do not fit",
        placement: "may cross islands: it overlaps with compute",
        order: Some(3),
    },
    AxisFacts {
        name: "ep",
        title: "expert parallelism",
        partitions: "expert banks, and with them where routed tokens go",
        communicates: "counts, then all-to-all dispatch and all-to-all combine, in every expert layer",
        best_for: "models whose weights are mostly experts",
        needs: "divides routed experts; with TP it needs SP, so that tokens come back sequence-sharded",
        cannot_fix: "dense layers, routers, shared experts, routing imbalance, activations of non-expert blocks",
        placement: "inside the fast island where it fits: its all-to-all moves with the routing",
        order: Some(4),
    },
    AxisFacts {
        name: "etp",
        title: "expert tensor parallelism",
        partitions: "matrices inside each expert",
        communicates: "gather of routed tokens and reduce of expert outputs within the group",
        best_for: "experts too wide for a rank; otherwise 1 keeps their products large",
        needs: "divides the expert width",
        cannot_fix: "the number of experts a rank holds, or imbalance between them",
        placement: "inside the fast island",
        order: None,
    },
    AxisFacts {
        name: "cp",
        title: "context parallelism",
        partitions: "the token timeline: each rank holds an early and a late part of every sequence",
        communicates: "keys and values around a ring under attention; heads for time (all-to-all) or boundary state in recurrences",
        best_for: "sequences whose activations do not fit one rank",
        needs: "sequence divides by 2·cp; a recurrence must carry its state or exchange heads",
        cannot_fix: "weights (replicated over cp), or a recurrence whose state nobody carries",
        placement: "inside the island first; a ring tolerates more distance than TP",
        order: None,
    },
];

/// What is often taken for an axis and is none.
pub const NOT_AXES: &[(&str, &str)] = &[
    ("distributed checkpointing", "saves and reshards state at load; it preserves ownership and never decides it"),
    ("recompute", "trades compute for saved activations; it decides nothing about who holds what"),
    ("virtual stages", "reorder a stage's depth into chunks; seams through E and R regions stay"),
];

/// The facts of an axis by name; data parallelism answers to several.
pub fn find(name: &str) -> Option<&'static AxisFacts> {
    let name = match name {
        "dp" | "zero" | "ddp" | "fsdp2" => "fsdp",
        other => other,
    };
    AXES.iter().find(|axis| axis.name == name)
}
