//! The projection that joins hidden state and next embedding is cut by output column and gathered.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mtp/join-columns",
    surfaces: &[Surface::PredictionJoin],
    quality: Quality::Good,
    why: "regular, on the last stage only",
    cannot_fix: "pipeline depth: prediction heads stay on the objective's stage",
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
    use crate::legality::example::switch_on;
    use crate::rules::example::{Example, held};
    use recipe::Feature;

    pub const EXAMPLES: &[Example] = &[
        held("deepseek-v3", "tp=4", "mtp.0.join.weight", "tp: by channel: 1792×14336")
            .with(|r| switch_on(r, Feature::Mtp)),
        held("deepseek-v3", "pp=2", "mtp.0.join.weight", "whole at tp 1, by channel: 7168×14336")
            .with(|r| switch_on(r, Feature::Mtp)),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
