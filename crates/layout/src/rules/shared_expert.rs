//! The shared expert is a dense MLP: cut by tp, held by every expert-parallel rank.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "moe/shared-expert",
    surfaces: &[Surface::SharedExpertIn, Surface::SharedExpertOut],
    quality: Quality::Excellent,
    why: "dense regularity",
    cannot_fix: "expert parallelism cannot shrink it",
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
        held("deepseek-v2-lite", "tp=4 etp=1", "layers.1.moe.shared.fc1.weight", "tp: packed gate up: 1408×2048"),
        held("deepseek-v2-lite", "ep=4", "layers.1.moe.shared.fc1.weight", "whole at tp 1, packed gate up: 5632×2048"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
