//! Storages and the book they are entered in: who holds how many bytes, and the peak.

use super::deferred::Queue;
use super::pace::{Clock, Pace};
use super::rounds::{Change, What};
use super::script::{Recorder, Slot, Take};
use super::tensor::Tensor;
use crate::allocator::{Allocator, BlockId, Segments, Stream};
use crate::line::{ByLine, Line, Origin};
use crate::phase::PhaseKind;
use crate::record::{self, Label};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What stands at one tape: the allocator, the book, and where we are. Cloning shares it.
#[derive(Clone)]
pub struct Tape(Rc<State>);

struct State {
    book: RefCell<Book>,
    origin: Cell<Origin>,
    runs_backward: Cell<bool>,
    records: Cell<bool>,
    sequence: Cell<u64>,
    /// Whether nobody reads the book any more.
    is_over: Cell<bool>,
    /// Bytes of segments above which a replay need not go on.
    ceiling: Cell<Option<u64>>,
    queue: Queue,
}

/// The place of backward in [`Tape::by_part`].
const BACKWARD: usize = 2;

/// The part of a step that something made at `stand` belongs to, as its place in [`Tape::by_part`]:
/// layers forward, head and loss forward, anything backward; none between those.
fn part(origin: Origin, runs_backward: bool) -> Option<usize> {
    match origin {
        _ if runs_backward => Some(BACKWARD),
        Origin::Head => Some(1),
        Origin::Setup | Origin::Pipeline | Origin::Optimizer => None,
        _ => Some(0),
    }
}

/// The entry of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    line: Line,
    origin: Origin,
    name: &'static str,
}

/// The highest point of a phase.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    /// Bytes allocated.
    pub allocated: u64,
    /// Which allocation reached it, counted from the start of the replay.
    pub event: u64,
    /// The same bytes by line.
    pub by_line: ByLine,
    /// Where it stands.
    pub origin: Origin,
}

/// Storages of one name in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Line they are booked on.
    pub line: Line,
    /// Where they were made.
    pub origin: Origin,
    /// What they are.
    pub name: &'static str,
    /// Their bytes.
    pub bytes: u64,
    /// How many they are.
    pub count: u64,
}

pub(super) struct Book {
    pub allocator: Allocator,
    /// Host and device, where it matters who is ahead.
    pub clock: Option<Clock>,
    entries: Vec<Entry>,
    /// Blocks that hold several lines, such as a parameter buffer.
    shared: BTreeMap<BlockId, Vec<(Line, u64)>>,
    pub live: ByLine,
    /// Bytes asked for and not given back, and the most since the last reset.
    requested: u64,
    requested_peak: u64,
    /// Allocations so far.
    pub events: u64,
    /// Allocations among them that were not walked.
    pub left_out: u64,
    /// Allocations among them that were made without their program ([`super::script`]).
    pub played: u64,
    /// The block of each storage that is alive, and slots of those that are not.
    pub slots: Vec<BlockId>,
    spare: Vec<Slot>,
    /// Changes since the last round of a loop, while one is looked at.
    pub changes: Option<Vec<Change>>,
    /// What the program asked for since then, while that is looked at.
    pub recorder: Option<Recorder>,
    peak: Peak,
    /// The most allocated in forward, loss and backward since the last reset.
    by_part: [u64; 3],
    watch: Watch,
    /// Who held what at the wanted event.
    holders: Vec<Holder>,
}

/// What is kept of a replay beside its phases.
#[derive(Clone, Debug)]
pub enum Watch {
    /// Nothing.
    Nothing,
    /// Who holds what at an event.
    Holders {
        /// Which allocation, counted from the start of the replay.
        at: u64,
    },
    /// What happens, as it happens.
    Events(record::Recorder),
}

/// Bytes on the device, given back when the last owner is dropped.
pub struct Storage {
    tape: Tape,
    bytes: u64,
    slot: Cell<Option<Slot>>,
    /// Whether another stream used it, so that it comes back only when the device is done with it.
    is_late: Cell<bool>,
    /// Stands in for bytes that were discarded and computed again.
    stand_in: RefCell<Option<Rc<Storage>>>,
}

impl Storage {
    /// Bytes asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives the bytes back while owners remain, as `untyped_storage().resize_(0)` does.
    pub fn discard(&self) {
        self.give_back();
        self.stand_in.take();
    }

    /// Books the bytes on another line from now on.
    pub(crate) fn onto(&self, line: Line) {
        if let Some(slot) = self.slot.get() {
            let book = &mut *self.tape.0.book.borrow_mut();
            book.recorder.iter_mut().for_each(|recorder| recorder.booked(slot, line));
            book.rebook(book.slots[slot], line);
        }
    }

