//! A heap that holds no numbers: buffers with the lifetimes of the runtime's own, booked by line.

use replay::line::{ByLine, Line};
use std::cell::RefCell;
use std::rc::Rc;

/// The heap of one rank. Cloning shares it.
#[derive(Clone)]
pub(super) struct Heap(Rc<RefCell<Book>>);

struct Book {
    bytes_each: u64,
    operations: u64,
    by_line: ByLine,
    peak: ByLine,
}

impl Book {
    /// So much was held at one time.
    fn see(&mut self, held: ByLine) {
        if held.iter().sum::<u64>() > self.peak.iter().sum() {
            self.peak = held;
        }
    }
}

/// What running something does to the book: bytes by line at its highest point and at its end, from
/// where it began.
pub(super) struct Change {
    high: [i64; Line::ALL.len()],
    end: [i64; Line::ALL.len()],
}

fn minus(now: ByLine, before: ByLine) -> [i64; Line::ALL.len()] {
    std::array::from_fn(|line| now[line] as i64 - before[line] as i64)
}

fn plus(before: ByLine, change: [i64; Line::ALL.len()]) -> ByLine {
    std::array::from_fn(|line| {
        before[line].checked_add_signed(change[line]).expect("no line gives back more than it holds")
    })
}

/// One buffer; it is freed where it goes out of scope.
pub(super) struct Buf {
    heap: Heap,
    line: Line,
    /// Elements, where they are numbers.
    pub len: usize,
    bytes: u64,
}

impl Heap {
    pub fn new(bytes_each: u64) -> Heap {
        let none = [0; Line::ALL.len()];
        Heap(Rc::new(RefCell::new(Book { bytes_each, operations: 0, by_line: none, peak: none })))
    }

    pub fn reals(&self, line: Line, len: usize) -> Buf {
        let bytes = len as u64 * self.0.borrow().bytes_each;
        self.take(line, len, bytes)
    }

    /// Something that is no numbers of the run's format.
    pub fn bytes(&self, line: Line, bytes: u64) -> Buf {
        self.take(line, 0, bytes)
    }

    fn take(&self, line: Line, len: usize, bytes: u64) -> Buf {
        let mut book = self.0.borrow_mut();
        book.operations += 1;
        book.by_line[line as usize] += bytes;
        let now = book.by_line;
        book.see(now);
        drop(book);
        Buf { heap: self.clone(), line, len, bytes }
    }

    /// Buffers taken so far.
    pub fn operations(&self) -> u64 {
        self.0.borrow().operations
    }

    /// Runs something, and says what it changed.
    pub fn change_of(&self, run: impl FnOnce()) -> Change {
        let (before, highest) = (self.now(), self.peak());
        self.mark();
        run();
        let change = Change { high: minus(self.peak(), before), end: minus(self.now(), before) };
        let mut book = self.0.borrow_mut();
        let high = std::mem::replace(&mut book.peak, highest);
        book.see(high);
        change
    }

    /// Runs something whose buffers are booked already.
    pub fn without_booking<T>(&self, run: impl FnOnce() -> T) -> T {
        let (now, peak) = (self.now(), self.peak());
        let made = run();
        let mut book = self.0.borrow_mut();
        (book.by_line, book.peak) = (now, peak);
        drop(book);
        made
    }

    /// Books what something changed once more, as if it ran.
    pub fn book(&self, change: &Change) {
        let mut book = self.0.borrow_mut();
        let high = plus(book.by_line, change.high);
        book.see(high);
        book.by_line = plus(book.by_line, change.end);
    }

    /// Bytes by line at the highest point so far.
    pub fn peak(&self) -> ByLine {
        self.0.borrow().peak
    }

    /// Bytes by line now.
    pub fn now(&self) -> ByLine {
        self.0.borrow().by_line
    }

    /// Forgets the highest point.
    pub fn mark(&self) {
        let mut book = self.0.borrow_mut();
        book.peak = book.by_line;
    }
}

impl Buf {
    /// Another of the same size, on a line.
    pub fn like(&self, line: Line) -> Buf {
        self.heap.take(line, self.len, self.bytes)
    }

    /// The same buffer kept for backward: a pass's temporary becomes an activation, what routing
    /// made stays routing's.
    pub fn saved(self) -> Buf {
        match self.line {
            Line::ExpertInputs | Line::RoutingScratch => self,
            _ => self.onto(Line::Activations),
        }
    }

    /// The same buffer on another line.
    pub fn onto(mut self, line: Line) -> Buf {
        let mut book = self.heap.0.borrow_mut();
        book.by_line[self.line as usize] -= self.bytes;
        book.by_line[line as usize] += self.bytes;
        drop(book);
        self.line = line;
        self
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.heap.0.borrow_mut().by_line[self.line as usize] -= self.bytes;
    }
}
