//! torchtitan 0.3.0. File names are relative to `torchtitan`.

mod ep_mesh;
mod etp;
mod gated_delta_cp;
mod kv_heads;
mod microbatches;
mod mtp;
mod no_block;
mod norms;
mod parallel_block;
mod recompute;
mod schedule;
mod tied_pp;
mod zero;

use crate::legality::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[
    &norms::RULE,
    &no_block::RULE,
    &parallel_block::RULE,
    &schedule::RULE,
    &kv_heads::RULE,
    &tied_pp::RULE,
    &mtp::RULE,
    &gated_delta_cp::RULE,
    &etp::RULE,
    &ep_mesh::RULE,
    &microbatches::RULE,
    &zero::RULE,
    &recompute::RULE,
];