    fn give_back(&self) {
        if let Some(slot) = self.slot.take().filter(|_| !self.tape.0.is_over.get()) {
            let book = &mut *self.tape.0.book.borrow_mut();
            book.recorder.iter_mut().for_each(|recorder| recorder.given(slot));
            book.free(book.slots[slot], self.bytes, self.is_late.get());
            book.spare.push(slot);
        }
    }

    /// Owners of this storage own `other` from now on.
    pub fn stand_in(&self, other: Rc<Storage>) {
        self.stand_in.replace(Some(other));
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Default for Tape {
    fn default() -> Tape {
        Tape::new(Watch::Nothing)
    }
}

impl Tape {
    /// A tape on an empty device.
    pub fn new(watch: Watch) -> Tape {
        Tape::with(watch, Segments::Fixed)
    }

    /// The same on segments of this kind.
    pub fn with(watch: Watch, segments: Segments) -> Tape {
        let nothing = ByLine::default();
        let peak = Peak { allocated: 0, event: 0, by_line: nothing, origin: Origin::Setup };
        let mut allocator = Allocator::with(segments);
        if matches!(watch, Watch::Events(_)) {
            allocator.watch();
        }
        let book = Book {
            allocator,
            clock: None,
            entries: Vec::new(),
            shared: BTreeMap::new(),
            live: nothing,
            requested: 0,
            requested_peak: 0,
            events: 0,
            left_out: 0,
            played: 0,
            slots: Vec::new(),
            spare: Vec::new(),
            changes: None,
            recorder: None,
            peak,
            by_part: [0; 3],
            watch,
            holders: Vec::new(),
        };
        Tape(Rc::new(State {
            book: RefCell::new(book),
            origin: Cell::new(Origin::Setup),
            runs_backward: Cell::new(false),
            records: Cell::new(true),
            sequence: Cell::new(0),
            is_over: Cell::new(false),
            ceiling: Cell::default(),
            queue: Queue::default(),
        }))
    }

    /// Nothing is read off the tape any more: what is dropped from now on is not booked.
    pub fn close(&self) {
        self.0.is_over.set(true);
    }

    /// From now on a replay may end once segments exceed so many bytes ([`Tape::is_above`]).
    pub fn end_above(&self, bytes: u64) {
        self.0.ceiling.set(Some(bytes));
    }

    /// Whether segments exceed what the replay is to end above: nothing that follows makes them less.
    pub fn is_above(&self) -> bool {
        self.above().is_some()
    }

    /// By how many bytes they do.
    pub fn above(&self) -> Option<u64> {
        let most = self.0.ceiling.get()?;
        self.0.book.borrow().allocator.reserved().checked_sub(most).filter(|bytes| *bytes > 0)
    }

    /// Takes bytes and books them where the tape stands.
    pub fn storage(&self, line: Line, bytes: u64, name: &'static str) -> Rc<Storage> {
        let origin = self.0.origin.get();
        self.make(bytes, Entry { line: origin.line_of(line), origin, name }, Vec::new())
    }

    /// Takes bytes that belong to several lines; rounding goes to the first.
    pub fn shared_storage(&self, shares: Vec<(Line, u64)>, bytes: u64, name: &'static str) -> Rc<Storage> {
        let line = shares.first().map_or(Line::Workspaces, |share| share.0);
        self.make(bytes, Entry { line, origin: self.0.origin.get(), name }, shares)
    }

    fn make(&self, bytes: u64, entry: Entry, shares: Vec<(Line, u64)>) -> Rc<Storage> {
        let book = &mut *self.0.book.borrow_mut();
        let is_backward = self.0.runs_backward.get();
        let part = part(entry.origin, is_backward);
        let is_shared = !shares.is_empty();
        let slot = book.malloc(bytes, entry, shares, is_backward).map(|block| book.slot_of(block));
        book.see_part(part);
        if let (Some(slot), Some(recorder)) = (slot, &mut book.recorder) {
            let stream = book.allocator.stream();
            recorder.taken(slot, Take { bytes, entry, stream, part }, is_shared);
        }
        Rc::new(Storage {
            tape: self.clone(),
            bytes,
            slot: Cell::new(slot),
            is_late: Cell::new(false),
            stand_in: RefCell::new(None),
        })
    }

    /// From now on gradients of parameters are taken over on another stream than the one that made
    /// them, so that they come back only when the device is done with them (`record_stream` in
    /// `torch/csrc/autograd/input_buffer.cpp`); `pace` says when that is.
    pub fn take_gradients_over_late(&self, pace: Pace) {
        self.0.book.borrow_mut().clock = Some(Clock::new(pace));
    }

    /// A parameter takes its gradient over.
    pub(super) fn take_gradient_over(&self, grad: &Tensor) {
        if let Some(storage) = grad.storage() {
            storage.is_late.set(self.0.book.borrow().clock.is_some());
        }
    }

    /// The device is given a product of so many floating-point operations.
    pub fn work(&self, flops: f64) {
        if let Some(clock) = &mut self.0.book.borrow_mut().clock {
            clock.work(flops);
        }
    }

    /// The host waits for the device.
    pub fn synchronize(&self) {
        if let Some(clock) = &mut self.0.book.borrow_mut().clock {
            clock.synchronize();
        }
    }

    /// Switches whether backward runs, and says how it was.
    pub(super) fn set_backward(&self, on: bool) -> bool {
        self.0.runs_backward.replace(on)
    }

    /// The most allocated in forward, loss and backward since the last reset; zero where a part
    /// allocated nothing.
    pub fn by_part(&self) -> [u64; 3] {
        self.0.book.borrow().by_part
    }

    /// Where the tape stands.
    pub fn origin(&self) -> Origin {
        self.0.origin.get()
    }

    /// What follows is made there.
    pub fn enter(&self, origin: Origin) {
        self.0.origin.set(origin);
    }

    /// Whether operations are recorded for backward.
    pub fn records(&self) -> bool {
        self.0.records.get()
    }

    /// Switches recording, and says how it was.
    pub fn set_recording(&self, on: bool) -> bool {
        self.0.records.replace(on)
    }

    /// Allocations that were walked.
    pub fn operations(&self) -> u64 {
        let book = self.0.book.borrow();
        book.events - book.left_out - book.played
    }

    pub(super) fn book(&self) -> RefMut<'_, Book> {
        self.0.book.borrow_mut()
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.0.queue
    }

    /// The next node's sequence number.
    pub(super) fn next_sequence(&self) -> u64 {
        let next = self.0.sequence.get();
        self.0.sequence.set(next + 1);
        next
    }

    /// What follows is allocated on this stream.
    pub fn on_stream(&self, stream: Stream) {
        self.0.book.borrow_mut().allocator.on_stream(stream);
    }

    /// Starts a phase: peaks begin at what is held now.
    pub fn reset_peaks(&self) {
        let book = &mut *self.0.book.borrow_mut();
        book.allocator.reset_peaks();
        book.by_part = [0; 3];
        book.requested_peak = book.requested;
        book.mark_peak(self.0.origin.get());
    }

    /// The most bytes asked for since the last reset, before the allocator rounds them up.
    pub fn requested_peak(&self) -> u64 {
        self.0.book.borrow().requested_peak
    }

    /// A phase ends here.
    pub(crate) fn phase_ends(&self, kind: PhaseKind) {
        let book = self.0.book.borrow();
        if let Watch::Events(recorder) = &book.watch {
            recorder.ends(kind, &book.allocator, book.left_out);
        }
    }

    /// The highest point since the last reset.
    pub fn peak(&self) -> Peak {
        self.0.book.borrow().peak
    }

    /// Reads the allocator's own figures.
    pub fn read<T>(&self, read: impl FnOnce(&Allocator) -> T) -> T {
        read(&self.0.book.borrow().allocator)
    }

    /// Bytes held now by line.
    pub fn live(&self) -> ByLine {
        self.0.book.borrow().live
    }

    /// Who holds what now, most first.
    pub fn holders(&self) -> Vec<Holder> {
        self.0.book.borrow().holders_now()
    }

    /// Who held what at the wanted event.
    pub fn wanted_holders(&self) -> Vec<Holder> {
        self.0.book.borrow().holders.clone()
    }
}

impl Book {
    fn slot_of(&mut self, block: BlockId) -> Slot {
        let slot = self.spare.pop().unwrap_or_else(|| {
            self.slots.push(block);
            self.slots.len() - 1
        });
        self.slots[slot] = block;
        slot
    }

