//! Experts over the expert axis, their columns over the expert-tensor axis.

mod columns;
mod mod_exchange;
mod none;
mod whole;

use super::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[&none::RULE, &whole::RULE, &columns::RULE, &mod_exchange::RULE];
