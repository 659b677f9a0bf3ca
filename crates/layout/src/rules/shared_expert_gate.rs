//! One scalar a token; every rank computes it.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "moe/shared-gate-replicated",
    surfaces: &[Surface::SharedExpertGate],
    quality: Quality::Replicated,
    why: "a vector as long as the hidden state",
    cannot_fix: "",
    decide,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}
