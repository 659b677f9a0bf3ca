//! Devices: driver, number, memory that is there and memory that is free.

use super::machine::{Gpu, Machine};
use super::plan::Plan;
use super::{Check, show, version};
use crate::policy::Policy;
use hardware::Kind;
use units::Bytes;

const DRIVER: &str = "preflight/driver";
const COUNT: &str = "preflight/gpu-count";
const MEMORY: &str = "preflight/gpu-memory";

/// Judges the devices, as far as policy or plan ask for something.
pub fn check(machine: &Machine, policy: &Policy, plan: Option<&Plan>, checks: &mut Vec<Check>) {
    // `nvidia-smi` knows no TPUs.
    let plan = plan.filter(|plan| plan.kind == Kind::Gpu);
    let asked = &policy.gpu;
    if let Some(least) = &asked.driver {
        checks.extend(each(machine, DRIVER, "driver", &format!("{} or later", show::text(least)), |gpu| {
            driver(gpu, least)
        }));
    }
    let count = plan.map(|plan| (plan.devices, "the plan")).into_iter();
    let count = count.chain(asked.count.map(|count| (count, "the policy"))).max();
    if let Some((least, who)) = count {
        checks.push(number(machine, least, who));
    }
    if let Some(plan) = plan {
        let required = format!("{}, as {} shows", Bytes(plan.visible), plan.device);
        checks.extend(each(machine, MEMORY, "memory", &required, |gpu| total(gpu, plan, &required)));
    }
    if let Some(least) = asked.free_memory {
        let required = format!("{} free", Bytes(least));
        checks.extend(each(machine, MEMORY, "free memory", &required, |gpu| free(gpu, least, &required)));
    }
}

/// One check a device, or one that says why there is none.
fn each(
    machine: &Machine,
    rule: &'static str,
    object: &str,
    required: &str,
    judge: impl Fn(&Gpu) -> Check,
) -> Vec<Check> {
    match &machine.gpus {
        Ok(gpus) => gpus.iter().map(judge).collect(),
        Err(why) => vec![Check::pass(rule, object, why.clone(), required).unknown("run it where the devices are")],
    }
}

fn object(gpu: &Gpu) -> String {
    format!("GPU {}", gpu.index)
}

fn driver(gpu: &Gpu, least: &str) -> Check {
    let required = format!("{} or later", show::text(least));
    let check = Check::pass(DRIVER, object(gpu), show::text(&gpu.driver), required);
    match (version(&gpu.driver), version(least)) {
        (Some(found), Some(least)) if found >= least => check,
        (Some(_), Some(_)) => check.violation("update the driver, or lower gpu.driver in the policy"),
        _ => check.unknown("compare the versions yourself: nvidia-smi"),
    }
}

fn number(machine: &Machine, least: u64, who: &str) -> Check {
    let required = format!("{least} devices, as {who} says");
    match &machine.gpus {
        Err(why) => Check::pass(COUNT, "devices", why.clone(), required).unknown("run it where the devices are"),
        Ok(gpus) => {
            let check = Check::pass(COUNT, "devices", format!("{} devices", gpus.len()), required);
            if gpus.len() as u64 >= least {
                return check;
            }
            check.violation("look for a device that has fallen off the bus (dmesg, nvidia-smi -q), or plan for fewer")
        }
    }
}

fn total(gpu: &Gpu, plan: &Plan, required: &str) -> Check {
    let check = |found: String| Check::pass(MEMORY, object(gpu), found, required);
    let name = show::text(&gpu.name);
    match gpu.total {
        None => check(format!("{name} does not say")).unknown("compare it yourself: free -b"),
        Some(total) if total >= plan.visible => check(format!("{} on {name}", Bytes(total))),
        Some(total) => check(format!("{} on {name}", Bytes(total)))
            .violation("name the device that is here in --on, and plan again"),
    }
}

fn free(gpu: &Gpu, least: u64, required: &str) -> Check {
    let check = |found: String| Check::pass(MEMORY, object(gpu), found, required);
    let Some(free) = gpu.free else {
        return check(format!("{} does not say", show::text(&gpu.name))).unknown("compare it yourself: free -b");
    };
    let check = check(format!("{} free", Bytes(free)));
    if free >= least {
        return check;
    }
    let users: Vec<String> = gpu.users.iter().map(|(pid, _)| format!("pid {pid}")).collect();
    match users.as_slice() {
        [] => check.violation("nobody computes on it: ask the administrator to reset it (nvidia-smi --gpu-reset)"),
        users => check.violation(format!("held by {}: end what is stale", users.join(", "))),
    }
}
