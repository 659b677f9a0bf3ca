//! Collectives and point-to-point messages between ranks, over groups that the caller names.
//!
//! Every call carries the axis it runs on and a name. Members that disagree on kind, order, length
//! or dtype, and members that die, end the run on every rank with a finding that says so; nobody
//! waits past the deadline. Reductions add members in the order of the group, so a run repeats bit
//! by bit. This crate knows no tensor, no mesh and no layout.

mod books;
mod call;
mod collectives;
mod element;
mod failure;
mod fault;
#[cfg(feature = "mpi")]
pub mod processes;
pub mod threads;
mod traffic;

pub use books::Books;
pub use call::{Call, Group, Kind};
pub use collectives::{Comm, Op};
pub use element::{Dtype, Element};
pub use failure::names_ranks;
pub use fault::{Fault, Missing};
pub use traffic::{Moved, Traffic};

/// What a call comes to: a value, or why the run is over.
pub type Result<T> = std::result::Result<T, diag::Finding>;
