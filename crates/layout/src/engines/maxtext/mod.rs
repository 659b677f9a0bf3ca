//! MaxText 0.2.5. File names are relative to `maxtext`.

mod gated_delta_cp;
mod layers;
mod microbatches;
mod no_block;
mod norms;
mod parallel_block;
mod schedule;

use crate::legality::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[
    &norms::RULE,
    &no_block::RULE,
    &parallel_block::RULE,
    &schedule::RULE,
    &layers::RULE,
    &microbatches::RULE,
    &gated_delta_cp::RULE,
];
