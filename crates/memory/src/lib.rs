//! What one rank holds, phase by phase: a ledger replays an engine's allocations against the
//! caching allocator, and every byte is booked on a line, in a block, under a name.
//!
//! [`fit`] puts ranks of every class against a device: lines, phases, verdict, levers. This crate
//! moves no data, measures nothing and does not choose layouts, and what a ledger cannot replay it
//! refuses by name ([`Unmodelled`]).

pub mod allocator;
pub mod fit;
pub mod ledger;
pub mod line;
pub mod quick;
pub mod routing;
pub mod serving;
pub mod tape;

pub use line::{Line, Stand};

use std::fmt;

/// Something a ledger does not replay.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unmodelled {
    /// What was asked for.
    pub what: String,
    /// Why there is no figure for it.
    pub why: String,
}

impl Unmodelled {
    /// Names what is not modelled, and why.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Unmodelled {
        Unmodelled { what: what.into(), why: why.into() }
    }
}

impl fmt::Display for Unmodelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not modelled: {}", self.what, self.why)
    }
}

impl std::error::Error for Unmodelled {}
