//! DeepSpeed 0.19.8. File names are relative to `deepspeed`.

mod cp_recurrence;
mod ep_tp_pp;
mod etp;
mod pp_zero;
mod recompute;
mod schedule;

use crate::legality::Rule;

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] =
    &[&schedule::RULE, &pp_zero::RULE, &etp::RULE, &ep_tp_pp::RULE, &recompute::RULE, &cp_recurrence::RULE];
