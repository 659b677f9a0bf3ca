//! What a run wrote down of itself, as typed figures that say what was measured, and where each was read.
//! Reads; judges nothing, and compares nothing.

mod cause;
mod events;
mod figures;
mod float;
mod readers;
pub mod snapshot;

pub use cause::{Cause, cause};
pub use events::{Event, EventKind};
pub use figures::{
    Bench, Evidence, Format, Kernel, Memory, MemoryKind, Source, Step, TensorKind, TensorStat, Timer, Unread, WARM_UP,
};
pub use readers::{DEVICE_BUSY, HOOK_SCHEMA, read};

/// The program that writes lines of [`HOOK_SCHEMA`]: one Python file, for training scripts to import.
pub const HOOK: &str = include_str!("../assets/shardwright_receipt.py");
