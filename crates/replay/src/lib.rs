//! A replay that moves no data: what an engine's code allocates, when it lets go, and what torch's
//! caching allocator makes of it. [`tape`] holds storages with real lifetimes and an autograd graph
//! in torch's order, [`allocator`] the blocks and segments behind them, [`line`] what bytes are for.
//!
//! Which engine allocates what is the ledgers' business; whether it fits a device is `memory`'s.

pub mod allocator;
pub mod line;
pub mod phase;
pub mod record;
pub mod tape;

pub use line::{Line, Origin};
pub use phase::{Phase, PhaseKind, Replay};

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
        write!(f, "{} cannot be priced: {}", self.what, self.why)
    }
}

impl std::error::Error for Unmodelled {}
