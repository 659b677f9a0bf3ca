//! Helper projections such as Mamba-3's angles turn every head alike: a rank with a slice would turn its heads differently.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "mixer/helper-replicated",
    surfaces: &[Surface::MixerHelper],
    quality: Quality::Replicated,
    why: "their output is broadcast to all heads",
    cannot_fix: "tensor parallelism cannot shrink them",
    decide,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}
