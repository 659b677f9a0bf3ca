//! torchtitan 0.3.0 (`torchtitan/config/configs.py`).

use super::{Effect, Place, Takes, Vocabulary, Word, flag, knows_nothing};
use crate::options::{Again, Dispatch, Elementwise, TpOverlap};

use Effect::{Changes, None as Nothing};

pub const VOCABULARY: Vocabulary = Vocabulary {
    words: &[
        Word {
            name: "compile.enable",
            takes: Takes::Switch,
            place: Place::Argument,
            own: "false",
            get: |o| flag(o.kernels.elementwise == Elementwise::Compiled),
            set: |o, v| {
                o.kernels.elementwise = if v == "true" { Elementwise::Compiled } else { Elementwise::Eager };
                Ok(())
            },
            memory: Changes,
            time: Changes,
            what: "each block is compiled",
        },
        Word {
            name: "activation_checkpoint",
            takes: Takes::OneOf(&["", "SelectiveAC"]),
            place: Place::Argument,
            own: "",
            get: |o| if o.again == Again::ByOperator { "SelectiveAC".to_string() } else { String::new() },
            set: |o, v| {
                o.again = if v == "SelectiveAC" { Again::ByOperator } else { Again::Layout };
                Ok(())
            },
            memory: Changes,
            time: Changes,
            what: "by operator: outputs that are dear are kept, every second product and the rest runs again",
        },
        Word {
            name: "compile.enable_async_tensor_parallel",
            takes: Takes::Switch,
            place: Place::Argument,
            own: "false",
            get: |o| flag(o.overlap.tp == TpOverlap::Async),
            set: |o, v| {
                o.overlap.tp = if v == "true" { TpOverlap::Async } else { TpOverlap::None };
                Ok(())
            },
            memory: Nothing("the same activations are kept; symmetric buffers are not replayed"),
            time: Changes,
            what: "tensor-parallel collectives run beside their products; needs compile.enable",
        },
        Word {
            // models/common/config_utils.py `make_token_dispatcher_config`.
            name: "moe_comm_backend",
            takes: Takes::OneOf(&["standard", "deepep", "hybridep"]),
            place: Place::Argument,
            own: "standard",
            get: |o| match o.kernels.dispatch {
                Dispatch::DeepEp => "deepep".to_string(),
                Dispatch::HybridEp => "hybridep".to_string(),
                Dispatch::AllToAll | Dispatch::AllGather => "standard".to_string(),
            },
            set: |o, v| {
                o.kernels.dispatch = match v {
                    "deepep" => Dispatch::DeepEp,
                    "hybridep" => Dispatch::HybridEp,
                    _ => Dispatch::AllToAll,
                };
                Ok(())
            },
            memory: Changes,
            time: Changes,
            what: "how tokens reach their experts; `standard` is an all-to-all of the library",
        },
        super::ALLOCATOR,
    ],
    passed: &[],
    implied: &[],
    refused: &[],
    ours: &[
        ("parallelism.tensor_parallel_degree", "--tp"),
        ("parallelism.pipeline_parallel_degree", "--pp"),
        ("parallelism.context_parallel_degree", "--cp"),
        ("parallelism.expert_parallel_degree", "--ep"),
        ("parallelism.data_parallel_shard_degree", "--zero"),
        ("parallelism.data_parallel_replicate_degree", "--zero"),
        ("parallelism.fsdp_reshard_after_forward", "--zero"),
        ("parallelism.pipeline_parallel_schedule", "--schedule"),
        ("activation_checkpoint.mode", "--recompute"),
        ("training.local_batch_size", "--mbs"),
        ("training.global_batch_size", "--gbs"),
        ("training.seq_len", "--seq"),
    ],
    tuned: &[],
    close: |_| None,
    knows: knows_nothing,
};
