//! Feed-forward columns, the prediction join and the vocabulary over the tensor axis.

pub mod aligned;
mod ffn;
mod mtp_join;
mod shared_expert;
mod vocab_padding;

use super::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] =
    &[&ffn::RULE, &shared_expert::RULE, &mtp_join::RULE, &vocab_padding::RULE, &aligned::RULE];
