//! Projections into a state-carrying mixer split segment by segment, by whole heads and groups.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mixer/in-by-head",
    surfaces: &[Surface::MixerIn],
    quality: Quality::Strong,
    why: "projection edges are regular matrices once each segment is cut by itself",
    cannot_fix: "the recurrence between them: its state has a contract of its own",
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
        held("nemotron-h-8b", "tp=4", "layers.0.mamba.in_proj.weight", "tp: packed z x B C dt: 4640×4096"),
        held("nemotron-h-8b", "pp=2", "layers.0.mamba.in_proj.weight", "whole at tp 1, packed z x B C dt: 18560×4096"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
