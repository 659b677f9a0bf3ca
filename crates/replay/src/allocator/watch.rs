//! What the allocator did and how it stands, for whoever records it.

use super::{Allocator, BlockId, STREAMS, Segments, Stream};
use std::collections::BTreeSet;

/// What happened to memory, as torch's own history names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The device gave a segment.
    Segment,
    /// The device mapped pages behind an expandable segment.
    Pages,
    /// A block was handed out.
    Taken,
    /// A block was given back, though the device may still use it.
    Returned,
    /// A block can be handed out again.
    Free,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Happened {
    pub action: Action,
    pub address: u64,
    pub bytes: u64,
    pub stream: Stream,
}

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Handed out.
    Held,
    /// Given back, and the device may still use it.
    Late,
    /// There to be handed out.
    Free,
}

/// A block as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockNow {
    pub address: u64,
    pub bytes: u64,
    pub state: BlockState,
}

/// A segment as it stands, with all its blocks in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentNow {
    pub address: u64,
    pub stream: Stream,
    pub is_small: bool,
    pub is_expandable: bool,
    pub blocks: Vec<BlockNow>,
}

fn stream_of(pool: usize) -> Stream {
    [Stream::Main, Stream::Side, Stream::Reduce, Stream::Buffers][(pool / 2).min(STREAMS - 1)]
}

impl Allocator {
    /// From now on what happens is written down.
    pub(crate) fn watch(&mut self) {
        self.happened = Some(Vec::new());
    }

    /// What happened since this was last asked.
    pub(crate) fn happened(&mut self) -> Vec<Happened> {
        self.happened.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn note(&mut self, action: Action, id: BlockId) {
        let block = &self.blocks[id.index()];
        let (address, bytes, pool) = (block.address, block.size, block.pool);
        self.note_run(action, address, bytes, pool);
    }

    pub(super) fn note_run(&mut self, action: Action, address: u64, bytes: u64, pool: usize) {
        if let Some(happened) = &mut self.happened {
            happened.push(Happened { action, address, bytes, stream: stream_of(pool) });
        }
    }

    /// Every segment, by address.
    pub(crate) fn segments_now(&self) -> Vec<SegmentNow> {
        let spare: BTreeSet<BlockId> = self.spare.iter().copied().collect();
        let all = (0..self.blocks.len() as u32).map(BlockId).filter(|id| !spare.contains(id));
        let first = all.filter(|id| self.blocks[id.index()].before.is_none());
        let mut segments: Vec<SegmentNow> = first.map(|id| self.segment_from(id)).collect();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    fn segment_from(&self, first: BlockId) -> SegmentNow {
        let chain = std::iter::successors(Some(first), |id| self.blocks[id.index()].after);
        let now = |id: BlockId| {
            let block = &self.blocks[id.index()];
            let state = match (block.is_free, block.is_late) {
                (true, _) => BlockState::Free,
                (false, true) => BlockState::Late,
                (false, false) => BlockState::Held,
            };
            BlockNow { address: block.address, bytes: block.size, state }
        };
        let pool = self.blocks[first.index()].pool;
        SegmentNow {
            address: self.blocks[first.index()].address,
            stream: stream_of(pool),
            is_small: pool % 2 == 1,
            is_expandable: self.segments == Segments::Expandable,
            blocks: chain.map(now).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_what_stands() {
        for segments in [Segments::Fixed, Segments::Expandable] {
            let mut a = Allocator::with(segments);
            a.watch();
            let first = a.malloc(30 << 20).unwrap();
            a.malloc(600).unwrap();
            a.free_late(first, 5);
            a.at(9);
            a.malloc(1 << 20).unwrap();
            let grows = if segments == Segments::Fixed { Action::Segment } else { Action::Pages };
            use Action::{Free, Returned, Taken};
            let actions: Vec<Action> = a.happened().iter().map(|h| h.action).collect();
            assert_eq!(actions, [grows, Taken, grows, Taken, Returned, Free, Taken]);
            let now = a.segments_now();
            let bytes = |s: &SegmentNow| s.blocks.iter().map(|b| b.bytes).sum::<u64>();
            assert_eq!(now.iter().map(bytes).sum::<u64>(), a.reserved());
            let held = now.iter().flat_map(|s| &s.blocks).filter(|b| b.state == BlockState::Held);
            assert_eq!(held.map(|b| b.bytes).sum::<u64>(), a.allocated());
        }
    }
}
