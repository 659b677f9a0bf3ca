//! Down-projections make one latent that every head reads, so every rank computes it.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "attention/latent-replicated",
    surfaces: &[Surface::AttentionLatent],
    quality: Quality::Replicated,
    why: "one latent serves all heads; engines duplicate it",
    cannot_fix: "tensor parallelism cannot shrink it",
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
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] =
        &[held("deepseek-v2-lite", "tp=4", "layers.0.attention.kv_down.weight", "replicated: 576×2048")];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
