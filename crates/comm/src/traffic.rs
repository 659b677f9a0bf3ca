//! Bytes moved. Counted is what a rank puts into a call: the elements of its payload (all parts of an
//! all-to-all, its own included; for a broadcast the root's; nothing for a barrier). `layout` predicts
//! by the same definition. A group of one moves nothing.

use crate::call::{Call, Kind};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What one rank put into one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// How often it was called.
    pub calls: u64,
    /// Elements put in.
    pub elements: u64,
    /// Bytes put in.
    pub bytes: u64,
}

/// Everything one rank put into calls, by call and kind.
#[derive(Debug, Default)]
pub struct Traffic {
    moved: Mutex<BTreeMap<(Call, Kind), Moved>>,
}

impl Traffic {
    /// Counts one call.
    pub(crate) fn add(&self, call: Call, kind: Kind, elements: usize, bytes_each: u64) {
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = moved.entry((call, kind)).or_default();
        entry.calls += 1;
        entry.elements += elements as u64;
        entry.bytes += elements as u64 * bytes_each;
    }

    /// Everything counted so far.
    pub fn all(&self) -> Vec<(Call, Kind, Moved)> {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        moved.iter().map(|(&(call, kind), &m)| (call, kind, m)).collect()
    }

    /// The sum over calls of one axis.
    pub fn on_axis(&self, axis: &str) -> Moved {
        let mut sum = Moved::default();
        for (_, _, moved) in self.all().into_iter().filter(|(call, _, _)| call.axis == axis) {
            sum.calls += moved.calls;
            sum.elements += moved.elements;
            sum.bytes += moved.bytes;
        }
        sum
    }

    /// Starts over.
    pub fn clear(&self) {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
