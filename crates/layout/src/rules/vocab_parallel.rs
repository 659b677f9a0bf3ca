//! Tokens and logits by vocabulary row.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "embedding/vocabulary",
    surfaces: &[Surface::TokenEmbedding, Surface::OutputHead],
    quality: Quality::Good,
    why: "works once edge ownership is fixed: first and last stage, tied copies, padding",
    cannot_fix: "the table's hidden width, and the stage that must own it",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}
