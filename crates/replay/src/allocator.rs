//! PyTorch's caching allocator (`c10/cuda/CUDACachingAllocator.cpp`), so that allocated and
//! reserved bytes come out as the device reports them.
//!
//! Sizes are rounded to 512 B. Up to 1 MiB a block comes out of 2 MiB segments, below 10 MiB out
//! of 20 MiB segments, and else out of a segment of its own, rounded to 2 MiB. The smallest free
//! block that fits is taken, the lowest address among equals; it is split when what is left is
//! worth keeping, and otherwise counts whole. Freed neighbours of one segment join again.
//!
//! With expandable segments there is one a stream and pool: it is mapped page by page (2 MiB, or
//! 20 MiB of the large pool) as blocks need it, and every remainder is split off. The free block at
//! its end, which could grow, is taken last.
//!
//! It does not return memory to the device, or know what a block holds.

mod pool;
mod watch;

pub use watch::{Action, BlockState};
pub(crate) use watch::{BlockNow, Happened, SegmentNow};

use pool::Pool;
use std::collections::VecDeque;

const MIB: u64 = 1 << 20;
/// Every size is a multiple of this.
const ROUND: u64 = 512;
/// Largest block of the small pool.
const SMALL: u64 = MIB;
/// Segment the small pool grows by.
const SMALL_SEGMENT: u64 = 2 * MIB;
/// Blocks below this share segments of [`SHARED_SEGMENT`].
const SHARED: u64 = 10 * MIB;
const SHARED_SEGMENT: u64 = 20 * MIB;
/// Larger segments are a multiple of this.
const SEGMENT_ROUND: u64 = 2 * MIB;
/// Distance between segments, so that they never look like neighbours.
const GAP: u64 = 1 << 30;

/// A block the allocator handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockId(u32);

impl BlockId {
    /// A number that is small, so that it can index a table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A CUDA stream; blocks never move between streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Where compute runs.
    Main,
    /// Where context-parallel attention runs every other step, and where weights are gathered.
    Side,
    /// Where gradients are reduced.
    Reduce,
    /// Where Megatron's trainer builds the buffers of distributed data parallel.
    Buffers,
}

const STREAMS: usize = 4;

/// How memory is asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// Segments of a size of their own, torch's default.
    Fixed,
    /// One segment a stream and pool that grows (`PYTORCH_ALLOC_CONF=expandable_segments:True`).
    Expandable,
}

#[derive(Clone, Debug)]
struct Block {
    address: u64,
    size: u64,
    before: Option<BlockId>,
    after: Option<BlockId>,
    pool: usize,
    is_free: bool,
    /// Given back, but not before the device is done with it.
    is_late: bool,
}

impl Block {
    fn is_split(&self) -> bool {
        self.before.is_some() || self.after.is_some()
    }
}

/// What an allocator has to give, where, and how it would grow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FreeBlocks {
    /// Size and address of each, by pool, in the order they are looked at.
    by_pool: Vec<Vec<(u64, u64)>>,
    late: Vec<(u64, u64)>,
    stream: Stream,
    next_address: u64,
    /// Bytes allocated, reserved, and free in split segments.
    counts: [u64; 3],
}

impl FreeBlocks {
    /// Where the next block is allocated.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.by_pool.iter().map(Vec::len).sum::<usize>() + self.late.len()
    }
}

/// The allocator of one device.
#[derive(Debug)]
pub struct Allocator {
    blocks: Vec<Block>,
    /// Entries of `blocks` that no longer stand for anything.
    spare: Vec<BlockId>,
    /// Free blocks by stream and size class.
    pools: [Pool; 2 * STREAMS],
    stream: Stream,
    segments: Segments,
    /// The last block of each pool's expandable segment.
    last: [Option<BlockId>; 2 * STREAMS],
    next_address: u64,
    allocated: u64,
    reserved: u64,
    reserved_peak: u64,
    inactive_split: u64,
    inactive_split_peak: u64,
    /// Blocks another stream used, in the order they were given back, each with the time at which the
    /// device is done with it.
    late: VecDeque<(u64, BlockId)>,
    /// The host's time.
    now: u64,
    /// What happened, where somebody wants to know.
    happened: Option<Vec<Happened>>,
}

impl Default for Allocator {
    fn default() -> Allocator {
        Allocator::new()
    }
}

impl Allocator {
    /// An allocator that has asked the device for nothing yet.
    pub fn new() -> Allocator {
        Allocator::with(Segments::Fixed)
    }

