//! What mixes residual streams reads all of them, token by token, so every rank keeps it.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mhc/replicated",
    surfaces: &[Surface::HyperConnection],
    quality: Quality::Replicated,
    why: "a few rows over all residual streams, which stand between tensor-parallel regions",
    cannot_fix: "the streams themselves: sequence parallelism shards them, and each stage is sent all of them",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::four_streams;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] = &[
        held("llama3-8b", "tp=4", "layers.0.mlp.mhc.weight", "replicated: 24×16384").with(four_streams),
        held("llama3-8b", "tp=4", "final.mhc.bias", "replicated: 4").with(four_streams),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
