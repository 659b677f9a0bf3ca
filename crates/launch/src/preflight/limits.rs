//! Limits of a process, and the room for shared memory.

use super::machine::{Machine, Resource};
use super::{Check, show};
use crate::policy::{Limit, Policy};
use units::Bytes;

const RULE: &str = "preflight/ulimit";
const SHARED: &str = "preflight/shared-memory";

/// Judges the limits the policy names.
pub fn check(machine: &Machine, policy: &Policy, checks: &mut Vec<Check>) {
    let asked = &policy.limits;
    let rows = [
        ("nofile", Resource::OpenFiles, asked.nofile),
        ("memlock", Resource::LockedMemory, asked.memlock),
        ("nproc", Resource::Processes, asked.nproc),
    ];
    for (name, resource, least) in rows {
        checks.extend(least.map(|least| limit(machine, name, resource, least)));
    }
    checks.extend(asked.shared_memory.map(|least| shared_memory(machine, least)));
}

fn words(resource: Resource, limit: Limit) -> String {
    match (limit, resource) {
        (Limit::Unlimited, _) => "unlimited".to_string(),
        (Limit::Of(bytes), Resource::LockedMemory) => Bytes(bytes).to_string(),
        (Limit::Of(count), _) => units::exact(count),
    }
}

fn limit(machine: &Machine, name: &'static str, resource: Resource, least: Limit) -> Check {
    let required = match least {
        Limit::Unlimited => "unlimited".to_string(),
        _ => format!("{} or more", words(resource, least)),
    };
    let flag = match resource {
        Resource::OpenFiles => "-n",
        Resource::LockedMemory => "-l",
        Resource::Processes => "-u",
    };
    let known = machine.limits.as_ref().map_err(String::clone);
    let of = |limits: &Vec<_>| limits.iter().find(|(r, _)| *r == resource).map(|(_, limit): &(_, Limit)| *limit);
    match known.and_then(|limits| of(limits).ok_or_else(|| "the system does not list it".to_string())) {
        Err(why) => Check::pass(RULE, name, show::text(&why), required).unknown(format!("ulimit {flag}")),
        Ok(found) => {
            let check = Check::pass(RULE, name, words(resource, found), required);
            if found >= least {
                return check;
            }
            // ulimit counts locked memory in KiB.
            let value = match (least, resource) {
                (Limit::Unlimited, _) => "unlimited".to_string(),
                (Limit::Of(bytes), Resource::LockedMemory) => bytes.div_ceil(1024).to_string(),
                (Limit::Of(count), _) => count.to_string(),
            };
            let fix = format!(
                "ulimit {flag} {value}; beyond the hard limit: /etc/security/limits.conf, or --ulimit {name} of the container"
            );
            check.violation(fix)
        }
    }
}

fn shared_memory(machine: &Machine, least: u64) -> Check {
    let required = format!("{} or more", Bytes(least));
    match &machine.shared_memory {
        Err(why) => Check::pass(SHARED, "/dev/shm", show::text(why), required).unknown("df -h /dev/shm"),
        Ok(space) => {
            let found = format!("{} free of {}", Bytes(space.free), Bytes(space.total));
            let check = Check::pass(SHARED, "/dev/shm", found, required);
            if space.free >= least {
                return check;
            }
            check.violation("start the container with --shm-size or --ipc=host, or remount it larger")
        }
    }
}
