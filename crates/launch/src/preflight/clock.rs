//! The clock: logs, rendezvous time-outs and receipts of several nodes are compared by it.

use super::machine::Machine;
use super::{Check, show};
use crate::policy::Policy;

const RULE: &str = "preflight/clock";

/// Judges the clock where the policy asks.
pub fn check(machine: &Machine, policy: &Policy, checks: &mut Vec<Check>) {
    if !policy.clock.synchronized {
        return;
    }
    let check = |found: String| Check::pass(RULE, "clock", found, "synchronised");
    checks.push(match &machine.clock {
        Err(why) => check(show::text(why)).unknown("on the host: timedatectl, or chronyc tracking"),
        Ok(clock) if clock.synchronized => check(format!("synchronised, says {}", clock.source)),
        Ok(clock) => check(format!("not synchronised, says {}", clock.source))
            .violation("start a time service: timedatectl set-ntp true, or chronyd"),
    });
}
