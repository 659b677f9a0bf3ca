//! The projection out takes the rank's own heads and sums over ranks.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "mixer/out-by-head",
    surfaces: &[Surface::MixerOut],
    quality: Quality::Strong,
    why: "a regular matrix edge",
    cannot_fix: "",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
