//! The projection out takes the rank's own heads and sums over ranks.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mixer/out-by-head",
    surfaces: &[Surface::MixerOut],
    quality: Quality::Strong,
    why: "a regular matrix edge",
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
        held("nemotron-h-8b", "tp=4", "layers.0.mamba.out_proj.weight", "tp: by mamba-head: 4096×2048"),
        held("nemotron-h-8b", "pp=2", "layers.0.mamba.out_proj.weight", "whole at tp 1, by mamba-head: 4096×8192"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
