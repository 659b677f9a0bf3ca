//! A norm acts on the whole hidden width, so every rank keeps its scale.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "norm/replicated",
    surfaces: &[Surface::Norm],
    quality: Quality::Replicated,
    why: "vectors as long as the hidden state",
    cannot_fix: "sequence parallelism shards their activations, never their scales",
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

    pub const EXAMPLES: &[Example] = &[held("llama3-8b", "tp=4", "layers.0.attention.norm.weight", "replicated: 4096")];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