    /// Something of this part of a step was made.
    fn see_part(&mut self, part: Option<usize>) {
        if let Some(part) = part {
            self.by_part[part] = self.by_part[part].max(self.allocator.allocated());
        }
    }

    /// Takes what a program took in an earlier round.
    pub fn take_again(&mut self, take: &Take) -> Option<BlockId> {
        self.allocator.on_stream(take.stream);
        let block = self.malloc(take.bytes, take.entry, Vec::new(), take.part == Some(BACKWARD));
        self.see_part(take.part);
        self.played += 1;
        block
    }

    fn malloc(&mut self, bytes: u64, entry: Entry, shares: Vec<(Line, u64)>, is_backward: bool) -> Option<BlockId> {
        if let Some(clock) = &mut self.clock {
            self.allocator.at(clock.allocate(bytes, is_backward));
        }
        let block = self.allocator.malloc(bytes)?;
        if let Watch::Events(recorder) = &self.watch {
            let Entry { line, origin, name } = entry;
            let label = Label { line, origin, name, is_backward, shares: shares.clone() };
            recorder.taken(self.allocator.happened(), bytes, label);
        }
        let size = self.allocator.size(block);
        if block.index() >= self.entries.len() {
            self.entries.resize(block.index() + 1, entry);
        }
        self.entries[block.index()] = entry;
        self.live[entry.line as usize] += size;
        self.note(block, size, What::Taken(entry));
        self.requested += bytes;
        self.requested_peak = self.requested_peak.max(self.requested);
        if !shares.is_empty() {
            self.give_shares(block, entry.line, shares);
        }
        self.events += 1;
        if self.allocator.allocated() > self.peak.allocated {
            self.mark_peak(entry.origin);
        }
        if matches!(self.watch, Watch::Holders { at } if at == self.events) {
            self.holders = self.holders_now();
        }
        Some(block)
    }