    /// The same with segments of this kind.
    pub fn with(segments: Segments) -> Allocator {
        Allocator {
            blocks: Vec::new(),
            spare: Vec::new(),
            pools: Default::default(),
            stream: Stream::Main,
            segments,
            last: [None; 2 * STREAMS],
            next_address: 1 << 40,
            allocated: 0,
            reserved: 0,
            reserved_peak: 0,
            inactive_split: 0,
            inactive_split_peak: 0,
            late: VecDeque::new(),
            now: 0,
            happened: None,
        }
    }

    /// Bytes handed out, unsplit remainders included.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Bytes of all segments.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The most bytes of segments since the last [`Allocator::reset_peaks`].
    pub fn reserved_peak(&self) -> u64 {
        self.reserved_peak
    }

    /// The most bytes of free blocks in split segments since the last reset.
    pub fn inactive_split_peak(&self) -> u64 {
        self.inactive_split_peak
    }

    /// Starts new peaks at what is held now.
    pub fn reset_peaks(&mut self) {
        self.reserved_peak = self.reserved;
        self.inactive_split_peak = self.inactive_split;
    }

    /// What follows is allocated on this stream.
    pub fn on_stream(&mut self, stream: Stream) {
        self.stream = stream;
    }

    /// What follows is allocated there.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Size a block really takes, which may exceed what was asked for.
    pub fn size(&self, id: BlockId) -> u64 {
        self.blocks[id.index()].size
    }

    /// Where a block lies.
    pub(crate) fn address(&self, id: BlockId) -> u64 {
        self.blocks[id.index()].address
    }

    /// All that the next allocations depend on, but for what is held and when late blocks come back.
    pub(crate) fn free_blocks(&self) -> FreeBlocks {
        let of_pool = |pool: &Pool| pool.iter().map(|&(size, address, _)| (size, address)).collect();
        FreeBlocks {
            by_pool: self.pools.iter().map(of_pool).collect(),
            late: self.late.iter().map(|&(done, id)| (done, self.address(id))).collect(),
            stream: self.stream,
            next_address: self.next_address,
            counts: [self.allocated, self.reserved, self.inactive_split],
        }
    }

    /// Whether a block is in use.
    pub fn is_held(&self, id: BlockId) -> bool {
        self.blocks.get(id.index()).is_some_and(|b| !b.is_free && !b.is_late)
    }

