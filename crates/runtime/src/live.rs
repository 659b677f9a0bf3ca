//! Bytes that are really allocated: an allocator that a program may install, and a meter for each
//! thread that wants one. A block is booked on the meter of the thread that made it until it is
//! freed, by whichever thread; what goes to another rank is handed over.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// Meters at most; a later one takes the place of the first.
const METERS: usize = 1024;

struct Count {
    live: AtomicI64,
    peak: AtomicI64,
}

static COUNTS: [Count; METERS] = [const { Count { live: AtomicI64::new(0), peak: AtomicI64::new(0) } }; METERS];
static NEXT: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// The meter of this thread; zero is none.
    static MINE: Cell<u32> = const { Cell::new(0) };
}

fn book(meter: u32, bytes: i64) {
    if meter == 0 {
        return;
    }
    let count = &COUNTS[meter as usize % METERS];
    let live = count.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
    count.peak.fetch_max(live, Ordering::Relaxed);
}

/// The system's allocator, counting. Install it with `#[global_allocator]`; without it meters
/// read zero.
pub struct Counting;

/// Room before a block for the number of its meter, keeping its alignment.
fn padded(layout: Layout) -> Option<(Layout, usize)> {
    let room = layout.align().max(size_of::<u64>());
    let whole = Layout::from_size_align(layout.size().checked_add(room)?, room).ok()?;
    Some((whole, room))
}

// SAFETY: every block is the system's, longer by `room` bytes in front, which hold the number of
// its meter; `dealloc` is given the same layout and so finds the same front. `room` is a multiple
// of the alignment asked for, which the block therefore keeps, and large enough for the number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, room)) = padded(layout) else { return std::ptr::null_mut() };
        // SAFETY: `whole` is not empty, for `room` is not.
        let front = unsafe { System.alloc(whole) };
        if front.is_null() {
            return front;
        }
        let meter = MINE.try_with(Cell::get).unwrap_or(0);
        book(meter, layout.size() as i64);
        // SAFETY: the front has `room` bytes, aligned for a u64.
        unsafe {
            front.cast::<u64>().write(u64::from(meter));
            front.add(room)
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some((whole, room)) = padded(layout) else { return };
        // SAFETY: the block came from `alloc` with this layout.
        unsafe {
            let front = block.sub(room);
            book(front.cast::<u64>().read() as u32, -(layout.size() as i64));
            System.dealloc(front, whole);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some((whole, room)) = padded(layout) else { return std::ptr::null_mut() };
        let Some(longer) = size.checked_add(room) else { return std::ptr::null_mut() };
        // SAFETY: the block came from `alloc` with this layout; the front moves with it.
        unsafe {
            let front = System.realloc(block.sub(room), whole, longer);
            if front.is_null() {
                return front;
            }
            book(front.cast::<u64>().read() as u32, size as i64 - layout.size() as i64);
            front.add(room)
        }
    }
}

/// A thread's count of what it has allocated.
pub struct Meter {
    number: u32,
}

impl Meter {
    /// Starts counting on this thread.
    pub fn start() -> Meter {
        let number = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
        let count = &COUNTS[number as usize % METERS];
        count.live.store(0, Ordering::Relaxed);
        count.peak.store(0, Ordering::Relaxed);
        MINE.with(|mine| mine.set(number));
        Meter { number }
    }

    /// Bytes allocated now.
    pub fn live(&self) -> i64 {
        COUNTS[self.number as usize % METERS].live.load(Ordering::Relaxed)
    }

    /// The most since the start, or since the last mark.
    pub fn peak(&self) -> i64 {
        COUNTS[self.number as usize % METERS].peak.load(Ordering::Relaxed)
    }

    /// Forgets earlier peaks.
    pub fn mark(&self) {
        COUNTS[self.number as usize % METERS].peak.store(self.live(), Ordering::Relaxed);
    }
}

/// What came from another rank of this process, booked here from now on where somebody counts.
pub(crate) fn adopt<T: Clone>(values: Vec<T>) -> Vec<T> {
    if MINE.with(Cell::get) == 0 { values } else { values.clone() }
}

impl Drop for Meter {
    fn drop(&mut self) {
        MINE.with(|mine| mine.set(0));
    }
}
