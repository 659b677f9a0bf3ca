//! Every rank routes its own tokens, so every rank keeps the router.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "moe/router-replicated",
    surfaces: &[Surface::Router],
    quality: Quality::Replicated,
    why: "live token distribution drives it; weights are small",
    cannot_fix: "expert parallelism distributes banks, never the choice",
    decide,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}
