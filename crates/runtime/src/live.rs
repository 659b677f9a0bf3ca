//! Bytes that are really allocated: an allocator that a program may install, and a meter for each thread
//! that wants one. A block counts on the meter of the thread that allocated it until any thread frees
//! it. A message to another rank counts on its sender's meter while the call runs ([`comm::Books`]);
//! scratch that a product's kernel allocates does not count.
#![allow(unsafe_code)]

use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// Meters there are; when more are started, the oldest is reused.
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

/// mimalloc with counters. Install it with `#[global_allocator]`; without it meters read
/// nothing.
pub struct Counting;

/// Room before a block for the number of its meter, keeping its alignment.
fn padded(layout: Layout) -> Option<(Layout, usize)> {
    let room = layout.align().max(size_of::<u64>());
    let whole = Layout::from_size_align(layout.size().checked_add(room)?, room).ok()?;
    Some((whole, room))
}

impl Counting {
    /// Writes the number of this thread's meter in front of a block that mimalloc gave.
    ///
    /// # Safety
    /// `front` is null, or a block of `room` bytes and `size` more, aligned for a `u64`.
    unsafe fn book(front: *mut u8, room: usize, size: usize) -> *mut u8 {
        if front.is_null() {
            return front;
        }
        let meter = MINE.get();
        book(meter, size as i64);
        // SAFETY: the caller's promise.
        unsafe {
            front.cast::<u64>().write(u64::from(meter));
            front.add(room)
        }
    }
}

// SAFETY: every block is mimalloc's, longer by `room` bytes in front, which hold the number of
// its meter; `dealloc` is given the same layout and so finds the same front. `room` is a multiple
// of the alignment asked for, which the block therefore keeps, and large enough for the number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, room)) = padded(layout) else { return std::ptr::null_mut() };
        // SAFETY: `whole` is not empty, for `room` is not, and begins with `room` bytes.
        unsafe { Counting::book(MiMalloc.alloc(whole), room, layout.size()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((whole, room)) = padded(layout) else { return std::ptr::null_mut() };
        // SAFETY: as above; only the front is written to.
        unsafe { Counting::book(MiMalloc.alloc_zeroed(whole), room, layout.size()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some((whole, room)) = padded(layout) else { return };
        // SAFETY: the block came from `alloc` with this layout.
        unsafe {
            let front = block.sub(room);
            book(front.cast::<u64>().read() as u32, -(layout.size() as i64));
            MiMalloc.dealloc(front, whole);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some((whole, room)) = padded(layout) else { return std::ptr::null_mut() };
        let Some(longer) = size.checked_add(room) else { return std::ptr::null_mut() };
        // SAFETY: the block came from `alloc` with this layout; the front moves with it.
        unsafe {
            let front = MiMalloc.realloc(block.sub(room), whole, longer);
            if front.is_null() {
                return front;
            }
            book(front.cast::<u64>().read() as u32, size as i64 - layout.size() as i64);
            front.add(room)
        }
    }
}

/// Counts what its thread allocates, until it is dropped.
pub struct Meter(());

impl Meter {
    /// Starts counting on this thread, which is the rank of `comm`.
    pub fn start(comm: &comm::Comm) -> Meter {
        let number = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
        let count = &COUNTS[number as usize % METERS];
        count.live.store(0, Ordering::Relaxed);
        count.peak.store(0, Ordering::Relaxed);
        MINE.set(number);
        // Whether the allocator is installed is found out by allocating something.
        let probe = std::hint::black_box(vec![0u8; 1]);
        match count.live.load(Ordering::Relaxed) {
            0 => MINE.set(0),
            _ => comm.keep_books(&OF_CALLS),
        }
        drop(probe);
        Meter(())
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        MINE.set(0);
    }
}

/// The most this thread had allocated at once since the last call; `None` where nothing counts.
pub(crate) fn peak_since() -> Option<u64> {
    let number = MINE.with(Cell::get);
    let count = &COUNTS[number as usize % METERS];
    let live = count.live.load(Ordering::Relaxed);
    (number != 0).then(|| count.peak.swap(live, Ordering::Relaxed).max(0) as u64)
}

/// How meters count messages: their memory is on no meter, but their size is on the sender's while the
/// call runs.
struct OfCalls;

static OF_CALLS: OfCalls = OfCalls;

impl comm::Books for OfCalls {
    fn pause(&self) -> u32 {
        MINE.replace(0)
    }

    fn resume(&self, number: u32) {
        MINE.set(number);
    }

    fn add(&self, bytes: i64) {
        book(MINE.get(), bytes);
    }
}

/// Runs a kernel without counting the scratch it allocates.
pub(crate) fn kernel<T>(run: impl FnOnce() -> T) -> T {
    let number = MINE.replace(0);
    let out = run();
    MINE.set(number);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_alignment_contents_and_end_where_they_began() {
        for (size, align) in [(1, 1), (24, 8), (100, 64), (4096, 4096), (0, 16)] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the block is used as long as its layout says, and given back with the last one.
            unsafe {
                let block = Counting.alloc_zeroed(layout);
                assert!(!block.is_null() && (block as usize).is_multiple_of(align));
                (0..size).for_each(|i| assert_eq!(block.add(i).read(), 0));
                (0..size).for_each(|i| block.add(i).write(i as u8));
                let longer = Layout::from_size_align(size + 5000, align).unwrap();
                let block = Counting.realloc(block, layout, longer.size());
                assert!((block as usize).is_multiple_of(align));
                (0..size).for_each(|i| assert_eq!(block.add(i).read(), i as u8));
                block.add(longer.size() - 1).write(1);
                Counting.dealloc(block, longer);
            }
        }
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        let most = Layout::from_size_align(isize::MAX as usize - 7, 8).unwrap();
        // SAFETY: nothing is given, so there is nothing to use.
        unsafe { assert!(Counting.alloc(most).is_null()) };
    }
}
