//! The projection out of heads takes the rank's own heads and sums over ranks.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "attention/heads-out",
    surfaces: &[Surface::AttentionOut],
    quality: Quality::Excellent,
    why: "predictable shapes and collectives",
    cannot_fix: "its bias is added once, whole, after the sum",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
