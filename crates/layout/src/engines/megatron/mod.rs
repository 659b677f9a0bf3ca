//! Megatron-Core 0.19.2. File names are relative to `megatron/core` unless they start with
//! `training/`.

mod dsa_cp;
mod dsa_mla;
mod dsa_sp;
mod expert_bias;
mod fsdp;
mod gdn_recompute;
mod index_share;
mod linear;
mod mamba1;
mod mamba3;
mod mtp_positions;
mod muon_fsdp;
mod norms;
mod one_activation;
mod parallel_block;
mod qk_norm;
mod recurrent;
mod schedule;
mod shared_bias;
mod side_embeddings;
mod sinks;
mod top_1;
mod window_cp;

use crate::legality::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[
    &norms::RULE,
    &recurrent::RULE,
    &mamba1::RULE,
    &linear::RULE,
    &mamba3::RULE,
    &parallel_block::RULE,
    &sinks::RULE,
    &qk_norm::RULE,
    &one_activation::RULE,
    &side_embeddings::RULE,
    &top_1::RULE,
    &shared_bias::RULE,
    &expert_bias::RULE,
    &schedule::RULE,
    &mtp_positions::RULE,
    &dsa_mla::RULE,
    &dsa_sp::RULE,
    &dsa_cp::RULE,
    &index_share::RULE,
    &window_cp::RULE,
    &muon_fsdp::RULE,
    &fsdp::RULE,
    &gdn_recompute::RULE,
];
