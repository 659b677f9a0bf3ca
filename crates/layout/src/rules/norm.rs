//! A norm acts on the whole hidden width, so every rank keeps its scale.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "norm/replicated",
    surfaces: &[Surface::Norm],
    quality: Quality::Replicated,
    why: "vectors as long as the hidden state",
    cannot_fix: "sequence parallelism shards their activations, never their scales",
    decide,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}