    fn give_shares(&mut self, block: BlockId, first: Line, shares: Vec<(Line, u64)>) {
        for (line, bytes) in &shares {
            self.live[first as usize] -= bytes;
            self.live[*line as usize] += bytes;
            self.note(block, *bytes, What::Booked(*line));
        }
        self.shared.insert(block, shares);
    }

    pub fn rebook(&mut self, block: BlockId, line: Line) {
        let size = self.allocator.size(block);
        let entry = &mut self.entries[block.index()];
        self.live[entry.line as usize] -= size;
        self.live[line as usize] += size;
        entry.line = line;
        if let Watch::Events(recorder) = &self.watch {
            recorder.rebooked(self.allocator.address(block), line);
        }
        self.note(block, size, What::Booked(line));
    }

    fn note(&mut self, block: BlockId, bytes: u64, what: What) {
        if let Some(changes) = &mut self.changes {
            changes.push(Change { address: self.allocator.address(block), bytes, what });
        }
    }

    fn mark_peak(&mut self, origin: Origin) {
        self.peak = Peak { allocated: self.allocator.allocated(), event: self.events, by_line: self.live, origin };
    }

    pub fn free(&mut self, block: BlockId, bytes: u64, is_late: bool) {
        self.requested -= bytes;
        let line = self.entries[block.index()].line;
        if !self.shared.is_empty() {
            for (other, bytes) in self.shared.remove(&block).into_iter().flatten() {
                self.live[other as usize] -= bytes;
                self.live[line as usize] += bytes;
            }
        }
        let size = self.allocator.size(block);
        self.live[line as usize] -= size;
        self.note(block, size, What::Given);
        match &self.clock {
            Some(clock) if is_late => self.allocator.free_late(block, clock.done()),
            _ => self.allocator.free(block),
        }
        if let Watch::Events(recorder) = &self.watch {
            recorder.given(self.allocator.happened());
        }
    }

    fn holders_now(&self) -> Vec<Holder> {
        let mut sums: BTreeMap<(Origin, Line, &'static str), (u64, u64)> = BTreeMap::new();
        for block in self.allocator.held() {
            let Entry { line, origin, name } = self.entries[block.index()];
            let size = self.allocator.size(block);
            let shares = self.shared.get(&block).map_or(&[][..], Vec::as_slice);
            let rest = size - shares.iter().map(|s| s.1).sum::<u64>();
            for (line, bytes) in shares.iter().copied().chain([(line, rest)]).filter(|share| share.1 > 0) {
                let sum = sums.entry((origin, line, name)).or_default();
                *sum = (sum.0 + bytes, sum.1 + 1);
            }
        }
        let holder = |((origin, line, name), (bytes, count))| Holder { line, origin, name, bytes, count };
        let mut holders: Vec<Holder> = sums.into_iter().map(holder).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_return_with_the_last_owner() {
        let tape = Tape::default();
        let first = tape.storage(Line::Activations, 1 << 20, "x");
        let second = first.clone();
        drop(first);
        assert_eq!(tape.live()[Line::Activations as usize], 1 << 20);
        drop(second);
        assert_eq!(tape.live(), ByLine::default());
        assert_eq!(tape.peak().allocated, 1 << 20);
    }

    #[test]
    fn a_shared_buffer_is_booked_by_share() {
        let tape = Tape::default();
        let shares = vec![(Line::TpParams, 1000), (Line::ReplicatedParams, 20)];
        let buffer = tape.shared_storage(shares, 1024, "params");
        assert_eq!(tape.live()[Line::TpParams as usize], 1004);
        assert_eq!(tape.live()[Line::ReplicatedParams as usize], 20);
        drop(buffer);
        assert_eq!(tape.live(), ByLine::default());
    }

    #[test]
    fn holders_are_collected_at_the_wanted_event() {
        let tape = Tape::new(Watch::Holders { at: 2 });
        let first = tape.storage(Line::Loss, 512, "logits");
        let _second = tape.storage(Line::Loss, 512, "logits");
        drop(first);
        assert_eq!(tape.wanted_holders()[0].count, 2);
        assert_eq!(tape.holders()[0].count, 1);
    }
}
