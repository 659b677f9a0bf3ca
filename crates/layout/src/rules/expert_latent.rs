//! The projections into and out of a latent expert space act before and after dispatch, on every token.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "moe/latent-replicated",
    surfaces: &[Surface::ExpertLatent],
    quality: Quality::Replicated,
    why: "every rank projects its own tokens",
    cannot_fix: "expert parallelism cannot shrink them",
    decide,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}
