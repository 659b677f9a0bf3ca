//! What no axis causes alone: every one waits for the same rank, or fills the same device.

use super::super::{At, Diagnosis, Family};

pub const GENERAL: &[Diagnosis] = &[
    Diagnosis {
        id: "startup-peak",
        at: At::Family(Family::Memory),
        place: "the runtime tail",
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
        id: "collective-timeout",
        at: At::Family(Family::Communication),
        place: "the collective that waited, then the rank that did not come",
        because: "a timeout is reported by the ranks that arrived; which axis it is depends on whose group was waiting",
        inspect: &[
            "the group and the last operation in the flight recorder, rank by rank",
            "that group in `shardwright mesh --tp 2 --pp 2 --world 8 --rank 3`: all-to-all is ep, point to point pp, gathers tp, cp or fsdp",
            "the rank that is missing: its own log often ends earlier, with another error",
            "ranks that disagree on shapes or on the order of collectives",
        ],
        known_by: &[
            &["nccl", "rccl", "gloo", "watchdog", "collective", "process-group"],
            &["timeout", "timed", "timed-out", "hang", "hangs", "hung", "stuck", "deadlock", "abort"],
        ],
    },
    Diagnosis {
        id: "not-a-number",
        at: At::Family(Family::Precision),
        place: "precision first, then the reductions of SP and TP",
        because: "no axis makes a NaN by itself: a format overflows, or a reduction adds what it should not",
        inspect: &[
            "the same step on one rank: if it is finite there, a split is at fault, else the recipe is",
            "dtype on both sides of each SP and TP reduction, and what gradients accumulate in",
            "router precision (fp32 scores), and the optimizer's main weights, moments and epsilon",
            "which tensor is not finite first, by layer and rank",
        ],
        known_by: &[
            &["nan", "nans", "inf", "non-finite", "infinite"],
            &["loss", "gradient", "gradients", "grad", "activation", "activations"],
            &["first", "step", "steps", "after", "suddenly"],
        ],
    },
    Diagnosis {
        id: "device-memory",
        at: At::Family(Family::Memory),
        place: "the largest line of the memory plan",
        because: "each axis shrinks its own line and no other, so the line must be known before an axis is chosen",
        inspect: &[
            "the lines of every rank class: `shardwright fit nam56r --mode author_dp --on 8xH200`",
            "which line is the largest on the rank that failed: weights, gradients, optimizer, activations, scratch",
            "weights: tp, pp, zero 3; experts: ep; optimizer state: zero 1; gradients: zero 2",
            "activations: sp, cp, recompute, a smaller microbatch; logits: tp, and the last stage of pp",
            "when it failed: the first steps point at the runtime tail, later ones at routing",
        ],
        known_by: &[
            &["cuda", "gpu", "device", "hip", "oom", "out-of-memory", "outofmemoryerror"],
            &["oom", "out-of-memory", "outofmemoryerror", "memory"],
        ],
    },
];
