//! Hook for the allocation counter: a message in flight is charged to its sender until the call returns.
//! The message itself is allocated uncounted, since how long it lives depends on when other ranks take
//! it.

use crate::element::{Element, Payload};
use std::cell::Cell;
use std::sync::Arc;

/// A counter of what threads allocate, as the runtime's meters are.
pub trait Books: Sync {
    /// Stops counting on this thread; gives what [`Books::resume`] needs to go on.
    fn pause(&self) -> u32;
    /// Counts again after a pause, where `number` is what [`Books::pause`] gave.
    fn resume(&self, number: u32);
    /// Charges bytes to this thread that it did not allocate, or takes them off where negative.
    fn add(&self, bytes: i64);
}

/// The counter of one rank, if it has one.
#[derive(Default)]
pub(crate) struct Kept(Cell<Option<&'static dyn Books>>);

/// The charge for values in flight; dropping it takes the charge off.
pub(crate) struct Loan(Option<(&'static dyn Books, i64)>);

impl Drop for Loan {
    fn drop(&mut self) {
        self.0.iter().for_each(|(books, bytes)| books.add(-bytes));
    }
}

struct Paused(&'static dyn Books, u32);

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.resume(self.1);
    }
}

impl Kept {
    pub fn open(&self, books: &'static dyn Books) {
        self.0.set(Some(books));
    }

    /// Runs something whose allocations are not counted.
    pub fn aside<V>(&self, what: impl FnOnce() -> V) -> V {
        let _paused = self.0.get().map(|books| Paused(books, books.pause()));
        what()
    }

    /// Moves values into an uncounted message, and charges their size until the loan is dropped.
    pub fn lend<T: Element>(&self, values: Vec<T>) -> (Payload, Loan) {
        let Some(books) = self.0.get() else { return (T::payload(Arc::new(values)), Loan(None)) };
        let bytes = (values.len() * size_of::<T>()) as i64;
        let payload = self.aside(|| T::payload(Arc::new(values.clone())));
        drop(values);
        books.add(bytes);
        (payload, Loan(Some((books, bytes))))
    }

    /// Copies received values into memory that is counted as this rank's.
    pub fn own<T: Element>(&self, values: Vec<T>) -> Vec<T> {
        if self.0.get().is_some() { values.clone() } else { values }
    }
}
