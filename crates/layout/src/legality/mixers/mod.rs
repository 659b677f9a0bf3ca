//! Heads, groups and channels of state-carrying mixers over the tensor axis.

mod gated_delta_heads;
mod linear_first;
mod linear_heads;
mod linear_whole;
mod mamba_channels;
mod mamba_groups;
mod mamba_heads;
mod recurrent_heads;
mod recurrent_qk_heads;
mod shared_stage;
mod shared_whole;

use super::Rule;
use recipe::kinds::mamba::Mamba;

/// Heads and groups of Mamba-2 and Mamba-3; Mamba-1 has channels instead.
fn heads_and_groups(mamba: &Mamba) -> Option<(u64, u64)> {
    match mamba {
        Mamba::One(_) => None,
        Mamba::Two(m) => Some((m.heads, m.groups)),
        Mamba::Three(m) => Some((m.heads, m.groups)),
    }
}

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[
    &mamba_channels::RULE,
    &mamba_heads::RULE,
    &mamba_groups::RULE,
    &recurrent_heads::RULE,
    &recurrent_qk_heads::RULE,
    &gated_delta_heads::RULE,
    &linear_heads::RULE,
    &linear_whole::RULE,
    &linear_first::RULE,
    &shared_whole::RULE,
    &shared_stage::RULE,
];
