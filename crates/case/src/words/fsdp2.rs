//! The emitted native PyTorch program (`launch/assets/fsdp2`), keys of its plan.

use super::{Effect, Place, Takes, Vocabulary, Word, flag, knows_nothing, number};
use crate::options::Elementwise;

const OVERLAPS: Effect =
    Effect::None("a gather is priced beside the group before it, which the host's lead gives without being told");

pub const VOCABULARY: Vocabulary = Vocabulary {
    words: &[
        Word {
            name: "compile",
            takes: Takes::Switch,
            place: Place::Argument,
            own: "false",
            get: |o| flag(o.kernels.elementwise == Elementwise::Compiled),
            set: |o, v| {
                o.kernels.elementwise = if v == "true" { Elementwise::Compiled } else { Elementwise::Eager };
                Ok(())
            },
            memory: Effect::Changes,
            time: Effect::Changes,
            what: "attention, experts and feed-forward blocks are compiled; scans stay eager",
        },
        Word {
            name: "forward_prefetch",
            takes: Takes::Number,
            place: Place::Argument,
            own: "0",
            get: |o| o.prefetch.forward.to_string(),
            set: |o, v| {
                o.prefetch.forward = number(v)?;
                Ok(())
            },
            memory: Effect::Changes,
            time: OVERLAPS,
            what: "groups gathered ahead in forward; 0 leaves it to the host, which runs ahead",
        },
        Word {
            name: "backward_prefetch",
            takes: Takes::Number,
            place: Place::Argument,
            own: "1",
            get: |o| o.prefetch.backward.to_string(),
            set: |o, v| match number(v)? {
                0 => Err("fully_shard always gathers one group ahead in backward".to_string()),
                groups => {
                    o.prefetch.backward = groups;
                    Ok(())
                }
            },
            memory: Effect::Changes,
            time: OVERLAPS,
            what: "groups gathered ahead in backward",
        },
        super::ALLOCATOR,
    ],
    passed: &[],
    implied: &[],
    refused: &[("float8", "its projections multiply in bf16, and no other format of theirs is replayed or was tried")],
    ours: &[("reshard_after_forward", "--zero")],
    tuned: &[],
    knows: knows_nothing,
};
