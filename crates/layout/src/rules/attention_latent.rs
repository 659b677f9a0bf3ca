//! Down-projections make one latent that every head reads, so every rank computes it.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "attention/latent-replicated",
    surfaces: &[Surface::AttentionLatent],
    quality: Quality::Replicated,
    why: "one latent serves all heads; engines duplicate it",
    cannot_fix: "tensor parallelism cannot shrink it",
    decide,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}
