//! Decay, step, skip and state matrices belong to heads and go with them.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "mixer/scalars-by-head",
    surfaces: &[Surface::MixerScalar],
    quality: Quality::Strong,
    why: "one set a head",
    cannot_fix: "",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
