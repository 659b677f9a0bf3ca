//! A replay written down event by event, as torch's allocator writes its own history
//! (`torch.cuda.memory._record_memory_history`): every segment, allocation and free in order, each with
//! the line, the place in the model and the name it was booked under, and how all segments stand at the
//! end. Like torch it keeps the last so many events.
//!
//! Microbatches that a tape proves to repeat are not walked, so they are not written down either.

use crate::allocator::{Action, Allocator, BlockNow, BlockState, Happened, SegmentNow, Stream};
use crate::line::{Line, Origin};
use crate::phase::PhaseKind;
use std::cell::{Ref, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// What something was booked as.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// Its line; the first, where it is shared.
    pub line: Line,
    /// Where it was made.
    pub origin: Origin,
    /// What it is.
    pub name: &'static str,
    /// Whether backward made it.
    pub is_backward: bool,
    /// Lines it belongs to with their bytes, where it is shared; empty otherwise.
    pub shares: Vec<(Line, u64)>,
}

/// A label's place in [`Recording::labels`].
pub type LabelId = usize;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// Where.
    pub address: u64,
    /// Bytes of a segment, or those asked for of a block.
    pub bytes: u64,
    /// On which stream.
    pub stream: Stream,
    /// What the block was booked as when it was taken; a segment's is that of the block it was made for.
    pub label: LabelId,
}

/// A block at the end.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Where it lies.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it is in use.
    pub state: BlockState,
    /// Bytes asked for, and what they are booked as now; none of a free block.
    pub held: Option<(u64, LabelId)>,
}

/// A segment at the end.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Whose blocks it has.
    pub stream: Stream,
    /// Whether it is of the pool of small blocks.
    pub is_small: bool,
    /// Whether it grows.
    pub is_expandable: bool,
    /// Its blocks in order, without gaps.
    pub blocks: Vec<Block>,
}

/// What was written down.
#[derive(Debug, Default)]
pub struct Recording {
    /// The last events.
    pub events: VecDeque<Event>,
    /// Events before those, which were not kept.
    pub forgotten: u64,
    /// Everything that something was booked as.
    pub labels: Vec<Label>,
    /// Phases with the number of events, forgotten ones included, after which each ended.
    pub phases: Vec<(PhaseKind, u64)>,
    /// How segments stood when the last phase ended.
    pub segments: Vec<Segment>,
    /// Allocations of repeated microbatches that were not walked.
    pub left_out: u64,
    most: usize,
    ids: HashMap<Label, LabelId>,
    /// By address: bytes asked for, and as what.
    held: HashMap<u64, (u64, LabelId)>,
}

impl Recording {
    fn label(&mut self, label: Label) -> LabelId {
        if let Some(id) = self.ids.get(&label) {
            return *id;
        }
        self.labels.push(label.clone());
        self.ids.insert(label, self.labels.len() - 1);
        self.labels.len() - 1
    }

    fn push(&mut self, event: Event) {
        if self.events.len() == self.most {
            self.events.pop_front();
            self.forgotten += 1;
        }
        self.events.push_back(event);
    }

    /// Events so far, forgotten ones included.
    fn count(&self) -> u64 {
        self.forgotten + self.events.len() as u64
    }

    /// The phase that an event, counted from the first that was kept, happened in.
    pub fn phase_of(&self, event: usize) -> Option<PhaseKind> {
        let number = self.forgotten + event as u64;
        self.phases.iter().find(|(_, end)| number < *end).map(|(kind, _)| *kind)
    }

    fn see(&mut self, happened: Happened, taken: Option<(u64, LabelId)>) {
        let Happened { action, address, bytes, stream } = happened;
        let (bytes, label) = match action {
            Action::Segment | Action::Pages => (bytes, taken.map_or(0, |(_, label)| label)),
            Action::Taken => {
                let Some(held) = taken else { return };
                self.held.insert(address, held);
                held
            }
            Action::Returned => self.held.get(&address).copied().unwrap_or((bytes, 0)),
            Action::Free => self.held.remove(&address).unwrap_or((bytes, 0)),
        };
        self.push(Event { action, address, bytes, stream, label });
    }
}

/// Writes a replay down; cloning shares what is written.
#[derive(Clone, Debug)]
pub struct Recorder(Rc<RefCell<Recording>>);

