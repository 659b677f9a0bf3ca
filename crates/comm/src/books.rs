//! Who counts what a rank has allocated is told what is on its way. A message lies in memory that
//! nobody counts: how long it lies there depends on others. For as long as a call runs, the values
//! a rank brought are added as a sum.

use crate::element::{Element, Payload};
use std::cell::Cell;
use std::sync::Arc;

/// Who counts what threads allocate.
pub trait Books: Sync {
    /// Stops counting on this thread; gives the number to go on with.
    fn pause(&self) -> u32;
    /// Goes on under a number.
    fn resume(&self, number: u32);
    /// Adds bytes that lie elsewhere, or takes them off.
    fn add(&self, bytes: i64);
}

/// The books of one rank, where there are any.
#[derive(Default)]
pub(crate) struct Kept(Cell<Option<&'static dyn Books>>);

/// Values that are on their way, for as long as the call runs.
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

    /// Does something whose memory is not the rank's.
    pub fn aside<V>(&self, what: impl FnOnce() -> V) -> V {
        let _paused = self.0.get().map(|books| Paused(books, books.pause()));
        what()
    }

    /// Values as they travel, and the sum that stands for them meanwhile.
    pub fn lend<T: Element>(&self, values: Vec<T>) -> (Payload, Loan) {
        let Some(books) = self.0.get() else { return (T::payload(Arc::new(values)), Loan(None)) };
        let bytes = (values.len() * size_of::<T>()) as i64;
        let payload = self.aside(|| T::payload(Arc::new(values.clone())));
        drop(values);
        books.add(bytes);
        (payload, Loan(Some((books, bytes))))
    }

    /// What came, as the rank's own.
    pub fn own<T: Element>(&self, values: Vec<T>) -> Vec<T> {
        if self.0.get().is_some() { values.clone() } else { values }
    }
}
