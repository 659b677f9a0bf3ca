//! Learned positions are a small table every rank of the first stage reads.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "embedding/positions",
    surfaces: &[Surface::PositionEmbedding],
    quality: Quality::Replicated,
    why: "a lookup without structure to cut",
    cannot_fix: "",
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
        &[held("gpt3-175b", "tp=4", "embedding.positions.weight", "replicated: 2048×12288")];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
