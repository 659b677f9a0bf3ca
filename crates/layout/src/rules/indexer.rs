//! The sparse indexer scores pairs for every head, so every rank keeps it whole.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "attention/indexer-replicated",
    surfaces: &[Surface::SparseIndexer],
    quality: Quality::Replicated,
    why: "one score table serves all heads; its gradients are averaged over the tensor axis",
    cannot_fix: "tensor parallelism cannot shrink it",
    decide,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}
