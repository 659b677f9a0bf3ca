//! The emitted native PyTorch program (`launch/assets/fsdp2`), keys of its plan.

use super::{Effect, Place, Takes, Vocabulary, Word, flag, knows_nothing};
use crate::options::Elementwise;

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
        super::ALLOCATOR,
    ],
    passed: &[],
    implied: &[],
    ours: &[("reshard_after_forward", "--zero")],
    tuned: &[],
    knows: knows_nothing,
};
