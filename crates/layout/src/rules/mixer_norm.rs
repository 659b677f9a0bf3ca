//! The gated norm's scale follows the heads; its groups lie inside a rank.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "mixer/norm-by-head",
    surfaces: &[Surface::MixerNorm],
    quality: Quality::Partial,
    why: "a norm over all heads needs its sum of squares reduced over ranks",
    cannot_fix: "",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
