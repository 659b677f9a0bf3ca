//! Whether a machine is fit to run on, judged before anything is started: storage, environment,
//! ports, processes, devices, limits, clock, and the plan's own memory.
//!
//! Pure: a [`Machine`] is a snapshot that somebody else took. Nothing here reads a file, starts or
//! ends a process. What the snapshot does not know is [`Verdict::Unknown`], with the reason; it is
//! never taken for a pass.

mod clock;
mod environment;
mod gpu;
mod limits;
pub mod machine;
mod memory;
mod packages;
pub mod parse;
mod plan;
mod ports;
mod processes;
pub mod show;
mod space;
mod storage;
mod volume;

pub use machine::Machine;
pub use plan::{Launcher, Memory, MemoryOverride, Plan, checkpoint_bytes, checkpoints};
pub use volume::volume_of;

use crate::policy::Policy;
use diag::RuleId;
use serde::Serialize;

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Against the policy, or the engine's own rule.
    Violation,
    /// The machine did not say.
    Unknown,
    /// A violation that was allowed by name.
    Overridden,
    /// As it should be.
    Pass,
}

impl Verdict {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Violation => "violation",
            Verdict::Unknown => "unknown",
            Verdict::Overridden => "overridden",
            Verdict::Pass => "pass",
        }
    }
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Which rule looked.
    pub rule: RuleId,
    /// What it came to.
    pub verdict: Verdict,
    /// What was looked at: a location's key, a variable, a port, a process.
    pub object: String,
    /// What is there.
    pub found: String,
    /// What should be.
    pub required: String,
    /// What to do about it; none where nothing is to be done.
    pub fix: Option<String>,
}

impl Check {
    /// A check that passed.
    fn pass(rule: RuleId, object: impl Into<String>, found: impl Into<String>, required: impl Into<String>) -> Check {
        let (object, found, required) = (object.into(), found.into(), required.into());
        Check { rule, verdict: Verdict::Pass, object, found, required, fix: None }
    }

    /// The same as a violation, with what to do.
    fn violation(self, fix: impl Into<String>) -> Check {
        Check { verdict: Verdict::Violation, fix: Some(fix.into()), ..self }
    }

    /// The same as not known, with how to find out.
    fn unknown(self, fix: impl Into<String>) -> Check {
        Check { verdict: Verdict::Unknown, fix: Some(fix.into()), ..self }
    }
}

/// Judges a machine by a policy, and by a plan where there is one. Checks come in the order of
/// families; within a family in the order of the policy.
pub fn judge(machine: &Machine, policy: &Policy, launcher: Launcher, plan: Option<&Plan>) -> Vec<Check> {
    let mut checks = Vec::new();
    storage::check(machine, policy, &mut checks);
    space::check(machine, policy, plan, &mut checks);
    environment::check(machine, policy, launcher, plan, &mut checks);
    ports::check(machine, policy, &mut checks);
    processes::check(machine, policy, &mut checks);
    gpu::check(machine, policy, plan, &mut checks);
    limits::check(machine, policy, &mut checks);
    clock::check(machine, policy, &mut checks);
    if let Some(plan) = plan {
        packages::check(machine, &mut checks);
        checks.push(memory::check(plan));
        checks.extend(memory::check_host(machine, plan));
    }
    checks
}

/// The numbers of a version such as `570.86.15`; none where it is no version.
pub fn version(text: &str) -> Option<Vec<u64>> {
    text.trim().split('.').map(|part| part.parse().ok()).collect()
}
