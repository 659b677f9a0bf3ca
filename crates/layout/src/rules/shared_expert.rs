//! The shared expert is a dense MLP: cut by tp, held by every expert-parallel rank.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "moe/shared-expert",
    surfaces: &[Surface::SharedExpertIn, Surface::SharedExpertOut],
    quality: Quality::Excellent,
    why: "dense regularity",
    cannot_fix: "expert parallelism cannot shrink it",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
