//! nanotron, main of April 2026. File names are relative to `src/nanotron`.

mod ep;
mod etp;
mod kv_heads;
mod microbatches;
mod mla;
mod mtp;
mod no_block;
mod norms;
mod parallel_block;
mod schedule;
mod zero;

use crate::legality::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[
    &norms::RULE,
    &no_block::RULE,
    &parallel_block::RULE,
    &schedule::RULE,
    &mla::RULE,
    &mtp::RULE,
    &ep::RULE,
    &etp::RULE,
    &kv_heads::RULE,
    &zero::RULE,
    &microbatches::RULE,
];
