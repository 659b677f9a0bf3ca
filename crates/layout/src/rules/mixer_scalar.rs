//! Decay, step, skip and state matrices belong to heads and go with them.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mixer/scalars-by-head",
    surfaces: &[Surface::MixerScalar],
    quality: Quality::Strong,
    why: "one set a head",
    cannot_fix: "",
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
        held("nemotron-h-8b", "tp=4", "layers.0.mamba.dt_bias", "tp: by mamba-head: 32"),
        held("nemotron-h-8b", "pp=2", "layers.0.mamba.dt_bias", "whole at tp 1, by mamba-head: 128"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
