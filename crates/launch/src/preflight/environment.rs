//! Environment variables: what the policy wants there and not there, and what the engine's own code
//! asserts of them. Judged is what the processes will get: what `launch` sets goes over what is here.

use super::machine::Machine;
use super::plan::{Launcher, Plan};
use super::{Check, show};
use crate::engines::{engine_of, megatron};
use crate::job::Job;
use crate::policy::Policy;
use hardware::Vendor;
use layout::Engine;
use std::collections::BTreeMap;

const REQUIRED: &str = "preflight/env-required";
const FORBIDDEN: &str = "preflight/env-forbidden";
const VALUE: &str = "preflight/env-value";

/// What is wanted of one variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Exactly this.
    Is(String),
    /// Anything but this, or nothing.
    IsNot(&'static str),
    /// This, or nothing.
    IsOrUnset(&'static str),
    /// A list of at least so many, or nothing.
    AtLeast(u64),
}

/// One variable an engine looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    name: &'static str,
    wanted: Wanted,
    why: &'static str,
}

/// Megatron's switches of attention kernels.
const KERNEL_SWITCHES: [&str; 3] = ["NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"];

/// What the engine of a job wants.
pub fn engine_rules(job: &Job, devices: u64) -> Vec<Rule> {
    let mut rules = Vec::new();
    let queues = "CUDA_DEVICE_MAX_CONNECTIONS";
    let engine = engine_of(job);
    if engine == Engine::Megatron {
        let is_ordered = job.layout.tp.splits() || job.layout.cp.splits();
        if megatron::is_fsdp(job) {
            // training/arguments.py: "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS > 1 or unset."
            let why = "Megatron-FSDP overlaps gathers with compute on several queues and refuses 1";
            rules.push(Rule { name: queues, wanted: Wanted::IsNot("1"), why });
        } else if is_ordered && !megatron::is_blackwell(job) {
            // training/arguments.py asserts it for tensor (with it sequence) and context parallelism.
            let why = "tensor, sequence or context parallel kernels must be issued in order before Blackwell";
            rules.push(Rule { name: queues, wanted: Wanted::Is("1".to_string()), why });
        }
        // core/models/common/language_module: with the default backend, each must be 1 or unset.
        let why = "Megatron asserts it for `--attention-backend auto`, and chooses the kernel itself";
        rules.extend(KERNEL_SWITCHES.map(|name| Rule { name, wanted: Wanted::IsOrUnset("1"), why }));
    }
    if engine == Engine::Nanotron && job.layout.tp.splits() {
        // nanotron/parallel/tensor_parallel/nn.py asserts it.
        let why = "nanotron asserts it for tensor parallel layers";
        rules.push(Rule { name: queues, wanted: Wanted::Is("1".to_string()), why });
    }
    if engine == Engine::Fsdp2 {
        // training/arguments.py, of --use-torch-fsdp2: "FSDP always requires ... large than one".
        let why = "gathers of fully_shard overlap with compute only on several queues";
        rules.push(Rule { name: queues, wanted: Wanted::IsNot("1"), why });
    }
    if job.cluster.device.vendor == Vendor::Nvidia {
        let why = "the plan uses so many devices of a node";
        rules.push(Rule { name: "CUDA_VISIBLE_DEVICES", wanted: Wanted::AtLeast(devices), why });
    }
    rules
}

/// Judges every variable.
pub fn check(machine: &Machine, policy: &Policy, launcher: Launcher, plan: Option<&Plan>, checks: &mut Vec<Check>) {
    let seen = Seen::new(machine, policy, launcher, plan);
    for rule in plan.iter().flat_map(|plan| &plan.rules) {
        checks.push(seen.value(rule.name, &rule.wanted, rule.why));
    }
    for (name, value) in &policy.environment.expected {
        checks.push(seen.value(name, &Wanted::Is(value.clone()), "the policy expects it"));
    }
    if launcher == Launcher::Own {
        let places = policy.storage.places();
        let kept = places.iter().filter_map(|place| Some((place.variable?, &place.path)));
        let carried = policy.environment.set.iter().map(|(name, value)| (name.as_str(), value));
        for (name, value) in kept.chain(carried) {
            checks.push(seen.value(name, &Wanted::Is(value.clone()), "the policy says so, and `launch` would set it"));
        }
    }
    checks.extend(policy.environment.required.iter().map(|name| seen.required(name)));
    checks.extend(policy.environment.forbidden.iter().map(|name| seen.forbidden(name)));
}

