//! The emitted native PyTorch program (`launch/assets/fsdp2`), keys of its plan.

use super::{Effect, Place, Takes, Vocabulary, Word, flag, knows_nothing, number};
use crate::options::{CrossEntropy, Elementwise};
use crate::ways::{AdapterLayers, BaseFormat, ElementStep, MomentumFormat};
use recipe::Dtype;

const OVERLAPS: Effect =
    Effect::None("a gather is priced beside the group before it, which the host's lead gives without being told");

/// One of an enum's words, as a field of the options' ways.
macro_rules! way {
    ($name:literal, $own:literal, $field:ident, $of:ident, [$($word:literal),+], $time:expr, $what:literal) => {
        Word {
            name: $name,
            takes: Takes::OneOf(&[$($word),+]),
            place: Place::Argument,
            own: $own,
            get: |o| o.ways.$field.name().to_string(),
            set: |o, v| {
                o.ways.$field = $of::from_name(v).ok_or_else(|| format!("`{v}` is none of its words"))?;
                Ok(())
            },
            memory: Effect::Changes,
            time: $time,
            what: $what,
        }
    };
}

/// Built-in recipes that the emitted program has every block of.
const TEACHERS: &[&str] = &["none", "llama3-8b", "llama3-70b", "llama3-405b", "mixtral-8x7b"];

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
        Word {
            name: "loss",
            takes: Takes::OneOf(&["eager", "liger", "cce"]),
            place: Place::Argument,
            own: "eager",
            get: |o| o.kernels.cross_entropy.name().to_string(),
            set: |o, v| {
                o.kernels.cross_entropy =
                    CrossEntropy::from_name(v).ok_or_else(|| format!("`{v}` is none of its words"))?;
                Ok(())
            },
            memory: Effect::Changes,
            time: Effect::Changes,
            what: "head and loss together: liger's chunk by chunk, cce (cut-cross-entropy) without any logits; tp 1, pp 1",
        },
        way!(
            "optimizer",
            "adamw",
            elements,
            ElementStep,
            [
                "adamw",
                "adamw8bit",
                "paged-adamw",
                "paged-adamw8bit",
                "lion",
                "lion8bit",
                "adafactor",
                "sgd",
                "soap",
                "shampoo",
                "ao-adamw8bit",
                "ao-adamw4bit",
                "ao-adamwfp8"
            ],
            Effect::Changes,
            "what steps every tensor that Muon does not; 8 bits, paging and Lion need bitsandbytes, ao- torchao, soap and shampoo pytorch_optimizer"
        ),
        way!(
            "base",
            "main",
            base,
            BaseFormat,
            ["main", "nf4", "nf4-double"],
            Effect::Changes,
            "how projections frozen under adapters are kept; nf4 needs bitsandbytes and tp 1"
        ),
        way!(
            "adapters",
            "ours",
            adapters,
            AdapterLayers,
            ["ours", "peft"],
            Effect::Changes,
            "whose layers multiply adapters: ours in bf16, or peft's in fp32"
        ),
        way!(
            "momentum",
            "fp32",
            momentum,
            MomentumFormat,
            ["fp32", "int8"],
            Effect::Changes,
            "how Muon's momentum is kept: int8 has one fp32 scale for 256 elements"
        ),
        Word {
            name: "teacher",
            takes: Takes::OneOf(TEACHERS),
            place: Place::Argument,
            own: "none",
            get: |o| o.ways.teacher.unwrap_or("none").to_string(),
            set: |o, v| {
                o.ways.teacher = TEACHERS.iter().copied().find(|name| *name == v && *name != "none");
                Ok(())
            },
            memory: Effect::Changes,
            time: Effect::Changes,
            what: "a frozen model beside the trained one, whose distribution over the vocabulary is learned; tp 1 and pp 1",
        },
        switch_word!(
            "average",
            "false",
            ways.average,
            [Effect::Changes, Effect::Changes],
            "an exponential average of the trained weights is kept, in fp32"
        ),
        Word {
            name: "main",
            takes: Takes::OneOf(&["fp32", "bf16"]),
            place: Place::Argument,
            own: "fp32",
            get: |o| o.state.main.name().to_string(),
            set: |o, v| {
                let dtype = Dtype::from_name(v).ok_or_else(|| format!("`{v}` is no format"))?;
                (o.state.main, o.state.exp_avg, o.state.exp_avg_sq) = (dtype, dtype, dtype);
                Ok(())
            },
            memory: Effect::Changes,
            time: Effect::Changes,
            what: "the weights that are stepped, and AdamW's moments; bf16 keeps no fp32 copy",
        },
        super::ALLOCATOR,
    ],
    passed: &[],
    implied: &[],
    refused: &[("float8", "its projections multiply in bf16, and no other format of theirs is replayed or was tried")],
    ours: &[("reshard_after_forward", "--zero")],
    tuned: &[],
    close: |_| None,
    knows: knows_nothing,
};
