//! What a command is about to take of the machine it runs on, and how much it may: memory and computing
//! are predicted before anything is allocated, and work beyond the limit is refused with the figure, the
//! limit and the flag that raises it.
//!
//! This crate predicts nothing and reads no machine: whoever does the work says how much it is, and
//! whoever was started says what is free.

mod limit;

pub use limit::{Asked, Limit};

use std::ops::Add;

/// Memory and computing that something is predicted to take. Sums and products stop at the largest
/// number instead of wrapping: what is too large to count is beyond every limit that was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of this machine's memory at once.
    pub bytes: u64,
    /// Operations in all. One is what takes a core about a nanosecond: an addition or product of a matrix
    /// kernel that is not tuned; whoever counts coarser things says how many operations each of them is.
    pub operations: u64,
}

impl Work {
    /// The same `n` times, all of it at once.
    pub fn times(self, n: u64) -> Work {
        Work { bytes: self.bytes.saturating_mul(n), operations: self.operations.saturating_mul(n) }
    }

    /// The same `n` times, one after another: memory is taken once.
    pub fn repeated(self, n: u64) -> Work {
        Work { operations: self.operations.saturating_mul(n), ..self }
    }

    /// Seconds of one core, roughly.
    pub fn core_seconds(self) -> f64 {
        self.operations as f64 / OPERATIONS_PER_SECOND
    }
}

impl Add for Work {
    type Output = Work;

    fn add(self, other: Work) -> Work {
        Work {
            bytes: self.bytes.saturating_add(other.bytes),
            operations: self.operations.saturating_add(other.operations),
        }
    }
}

/// What a core does in a second; see [`Work::operations`].
const OPERATIONS_PER_SECOND: f64 = 1e9;
