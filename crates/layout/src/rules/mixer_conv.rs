//! Short convolutions run channel by channel, so channels follow the segments that feed them.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "mixer/conv-by-channel",
    surfaces: &[Surface::MixerConv],
    quality: Quality::Strong,
    why: "depthwise: no channel reads another",
    cannot_fix: "the tail of tokens at a cut in time",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
