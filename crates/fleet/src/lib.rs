//! How large a fleet, for how long, and how much of its time counts: budgets, failures, checkpoints.
//!
//! Prices no step and lays nothing out: whoever asks brings seconds of a step and who holds what.

mod budget;
pub mod failures;
mod goodput;
mod ramp;
mod saves;
pub mod words;

pub use budget::{Bill, Budget, Smallest, smallest};
pub use failures::{Failures, Typed};
pub use goodput::{Goodput, Terms};
pub use ramp::{Level, Ramp, levels};
pub use saves::Saves;
