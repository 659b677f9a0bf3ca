//! Dense feed-forward columns in, rows out: any even cut of the inner width.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "mlp/columns",
    surfaces: &[Surface::MlpIn, Surface::MlpOut],
    quality: Quality::Excellent,
    why: "the same regularity as attention projections",
    cannot_fix: "its bias out is added once, whole, after the sum",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
