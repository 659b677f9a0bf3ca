//! Ranks: the world holds a whole number of dense replicas, and of expert replicas.

mod dense;
mod expert;

use super::Rule;
use crate::layout::Layout;
use crate::request::LayoutRequest;
use diag::Finding;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[&dense::RULE, &expert::RULE];

/// Which of dp and world was typed, and so is not to be contradicted by a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typed {
    /// The number of replicas.
    Dp,
    /// The number of ranks, or neither.
    World,
    /// Replicas and ranks both.
    Both,
}

impl Typed {
    /// What a request typed.
    pub fn of(request: &LayoutRequest) -> Typed {
        match (request.dp, request.world) {
            (Some(_), Some(_)) => Typed::Both,
            (Some(_), None) => Typed::Dp,
            (None, _) => Typed::World,
        }
    }
}

/// What keeps the degrees from filling the world.
pub fn fill(layout: &Layout, has_experts: bool, typed: Typed) -> Vec<Finding> {
    let expert = has_experts.then(|| expert::fill(layout, typed)).flatten();
    dense::fill(layout, typed).into_iter().chain(expert).collect()
}