impl Recorder {
    /// Keeps the last so many events.
    pub fn new(most: usize) -> Recorder {
        Recorder(Rc::new(RefCell::new(Recording { most: most.max(1), ..Recording::default() })))
    }

    /// What is written so far.
    pub fn read(&self) -> Ref<'_, Recording> {
        self.0.borrow()
    }

    pub(crate) fn taken(&self, happened: Vec<Happened>, bytes: u64, label: Label) {
        let mut recording = self.0.borrow_mut();
        let label = recording.label(label);
        happened.into_iter().for_each(|one| recording.see(one, Some((bytes, label))));
    }

    pub(crate) fn given(&self, happened: Vec<Happened>) {
        let mut recording = self.0.borrow_mut();
        happened.into_iter().for_each(|one| recording.see(one, None));
    }

    /// A block is booked on another line from now on.
    pub(crate) fn rebooked(&self, address: u64, line: Line) {
        let mut recording = self.0.borrow_mut();
        let Some((bytes, old)) = recording.held.get(&address).copied() else { return };
        let label = Label { line, ..recording.labels[old].clone() };
        let label = recording.label(label);
        recording.held.insert(address, (bytes, label));
    }

    pub(crate) fn ends(&self, kind: PhaseKind, allocator: &Allocator, left_out: u64) {
        let mut recording = self.0.borrow_mut();
        let count = recording.count();
        recording.phases.push((kind, count));
        recording.left_out = left_out;
        let held = &recording.held;
        let block = |now: &BlockNow| Block {
            address: now.address,
            bytes: now.bytes,
            state: now.state,
            held: held.get(&now.address).copied().filter(|_| now.state != BlockState::Free),
        };
        let segment = |segment: SegmentNow| Segment {
            address: segment.address,
            stream: segment.stream,
            is_small: segment.is_small,
            is_expandable: segment.is_expandable,
            blocks: segment.blocks.iter().map(block).collect(),
        };
        let segments: Vec<Segment> = allocator.segments_now().into_iter().map(segment).collect();
        recording.segments = segments;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::Phase;
    use crate::tape::{Tape, Watch};

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_written_adds_up_to_what_the_tape_says() {
        let recorder = Recorder::new(1000);
        let tape = Tape::new(Watch::Events(recorder.clone()));
        let kept = tape.storage(Line::TpParams, 3 * MIB, "weight");
        let both = tape.shared_storage(vec![(Line::TpParams, 1000), (Line::ReplicatedParams, 24)], 1024, "params");
        drop(tape.storage(Line::Activations, 12 * MIB + 1, "x"));
        kept.onto(Line::Gradients);
        Phase::read(&tape, PhaseKind::Passes(0));
        let recording = recorder.read();
        let (mut now, mut most) = (0, 0);
        for event in &recording.events {
            match event.action {
                Action::Taken => now += event.bytes,
                Action::Free => now -= event.bytes,
                _ => {}
            }
            most = most.max(now);
        }
        assert_eq!((most, now), (tape.requested_peak(), 3 * MIB + 1024));
        let blocks: Vec<&Block> = recording.segments.iter().flat_map(|s| &s.blocks).collect();
        assert_eq!(blocks.iter().map(|b| b.bytes).sum::<u64>(), tape.read(Allocator::reserved));
        let lines: Vec<Line> = blocks.iter().filter_map(|b| b.held).map(|(_, id)| recording.labels[id].line).collect();
        assert!(lines.contains(&Line::Gradients) && lines.contains(&Line::TpParams), "{lines:?}");
        assert_eq!(recording.phase_of(0), Some(PhaseKind::Passes(0)));
        drop(recording);
        drop(both);
    }

    #[test]
    fn the_last_events_are_kept() {
        let recorder = Recorder::new(4);
        let tape = Tape::new(Watch::Events(recorder.clone()));
        for _ in 0..10 {
            drop(tape.storage(Line::Activations, MIB, "x"));
        }
        Phase::read(&tape, PhaseKind::Model);
        let recording = recorder.read();
        // One segment, and three events a tensor.
        assert_eq!((recording.events.len(), recording.forgotten), (4, 27));
        assert_eq!(recording.phase_of(3), Some(PhaseKind::Model));
        assert_eq!(recording.phase_of(4), None);
    }
}