/// The environment the processes will get.
struct Seen<'a> {
    here: &'a BTreeMap<Vec<u8>, Vec<u8>>,
    set: BTreeMap<&'a str, &'a str>,
}

impl<'a> Seen<'a> {
    fn new(machine: &'a Machine, policy: &'a Policy, launcher: Launcher, plan: Option<&'a Plan>) -> Seen<'a> {
        let mut set = BTreeMap::new();
        if launcher == Launcher::Ours {
            let by_plan = plan.iter().flat_map(|plan| &plan.sets).map(|v| (v.name.as_str(), v.value.as_str()));
            let by_policy = policy.environment.set.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            set.extend(by_plan.chain(by_policy));
        }
        Seen { here: &machine.environment, set }
    }

    /// What a variable will hold.
    fn get(&self, name: &str) -> Option<&[u8]> {
        let set = self.set.get(name).map(|value| value.as_bytes());
        set.or_else(|| self.here.get(name.as_bytes()).map(Vec::as_slice))
    }

    /// What it will hold and from whom, in words.
    fn words(&self, name: &str) -> String {
        let here = self.here.get(name.as_bytes()).map(|value| format!("`{}` here", show::bytes(value)));
        let set = self.set.get(name).map(|value| format!("`launch` sets `{}`", show::text(value)));
        match (here, set) {
            (None, None) => "not set".to_string(),
            (None, Some(set)) => set,
            (Some(here), None) => here,
            (Some(here), Some(set)) => format!("{here}, and {set} over it"),
        }
    }

    fn value(&self, name: &str, wanted: &Wanted, why: &str) -> Check {
        let value = self.get(name);
        let is_one = |one: &str| value == Some(one.as_bytes());
        let shown = show::text(name);
        let export = |value: &str| {
            format!(
                "export {}={}",
                diag::quote::typed_bytes(name.as_bytes()),
                diag::quote::typed_bytes(value.as_bytes())
            )
        };
        let (holds, required, fix) = match wanted {
            Wanted::Is(one) => (is_one(one), format!("`{}`", show::text(one)), export(one)),
            Wanted::IsNot(one) => (!is_one(one), format!("not `{one}`"), format!("unset {shown}")),
            Wanted::IsOrUnset(one) => {
                (value.is_none() || is_one(one), format!("`{one}` or not set"), format!("unset {shown}"))
            }
            Wanted::AtLeast(count) => {
                let listed = |value: &[u8]| value.split(|b| *b == b',').take_while(|id| !ends(id)).count() as u64;
                let holds = value.is_none_or(|value| listed(value) >= *count);
                (holds, format!("at least {count} devices, or not set"), format!("unset {shown}"))
            }
        };
        let is_ours = self.set.contains_key(name);
        let check = Check::pass(VALUE, shown, self.words(name), format!("{required}: {why}"));
        match holds {
            true => check,
            // The policy's own word goes over the engine's, so it is there that it must change.
            false if is_ours => check.violation("take it out of [environment.set] of the policy"),
            false => check.violation(fix),
        }
    }

    fn required(&self, name: &str) -> Check {
        let check = Check::pass(REQUIRED, show::text(name), self.words(name), "set");
        if self.get(name).is_some() {
            return check;
        }
        let word = diag::quote::typed_bytes(name.as_bytes());
        check.violation(format!("export {word}=…, or give it a value in [environment.set] of the policy"))
    }

    fn forbidden(&self, name: &str) -> Check {
        let check = Check::pass(FORBIDDEN, show::text(name), self.words(name), "not set");
        if self.get(name).is_none() {
            check
        } else {
            check.violation(format!("unset {}", diag::quote::typed_bytes(name.as_bytes())))
        }
    }
}

/// Whether CUDA stops reading its list of devices here: an empty or negative number ends it (CUDA
/// programming guide, environment variables).
fn ends(id: &[u8]) -> bool {
    let id = id.trim_ascii();
    id.is_empty() || id.starts_with(b"-")
}
