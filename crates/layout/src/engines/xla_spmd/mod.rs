//! torch_xla SPMD: one compiled program over a mesh of ("data", "expert", "model"); the compiler
//! places collectives, so there is nothing to schedule.

mod mesh;
mod zero;

use crate::legality::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[&mesh::RULE, &zero::RULE];
