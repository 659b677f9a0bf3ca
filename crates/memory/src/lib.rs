//! Whether it fits: [`fit`] puts ranks of every class against a device, line by line and phase by
//! phase, with a verdict and levers. [`estimate`] sums what the replay would say, for searches;
//! [`serving`] prices inference.
//!
//! What a rank holds is replayed by `ledger`. This crate measures nothing and does not choose layouts.

pub mod estimate;
pub mod fit;
pub mod routing;
pub mod serving;
