//! Side channels belong to the stage the recipe names; no tensor axis knows their structure.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "side/owner-stage",
    surfaces: &[Surface::SideEmbedding],
    quality: Quality::Explicit,
    why: "an ownership problem first: one stage materialises them, and checkpoints find them there when the split changes",
    cannot_fix: "their size: only an owner of its own, or sharded state, makes them smaller",
    decide,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}
