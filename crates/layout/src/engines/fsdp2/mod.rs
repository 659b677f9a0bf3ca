//! Native PyTorch with `fully_shard` (torch 2.15): PP, TP, checkpointing, compile, FSDP2, EP
//! composed by the module that we emit. File names are relative to `torch/distributed`.

mod cp;
mod etp;
mod expert_adapters;
mod expert_split;
mod kv_heads;
mod microbatches;
mod schedule;
mod tied;
mod zero;

use crate::legality::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[
    &schedule::RULE,
    &zero::RULE,
    &etp::RULE,
    &microbatches::RULE,
    &cp::RULE,
    &expert_split::RULE,
    &kv_heads::RULE,
    &tied::RULE,
    &expert_adapters::RULE,
];
