//! How a run ends: one wording for each way, naming axis, group, ranks and call.

use crate::call::{Group, Header, Kind};
use crate::collectives::Op;
use diag::{Blame, Finding};

/// Members came with different calls, each in its own words (see [`words`]). Whoever notices, the
/// finding is the same.
pub fn disagree(group: &Group, axis: &'static str, one: (usize, &str), other: (usize, &str)) -> Finding {
    let (low, high) = if one.0 < other.0 { (one, other) } else { (other, one) };
    let message = format!(
        "members of {axis} group {group} disagree: rank {} calls {}, rank {} calls {}",
        low.0, low.1, high.0, high.1
    );
    Finding::error("comm/disagree", Blame::Bug, axis, message)
        .hint("every member must make the same calls in the same order with the same lengths and dtype")
}

/// A call in words that say everything its members must agree on.
pub fn words(header: &Header) -> String {
    let detail = match header.kind {
        Kind::AllReduce if header.detail == Op::Max as usize => " (largest)".to_string(),
        Kind::Broadcast => format!(" (from place {})", header.detail),
        _ => String::new(),
    };
    format!("{header}{detail} on axis {}", header.call.axis)
}

/// Somebody did not come in time.
pub fn late(group: &Group, header: &Header, waiting: usize, missing: &[String], seconds: f64) -> Finding {
    let axis = header.call.axis;
    let message = format!(
        "rank {waiting} waited {seconds:.1} s in {header} on {axis} group {group}; missing: {}",
        missing.join(", ")
    );
    Finding::error("comm/deadline", Blame::Environment, axis, message)
        .hint("a rank is stuck, far slower than the others, or waits in another call")
}

/// Somebody has ended, and so will never come.
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

/// Where a rank is that waits in no call.
pub fn after(last: Option<&Header>) -> String {
    last.map_or("before its first call".to_string(), |h| format!("after {h} on axis {}", h.call.axis))
}

/// What a panic says.
pub fn panicked(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// A call that makes no sense by itself.
pub fn misused(group: &Group, header: &Header, rank: usize, why: &str) -> Finding {
    let axis = header.call.axis;
    let message = format!("rank {rank} cannot call {header} on {axis} group {group}: {why}");
    Finding::error("comm/misuse", Blame::Bug, axis, message)
}

/// The launcher ended a rank from outside, where it was.
#[cfg(feature = "mpi")]
pub fn terminated(rank: usize, axis: &str, at: &str) -> Finding {
    let message = format!("the launcher ended rank {rank} (SIGTERM) {at}");
    Finding::error("comm/terminated", Blame::Environment, axis, message)
        .hint("another rank has died, or the run was stopped from outside")
}

/// A rank did not answer when the run ended.
#[cfg(feature = "mpi")]
pub fn silent(rank: usize, seconds: f64) -> Finding {
    let message = format!("rank {rank} did not answer the others within {seconds:.1} s of the end of the run");
    Finding::error("comm/silent", Blame::Environment, "world", message)
        .hint("it was killed, is stopped, or computes without making calls")
}
