//! DeepSpeed 0.19.8, keys of its JSON (`runtime/zero/config.py`). Offload is said by
//! `--offload-optimizer`, `--offload-params` and `--offload-nvme`.

use super::{Effect, Place, Takes, Vocabulary, Word, knows_nothing, number};

use Effect::{Changes, None as Nothing};

const SAME_BYTES: Effect = Nothing("the same bytes travel; what more and smaller collectives cost is not priced");

macro_rules! size {
    ($name:literal, $own:literal, $field:ident, $what:literal) => {
        Word {
            name: $name,
            takes: Takes::Number,
            place: Place::Argument,
            own: $own,
            get: |o| o.zero.$field.to_string(),
            set: |o, v| {
                o.zero.$field = number(v)?;
                Ok(())
            },
            memory: Changes,
            time: SAME_BYTES,
            what: $what,
        }
    };
}

pub const VOCABULARY: Vocabulary = Vocabulary {
    words: &[
        switch_word!(
            "zero_optimization.overlap_comm",
            "false",
            overlap.gradients,
            [Changes, Changes],
            "gradients are reduced under backward below ZeRO 3, with a second buffer; ZeRO 3 always does"
        ),
        size!("zero_optimization.reduce_bucket_size", "500000000", reduce_bucket, "elements reduced at once"),
        size!("zero_optimization.allgather_bucket_size", "500000000", allgather_bucket, "elements gathered at once"),
        size!(
            "zero_optimization.stage3_prefetch_bucket_size",
            "50000000",
            prefetch_bucket,
            "elements gathered ahead under ZeRO 3"
        ),
        size!(
            "zero_optimization.stage3_param_persistence_threshold",
            "100000",
            param_persistence_threshold,
            "tensors of at most so many elements are never partitioned away"
        ),
        size!(
            "zero_optimization.stage3_max_live_parameters",
            "1000000000",
            max_live_parameters,
            "gathered elements beyond which nothing is gathered ahead"
        ),
        size!(
            "zero_optimization.stage3_max_reuse_distance",
            "1000000000",
            max_reuse_distance,
            "weights used again within so many elements are kept"
        ),
        size!("zero_optimization.sub_group_size", "1000000000", sub_group, "elements stepped at once under ZeRO 3"),
        super::ALLOCATOR,
    ],
    passed: &[],
    implied: &[],
    refused: &[],
    ours: &[
        ("zero_optimization.stage", "--zero"),
        ("zero_optimization.offload_optimizer.device", "--offload-optimizer"),
        ("zero_optimization.offload_param.device", "--offload-params"),
        ("zero_optimization.offload_optimizer.nvme_path", "--offload-nvme"),
        ("zero_optimization.offload_param.nvme_path", "--offload-nvme"),
        ("train_micro_batch_size_per_gpu", "--mbs"),
        ("train_batch_size", "--gbs"),
        ("gradient_accumulation_steps", "--microbatches"),
        ("tensor_parallel.autotp_size", "--tp"),
        ("sequence_parallel_size", "--cp"),
    ],
    tuned: &[
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.stage3_max_reuse_distance",
        "zero_optimization.sub_group_size",
    ],
    close: |_| None,
    knows: knows_nothing,
};
