//! Ports that must be free, with who listens where that may be read.

use super::Check;
use super::machine::{Listener, Machine};
use super::processes::command_words;
use crate::policy::Policy;

const RULE: &str = "preflight/port-in-use";

/// Judges the rendezvous port and those the policy lists.
pub fn check(machine: &Machine, policy: &Policy, checks: &mut Vec<Check>) {
    let mut ports = vec![(policy.job.port, "the rendezvous port, job.port")];
    for &port in &policy.ports.free {
        if ports.iter().all(|(known, _)| *known != port) {
            ports.push((port, "ports.free"));
        }
    }
    for (port, key) in ports {
        let check = |found: String| Check::pass(RULE, port.to_string(), found, format!("nobody listens ({key})"));
        checks.push(match &machine.listeners {
            Err(why) => check(why.clone()).unknown(format!("ss -ltnp 'sport = :{port}'")),
            Ok(listeners) => match listeners.iter().find(|listener| listener.port == port) {
                None => check("nobody listens".to_string()),
                Some(listener) => {
                    let fix = "end that process yourself if it is stale, or choose another port";
                    check(owner(machine, listener)).violation(fix)
                }
            },
        });
    }
}

fn owner(machine: &Machine, listener: &Listener) -> String {
    let Some(pid) = listener.owner else {
        return "somebody listens whose process this user may not see".to_string();
    };
    let processes = machine.processes.as_deref().unwrap_or_default();
    match processes.iter().find(|process| process.pid == pid) {
        Some(process) => format!("pid {pid} listens: {}", command_words(process)),
        None => format!("pid {pid} listens"),
    }
}
