//! Sequence parallelism, activations sharded along the tensor axis; and how long a sequence may be.

mod engram_whole;
mod mod_whole;
mod pieces;
mod positions;
mod required;

use super::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] =
    &[&pieces::RULE, &positions::RULE, &required::RULE, &mod_whole::RULE, &engram_whole::RULE];
