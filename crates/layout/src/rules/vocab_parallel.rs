//! Tokens and logits by vocabulary row.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "embedding/vocabulary",
    surfaces: &[Surface::TokenEmbedding, Surface::OutputHead],
    quality: Quality::Good,
    why: "works once edge ownership is fixed: first and last stage, tied copies, padding",
    cannot_fix: "the table's hidden width, and the stage that must own it",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] = &[
        held("llama3-8b", "tp=4", "embedding.tokens.weight", "tp: by token: 32064×4096"),
        held("llama3-8b", "pp=2", "embedding.tokens.weight", "whole at tp 1, by token: 128256×4096"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
