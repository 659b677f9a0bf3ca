//! Learned positions are a small table every rank of the first stage reads.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "embedding/positions",
    surfaces: &[Surface::PositionEmbedding],
    quality: Quality::Replicated,
    why: "a lookup without structure to cut",
    cannot_fix: "",
    decide,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}
