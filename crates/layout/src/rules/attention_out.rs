//! The projection out of heads takes the rank's own heads and sums over ranks.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "attention/heads-out",
    surfaces: &[Surface::AttentionOut],
    quality: Quality::Excellent,
    why: "predictable shapes and collectives",
    cannot_fix: "its bias is added once, whole, after the sum",
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
        held("llama3-8b", "tp=4", "layers.0.attention.out.weight", "tp: by head: 4096×1024"),
        held("llama3-8b", "cp=2", "layers.0.attention.out.weight", "whole at tp 1, by head: 4096×4096"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
