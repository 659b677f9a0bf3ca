//! The plan's own memory verdict: what does not fit is not launched, unless that is overridden by
//! name, and then the report says so.

use super::plan::{Memory, MemoryOverride, Plan};
use super::{Check, Machine, Verdict};
use memory::fit::Verdict as Fits;
use units::Bytes;

const RULE: &str = "preflight/memory-verdict";

const HOST_RULE: &str = "preflight/host-memory";

/// Judges this machine's memory by what the plan keeps there; nothing where it keeps none.
pub fn check_host(machine: &Machine, plan: &Plan) -> Option<Check> {
    if plan.host == 0 {
        return None;
    }
    let required = format!("{} for state kept on the host", Bytes(plan.host));
    Some(match &machine.memory {
        Err(why) => {
            Check::pass(HOST_RULE, "host memory", why.clone(), required).unknown("read MemTotal of /proc/meminfo")
        }
        Ok(total) => {
            let check = Check::pass(HOST_RULE, "host memory", format!("{} in all", Bytes(*total)), required);
            let fix = || match plan.host_flags.as_slice() {
                [] => "take larger hosts".to_string(),
                flags => format!("less by {}, or larger hosts", flags.join(", ")),
            };
            if *total >= plan.host { check } else { check.violation(fix()) }
        }
    })
}

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
