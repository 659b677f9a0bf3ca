//! Short convolutions run channel by channel, so channels follow the segments that feed them.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mixer/conv-by-channel",
    surfaces: &[Surface::MixerConv],
    quality: Quality::Strong,
    why: "depthwise: no channel reads another",
    cannot_fix: "the tail of tokens at a cut in time",
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
        held("nemotron-h-8b", "tp=4", "layers.0.mamba.conv.weight", "tp: packed x B C: 2560×1×4"),
        held("nemotron-h-8b", "pp=2", "layers.0.mamba.conv.weight", "whole at tp 1, packed x B C: 10240×1×4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
