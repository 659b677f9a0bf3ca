//! How a run ends: one wording for each way, naming axis, group, ranks and call.

use crate::call::{Group, Header};
use diag::{Blame, Finding};

/// Members came with different calls, each in its own words (see [`words`]).
pub fn disagree(group: &Group, axis: &'static str, first: (usize, &str), other: (usize, &str)) -> Finding {
    let message = format!(
        "members of {axis} group {group} disagree: rank {} calls {}, rank {} calls {}",
        first.0, first.1, other.0, other.1
    );
    Finding::error("comm/disagree", Blame::Bug, axis, message)
        .hint("every member must make the same calls in the same order with the same lengths and dtype")
}

/// A call in words that say everything its members must agree on.
pub fn words(header: &Header) -> String {
    format!("{header} on axis {} ({})", header.call.axis, header.detail)
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
    let at = last.map_or("before its first call".to_string(), |h| format!("after {h} on axis {}", h.call.axis));
    let axis = last.map_or("world", |h| h.call.axis);
    Finding::error("comm/died", Blame::Bug, axis, format!("rank {rank} died {at}: {why}"))
}

/// A call that makes no sense by itself.
pub fn misused(group: &Group, header: &Header, rank: usize, why: &str) -> Finding {
    let axis = header.call.axis;
    let message = format!("rank {rank} cannot call {header} on {axis} group {group}: {why}");
    Finding::error("comm/misuse", Blame::Bug, axis, message)
}
