//! The gated norm's scale follows the heads; its groups lie inside a rank.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mixer/norm-by-head",
    surfaces: &[Surface::MixerNorm],
    quality: Quality::Partial,
    why: "a norm over all heads needs its sum of squares reduced over ranks",
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
        held("nemotron-h-8b", "tp=4", "layers.0.mamba.gate_norm.weight", "tp: by mamba-head: 2048"),
        held("nemotron-h-8b", "pp=2", "layers.0.mamba.gate_norm.weight", "whole at tp 1, by mamba-head: 8192"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
