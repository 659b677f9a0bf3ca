//! The plan's own memory verdict: what does not fit is not launched, unless that is overridden by
//! name, and then the report says so.

use super::plan::{Memory, MemoryOverride, Plan};
use super::{Check, Verdict};
use memory::fit::Verdict as Fits;
use units::Bytes;

const RULE: &str = "preflight/memory-verdict";

/// Judges the plan.
pub fn check(plan: &Plan) -> Check {
    let required = "the worst rank fits on its device";
    match &plan.memory {
        Memory::Unpriced(why) => {
            Check::pass(RULE, "plan", why.clone(), required).unknown("measure one step before the long run")
        }
        Memory::Judged { verdict, holds, visible } => {
            let found = format!("{}: {} of {} on {}", verdict.name(), Bytes(*holds), Bytes(*visible), plan.device);
            let check = Check::pass(RULE, "plan", found, required);
            match (verdict, plan.memory_override) {
                (Fits::Fits | Fits::Tight, _) => check,
                (Fits::DoesNotFit, MemoryOverride::No) => check
                    .violation("`shardwright fit` lists what would lower it; --override-memory goes on all the same"),
                (Fits::DoesNotFit, MemoryOverride::Yes) => {
                    let fix = Some("allowed by --override-memory; expect it to run out of memory".to_string());
                    Check { verdict: Verdict::Overridden, fix, ..check }
                }
            }
        }
    }
}
