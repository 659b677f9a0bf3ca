//! Dense feed-forward columns in, rows out: any even cut of the inner width.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mlp/columns",
    surfaces: &[Surface::MlpIn, Surface::MlpOut],
    quality: Quality::Excellent,
    why: "the same regularity as attention projections",
    cannot_fix: "its bias out is added once, whole, after the sum",
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
        held("llama3-8b", "tp=4", "layers.0.mlp.fc1.weight", "tp: packed gate up: 7168×4096"),
        held("llama3-8b", "pp=2", "layers.0.mlp.fc1.weight", "whole at tp 1, packed gate up: 28672×4096"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
