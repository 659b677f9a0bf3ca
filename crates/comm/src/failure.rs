//! How a run can end: one wording for each way, with axis, group, ranks and call.

use crate::call::{Group, Header, Kind};
use crate::collectives::Op;
use diag::{Blame, Finding};

/// Members of a group made different calls, each described by [`words`]. The finding is the same
/// whichever member notices.
pub fn disagree(group: &Group, axis: &'static str, one: (usize, &str), other: (usize, &str)) -> Finding {
    let (low, high) = if one.0 < other.0 { (one, other) } else { (other, one) };
    let message = format!(
        "members of {axis} group {group} disagree: rank {} calls {}, rank {} calls {}",
        low.0, low.1, high.0, high.1
    );
    Finding::error("comm/disagree", Blame::Bug, axis, message)
        .hint("every member must make the same calls in the same order with the same lengths and dtype")
}

/// A call in words, with everything its members must agree on.
pub fn words(header: &Header) -> String {
    let detail = match header.kind {
        Kind::AllReduce if header.detail == Op::Max as usize => " (largest)".to_string(),
        Kind::Broadcast => format!(" (from place {})", header.detail),
        _ => String::new(),
    };
    format!("{header}{detail} on axis {}", header.call.axis)
}

/// Members did not come before the deadline.
pub fn late(group: &Group, header: &Header, waiting: usize, missing: &[String], seconds: f64) -> Finding {
    let axis = header.call.axis;
    let message = format!(
        "rank {waiting} waited {seconds:.1} s in {header} on {axis} group {group}; missing: {}",
        missing.join(", ")
    );
    Finding::error("comm/deadline", Blame::Environment, axis, message)
        .hint("a rank is stuck, far slower than the others, or waits in another call")
}

/// A member has left the run, and will never come.
pub fn left(group: &Group, header: &Header, waiting: usize, gone: usize) -> Finding {
    let axis = header.call.axis;
    let message = format!("rank {gone} has ended, and rank {waiting} waits for it in {header} on {axis} group {group}");
    Finding::error("comm/left", Blame::Bug, axis, message)
}

/// A rank died.
pub fn died(rank: usize, last: Option<&Header>, why: &str) -> Finding {
    let axis = last.map_or("world", |h| h.call.axis);
    Finding::error("comm/died", Blame::Bug, axis, format!("rank {rank} died {}: {why}", after(last)))
}

/// Where a rank is that is not waiting in a call: after which one.
pub fn after(last: Option<&Header>) -> String {
    last.map_or("before its first call".to_string(), |h| format!("after {h} on axis {}", h.call.axis))
}

/// The message of a panic.
pub fn panicked(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// A call that is wrong by itself, whatever the others do.
pub fn misused(group: &Group, header: &Header, rank: usize, why: &str) -> Finding {
    let axis = header.call.axis;
    let message = format!("rank {rank} cannot call {header} on {axis} group {group}: {why}");
    Finding::error("comm/misuse", Blame::Bug, axis, message)
}

/// The launcher ended a rank with a signal, at this call.
#[cfg(feature = "mpi")]
pub fn terminated(rank: usize, axis: &str, at: &str) -> Finding {
    let message = format!("the launcher ended rank {rank} (SIGTERM) {at}");
    Finding::error("comm/terminated", Blame::Environment, axis, message)
        .hint("another rank has died, or the run was stopped from outside")
}

/// A rank did not answer when the others asked how the run ended.
#[cfg(feature = "mpi")]
pub fn silent(rank: usize, seconds: f64) -> Finding {
    let message = format!("rank {rank} did not answer the others within {seconds:.1} s of the end of the run");
    Finding::error("comm/silent", Blame::Environment, "world", message)
        .hint("it was killed, is stopped, or computes without making calls")
}

/// Whether a finding is of a rank that waited in vain. Endings travel between processes as text, so
/// their rule is all that tells.
#[cfg(feature = "mpi")]
pub(crate) fn is_of_waiting(finding: &Finding) -> bool {
    matches!(finding.rule, "comm/deadline" | "comm/terminated")
}

/// Whether a finding is about what ranks do to each other, and so names them already.
pub fn names_ranks(finding: &Finding) -> bool {
    finding.rule.starts_with("comm/")
}
