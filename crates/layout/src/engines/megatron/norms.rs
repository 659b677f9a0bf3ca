//! Norms, embeddings and heads of other models.

use crate::engines::refuse_edges;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;
use recipe::kinds::Activation;

/// Grouped experts have gpt-oss' unit (`megatron/core/fusions/fused_bias_geglu.py`), dense blocks do not.
const HAS: [(Mixer, Activation); 1] = [(Mixer::Moe, Activation::SwiGluOai)];

pub const RULE: Rule = Rule {
    id: "megatron/norms",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    refuse_edges(&RULE, "Megatron-Core", &HAS, case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, four_streams, silent};
    use recipe::kinds::{Activation, Norm, NormPlace};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=megatron", "Megatron-Core has no norms behind blocks")
            .with(|r| r.norm_place = NormPlace::Both),
        found("llama3-8b", "engine=megatron", "Megatron-Core has no norm without a scale or a shift")
            .with(|r| r.norm = Norm::LayerNormScale),
        found("llama3-8b", "engine=megatron", "Megatron-Core has no bias of the output head")
            .with(|r| r.head_bias = true),
        found("llama3-8b", "engine=megatron", "Megatron-Core has no hyper-connections").with(four_streams),
        found("llama3-8b", "engine=megatron", "Megatron-Core has no gated unit of gpt-oss here")
            .with(|r| r.mlp.as_mut().unwrap().activation = Activation::SwiGluOai),
        silent("qwen3-30b-a3b", "engine=megatron").with(|r| r.moe.as_mut().unwrap().activation = Activation::SwiGluOai),
        silent("llama3-8b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