    /// Blocks in use.
    pub fn held(&self) -> impl Iterator<Item = BlockId> + '_ {
        (0..self.blocks.len() as u32).map(BlockId).filter(|id| self.is_held(*id))
    }

    /// Takes a block of at least `bytes`; nothing is taken for nothing.
    pub fn malloc(&mut self, bytes: u64) -> Option<BlockId> {
        if bytes == 0 {
            return None;
        }
        while self.late.front().is_some_and(|(done, _)| *done <= self.now) {
            self.take_back_late();
        }
        let size = bytes.div_ceil(ROUND) * ROUND;
        let is_small = size <= SMALL;
        let pool = self.stream as usize * 2 + usize::from(is_small);
        let id = self.take_free(pool, size).unwrap_or_else(|| self.grow(pool, size, is_small));
        let rest = self.blocks[id.index()].size - size;
        let splits_all = is_small || self.segments == Segments::Expandable;
        if if splits_all { rest >= ROUND } else { rest > SMALL } {
            self.split(id, size);
        }
        let block = &mut self.blocks[id.index()];
        block.is_free = false;
        self.allocated += block.size;
        self.note(Action::Taken, id);
        Some(id)
    }

    fn take_free(&mut self, pool: usize, size: u64) -> Option<BlockId> {
        let growing = if self.segments == Segments::Expandable { self.last[pool] } else { None };
        let id = self.pools[pool].take(size, growing)?;
        let block = &self.blocks[id.index()];
        if block.is_split() {
            self.inactive_split -= block.size;
        }
        Some(id)
    }

    fn grow(&mut self, pool: usize, size: u64, is_small: bool) -> BlockId {
        if self.segments == Segments::Expandable {
            return self.expand(pool, size, is_small);
        }
        let segment = match size {
            _ if is_small => SMALL_SEGMENT,
            _ if size < SHARED => SHARED_SEGMENT,
            _ => size.div_ceil(SEGMENT_ROUND) * SEGMENT_ROUND,
        };
        let address = self.next_address;
        self.next_address += segment + GAP;
        self.reserved += segment;
        self.reserved_peak = self.reserved_peak.max(self.reserved);
        self.note_run(Action::Segment, address, segment, pool);
        self.insert(Block { address, size: segment, before: None, after: None, pool, is_free: true, is_late: false })
    }

    /// Maps pages behind the last block (`try_allocate_expandable_block`), and joins them with it when
    /// it is free.
    fn expand(&mut self, pool: usize, size: u64, is_small: bool) -> BlockId {
        let page = if is_small { SMALL_SEGMENT } else { SHARED_SEGMENT };
        let last = self.last[pool];
        let free = last.filter(|id| self.blocks[id.index()].is_free);
        let held = free.map_or(0, |id| self.blocks[id.index()].size);
        let mapped = (size - held).div_ceil(page) * page;
        self.reserved += mapped;
        self.reserved_peak = self.reserved_peak.max(self.reserved);
        if let Some(id) = free {
            let block = &self.blocks[id.index()];
            let (size, address, is_split) = (block.size, block.address, block.is_split());
            self.pools[pool].remove(size, address);
            if is_split {
                self.inactive_split -= size;
            }
            self.blocks[id.index()].size += mapped;
            self.note_run(Action::Pages, address + size, mapped, pool);
            return id;
        }
        let address = match last {
            Some(id) => self.blocks[id.index()].address + self.blocks[id.index()].size,
            None => (pool as u64 + 1) << 58,
        };
        self.note_run(Action::Pages, address, mapped, pool);
        let block = Block { address, size: mapped, before: last, after: None, pool, is_free: true, is_late: false };
        let id = self.insert(block);
        if let Some(last) = last {
            self.blocks[last.index()].after = Some(id);
        }
        self.last[pool] = Some(id);
        id
    }

    fn insert(&mut self, block: Block) -> BlockId {
        match self.spare.pop() {
            Some(id) => {
                self.blocks[id.index()] = block;
                id
            }
            None => {
                self.blocks.push(block);
                BlockId(self.blocks.len() as u32 - 1)
            }
        }
    }

    /// Cuts a block that is being taken, and leaves what is behind `size` free.
    fn split(&mut self, id: BlockId, size: u64) {
        let whole = self.blocks[id.index()].clone();
        let rest = Block {
            address: whole.address + size,
            size: whole.size - size,
            before: Some(id),
            after: whole.after,
            pool: whole.pool,
            is_free: true,
            is_late: false,
        };
        let entry = (rest.size, rest.address);
        let rest = self.insert(rest);
        match whole.after {
            Some(after) => self.blocks[after.index()].before = Some(rest),
            None => self.last[whole.pool] = Some(rest),
        }
        let taken = &mut self.blocks[id.index()];
        taken.after = Some(rest);
        taken.size = size;
        self.pools[whole.pool].insert(entry.0, entry.1, rest);
        self.count_split(entry.0);
    }

    fn count_split(&mut self, size: u64) {
        self.inactive_split += size;
        self.inactive_split_peak = self.inactive_split_peak.max(self.inactive_split);
    }

    /// What follows happens at this time, by the host's clock.
    pub fn at(&mut self, now: u64) {
        self.now = now;
    }

    /// Gives back a block that another stream used (`record_stream`): it counts as allocated no
    /// longer, but can be taken again only once the device is `done` with it.
    pub fn free_late(&mut self, id: BlockId, done: u64) {
        let block = &mut self.blocks[id.index()];
        self.allocated -= block.size;
        block.is_late = true;
        self.late.push_back((done, id));
        self.note(Action::Returned, id);
    }

    fn take_back_late(&mut self) {
        if let Some((_, id)) = self.late.pop_front() {
            let block = &mut self.blocks[id.index()];
            block.is_late = false;
            self.allocated += block.size;
            self.take_back(id);
        }
    }

    /// Gives a block back.
    pub fn free(&mut self, id: BlockId) {
        self.note(Action::Returned, id);
        self.take_back(id);
    }

    /// Joins a block with free neighbours.
    fn take_back(&mut self, id: BlockId) {
        self.note(Action::Free, id);
        let block = &mut self.blocks[id.index()];
        self.allocated -= block.size;
        block.is_free = true;
        let mut id = id;
        if let Some(before) = self.blocks[id.index()].before.filter(|b| self.blocks[b.index()].is_free) {
            self.leave_pool(before);
            self.join(before, id);
            id = before;
        }
        if let Some(after) = self.blocks[id.index()].after.filter(|b| self.blocks[b.index()].is_free) {
            self.leave_pool(after);
            self.join(id, after);
        }
        let block = &self.blocks[id.index()];
        let (size, is_split) = (block.size, block.is_split());
        self.pools[block.pool].insert(size, block.address, id);
        if is_split {
            self.count_split(size);
        }
    }

    fn leave_pool(&mut self, id: BlockId) {
        let block = &self.blocks[id.index()];
        self.pools[block.pool].remove(block.size, block.address);
        self.inactive_split -= block.size;
    }

    /// Makes one block of two neighbours; the second stops standing for anything.
    fn join(&mut self, first: BlockId, second: BlockId) {
        let (size, after) = (self.blocks[second.index()].size, self.blocks[second.index()].after);
        let block = &mut self.blocks[first.index()];
        block.size += size;
        block.after = after;
        let pool = block.pool;
        match after {
            Some(after) => self.blocks[after.index()].before = Some(first),
            None => self.last[pool] = Some(first),
        }
        self.blocks[second.index()].is_free = true;
        self.spare.push(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(allocator: &mut Allocator, bytes: u64) -> BlockId {
        allocator.malloc(bytes).unwrap()
    }

    #[test]
    fn small_blocks_share_a_segment_of_two_mebibytes() {
        let mut a = Allocator::new();
        take(&mut a, 1);
        take(&mut a, 513);
        assert_eq!((a.allocated(), a.reserved()), (512 + 1024, 2 * MIB));
        assert!(a.malloc(0).is_none());
    }

    #[test]
    fn segments_follow_the_size() {
        for (bytes, segment) in [(MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB)] {
            let mut a = Allocator::new();
            take(&mut a, bytes);
            assert_eq!(a.reserved(), segment, "{bytes}");
        }
    }

    #[test]
    fn a_remainder_of_a_mebibyte_is_not_split_off_and_counts() {
        let mut a = Allocator::new();
        let big = take(&mut a, 12 * MIB);
        a.free(big);
        take(&mut a, 11 * MIB);
        assert_eq!((a.allocated(), a.reserved()), (12 * MIB, 12 * MIB));
    }

    #[test]
    fn the_smallest_free_block_that_fits_is_taken() {
        let mut a = Allocator::new();
        let (large, fitting) = (take(&mut a, 40 * MIB), take(&mut a, 30 * MIB));
        a.free(large);
        a.free(fitting);
        take(&mut a, 28 * MIB);
        let rest = take(&mut a, 40 * MIB);
        assert_eq!(a.reserved(), 70 * MIB);
        a.free(rest);
    }

    #[test]
    fn freed_neighbours_join() {
        let mut a = Allocator::new();
        let whole = take(&mut a, 30 * MIB);
        a.free(whole);
        let parts: Vec<_> = (0..3).map(|_| take(&mut a, 10 * MIB)).collect();
        for part in [parts[0], parts[2], parts[1]] {
            a.free(part);
        }
        take(&mut a, 30 * MIB);
        assert_eq!(a.reserved(), 30 * MIB);
        assert_eq!(a.inactive_split_peak(), 20 * MIB);
    }

    #[test]
    fn a_block_given_back_late_is_not_taken_before_its_time() {
        let mut a = Allocator::new();
        let first = take(&mut a, 30 * MIB);
        a.free_late(first, 2);
        assert_eq!(a.allocated(), 0);
        a.at(1);
        let second = take(&mut a, 30 * MIB);
        assert_eq!((a.allocated(), a.reserved()), (30 * MIB, 60 * MIB));
        a.at(2);
        take(&mut a, 30 * MIB);
        assert_eq!((a.allocated(), a.reserved()), (60 * MIB, 60 * MIB));
        a.free(second);
    }

    #[test]
    fn an_expandable_segment_grows_by_pages() {
        let mut a = Allocator::with(Segments::Expandable);
        take(&mut a, 512);
        assert_eq!(a.reserved(), 2 * MIB);
        let first = take(&mut a, 30 * MIB);
        assert_eq!(a.reserved(), 42 * MIB);
        // Ten of the forty are left, so that twenty more pages are enough for thirty.
        take(&mut a, 30 * MIB);
        assert_eq!((a.allocated(), a.reserved()), (60 * MIB + 512, 62 * MIB));
        a.free(first);
        // A hole is taken before the end, whatever is left of it is split off.
        take(&mut a, 29 * MIB);
        take(&mut a, MIB + 512);
        assert_eq!((a.allocated(), a.reserved()), (60 * MIB + 1024, 82 * MIB));
    }

    #[test]
    fn the_end_of_an_expandable_segment_is_taken_last() {
        let mut a = Allocator::with(Segments::Expandable);
        let (hole, _held) = (take(&mut a, 20 * MIB), take(&mut a, 8 * MIB));
        a.free(hole);
        // The end has twelve mebibytes and would fit best, but the hole cannot grow.
        take(&mut a, 12 * MIB);
        take(&mut a, 12 * MIB);
        assert_eq!(a.reserved(), 40 * MIB);
        take(&mut a, 8 * MIB);
        assert_eq!(a.reserved(), 40 * MIB);
    }

    #[test]
    fn streams_do_not_share_blocks() {
        let mut a = Allocator::new();
        let main = take(&mut a, 30 * MIB);
        a.free(main);
        a.on_stream(Stream::Side);
        take(&mut a, 30 * MIB);
        assert_eq!(a.reserved(), 60 * MIB);
    }
}
