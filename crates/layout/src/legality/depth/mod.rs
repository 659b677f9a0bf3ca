//! Layers over pipeline chunks.

pub(crate) mod boundaries;
mod chunks;
mod engram_tokens;
pub(crate) mod stages;
mod state_seam;
mod uneven;
pub(crate) mod unpriced_balance;

use super::{Case, Rule};
use crate::stages::ranges;
use std::ops::Range;

/// Whether there is a layer for every chunk.
fn has_layers(case: &Case) -> bool {
    case.layout.chunks() <= case.recipe.depth() as u64
}

/// The layers of every chunk, where no other rule refuses them.
fn chunks(case: &Case) -> Option<Vec<Range<usize>>> {
    ranges(case.recipe, case.layout, None).ok().filter(|_| has_layers(case))
}

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[
    &stages::RULE,
    &chunks::RULE,
    &boundaries::RULE,
    &unpriced_balance::RULE,
    &uneven::RULE,
    &state_seam::RULE,
    &engram_tokens::RULE,
];
