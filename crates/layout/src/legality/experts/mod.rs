//! Experts over the expert axis, their columns over the expert-tensor axis.

mod columns;
mod experts;
mod none;

use super::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[&none::RULE, &experts::RULE, &columns::RULE];
