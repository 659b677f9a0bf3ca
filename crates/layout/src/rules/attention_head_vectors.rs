//! Scalars and norms of heads follow their heads; a norm shared by all heads stays whole.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "attention/head-vectors",
    surfaces: &[Surface::AttentionSink, Surface::AttentionNorm],
    quality: Quality::Good,
    why: "small, and cut exactly where heads are cut",
    cannot_fix: "",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
