//! nanotron (April 2026), keys of its YAML. Its pipeline engine is `--schedule` (`gpipe` is
//! AllForwardAllBackward).

use super::{Vocabulary, knows_nothing};

pub const VOCABULARY: Vocabulary = Vocabulary {
    words: &[super::ALLOCATOR],
    passed: &[],
    implied: &[],
    refused: &[],
    ours: &[
        ("parallelism.tp", "--tp"),
        ("parallelism.pp", "--pp"),
        ("parallelism.dp", "--dp"),
        ("parallelism.pp_engine", "--schedule"),
        ("optimizer.zero_stage", "--zero"),
        ("tokens.micro_batch_size", "--mbs"),
        ("tokens.sequence_length", "--seq"),
    ],
    tuned: &[],
    close: |_| None,
    knows: knows_nothing,
};
