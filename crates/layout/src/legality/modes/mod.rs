//! What a runtime mode promises about the tensor axis.

mod nemo_native_sp;
mod nemo_native_tp;

use super::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[&nemo_native_sp::RULE, &nemo_native_tp::RULE];
