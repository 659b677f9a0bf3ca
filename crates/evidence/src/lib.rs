//! What a run wrote down of itself, as typed figures that say what was measured, and where each was read.
//! Reads; judges nothing, and compares nothing.

mod events;
mod figures;

pub use events::{Event, EventKind};
pub use figures::{Evidence, Format, Kernel, Memory, MemoryKind, Source, Step, TensorKind, TensorStat, WARM_UP};
