//! torch's memory snapshot: what the allocator held when it was taken, and what it did before. The pickle is read as data;
//! nothing in it is called, and one that names a class or function is refused.
//!
//! Keys: `torch/cuda/memory.py`, `_snapshot` (torch 2.15). In `device_traces` the size of an allocation is what was asked
//! for; blocks of `segments` have that and the size they were given.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

use checkpoint::pickle::{Id, Node, Pickle};
use diag::{Blame, Finding};
use std::collections::HashMap;

/// A snapshot of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub segments: Vec<Segment>,
    /// Of each device, in the order it happened. Of a history that was cut short, the end.
    pub traces: Vec<Vec<TraceEntry>>,
    /// Call stacks, innermost frame first; blocks and entries name one by its place.
    pub stacks: Vec<Vec<Frame>>,
}

/// Memory that the driver gave in one piece.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    pub device: u64,
    pub address: u64,
    pub bytes: u64,
    pub stream: u64,
    pub is_expandable: bool,
    pub blocks: Vec<Block>,
}

/// A part of a segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    pub address: u64,
    /// As it was given out.
    pub bytes: u64,
    /// As it was asked for; zero where it is free.
    pub requested: u64,
    pub state: BlockState,
    /// Where it was allocated, if that was recorded.
    pub stack: usize,
}

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    Allocated,
    /// Freed, and waited for by another stream.
    AwaitingFree,
    Free,
}

/// One thing the allocator did.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceEntry {
    pub action: Action,
    /// None of an allocation that failed.
    pub address: Option<u64>,
    pub bytes: u64,
    pub stream: u64,
    pub stack: usize,
    /// Microseconds, where they were recorded.
    pub time_us: Option<u64>,
}

/// What it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    OutOfMemory,
    /// A snapshot was taken, or something was noted: nothing was allocated or freed.
    Noted,
}

/// One function of a call stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub file: String,
    pub line: u64,
    pub name: String,
}

/// The most that one device held while its history was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Rounded to the allocator's 512 bytes; blocks that were not split may be larger.
    pub allocated: u64,
    /// What blocks that were not split can add to it at most.
    pub unsplit: u64,
    pub reserved: u64,
}

/// torch's allocator rounds to this (`c10/cuda/CUDACachingAllocator.cpp`, `kMinBlockSize`).
const SMALLEST: u64 = 512;

/// A large block keeps a rest of up to this rather than being split (`kSmallSize`).
const UNSPLIT: u64 = 1 << 20;

impl Snapshot {
    /// Reads the pickle that `torch.cuda.memory._dump_snapshot` writes; `object` is what findings call it.
    pub fn read(bytes: &[u8], object: &str) -> Result<Snapshot, Finding> {
        let pickle = Pickle::read(bytes, object, &|_, _| false)?;
        let mut reading = Reading { pickle: &pickle, stacks: vec![Vec::new()], of: HashMap::new() };
        let Some((segments, traces)) = reading.all() else {
            let shown = diag::quote::terminal(object);
            let message = format!("`{shown}` is a pickle, and not of torch's memory snapshot");
            return Err(Finding::error("evidence/snapshot", Blame::Environment, object, message)
                .hint("torch.cuda.memory._dump_snapshot(FILE) writes one, behind _record_memory_history()"));
        };
        Ok(Snapshot { segments, traces, stacks: reading.stacks })
    }

    /// Devices that hold or did anything.
    pub fn devices(&self) -> Vec<u64> {
        let traced = self.traces.iter().enumerate().filter(|(_, trace)| !trace.is_empty()).map(|(at, _)| at as u64);
        let mut all: Vec<u64> = self.segments.iter().map(|segment| segment.device).chain(traced).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Bytes of blocks in use on a device, and of its segments, when the snapshot was taken.
    pub fn held(&self, device: u64) -> (u64, u64) {
        let mine = || self.segments.iter().filter(move |segment| segment.device == device);
        let blocks = mine().flat_map(|segment| &segment.blocks).filter(|b| b.state == BlockState::Allocated);
        let add = |sum: u64, bytes: u64| sum.saturating_add(bytes);
        (blocks.map(|b| b.bytes).fold(0, add), mine().map(|s| s.bytes).fold(0, add))
    }

    /// The most a device held in the recorded history, walked back from the moment it was taken.
    pub fn peak(&self, device: u64) -> Peak {
        let (allocated, reserved) = self.held(device);
        let live = self.segments.iter().filter(|s| s.device == device).flat_map(|s| &s.blocks);
        let large = live.filter(|b| b.state == BlockState::Allocated && b.requested > UNSPLIT).count() as u64;
        let mut now = Walk { allocated, reserved, large };
        let mut peak = now.peak(Peak { allocated, unsplit: 0, reserved });
        for entry in self.traces.get(device as usize).into_iter().flatten().rev() {
            now.undo(entry);
            peak = now.peak(peak);
        }
        peak
    }
}

/// A block that was in use when a device held most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// As it was asked for, rounded to the allocator's 512 bytes.
    pub bytes: u64,
    /// Where it was allocated, if that was recorded.
    pub stack: usize,
}

impl Snapshot {
    /// Blocks in use when a device held most of what was asked for, by what its history says; of several such moments
    /// the last.
    pub fn live_at_peak(&self, device: u64) -> Vec<Live> {
        let trace = self.traces.get(device as usize).map_or(&[][..], Vec::as_slice);
        let rounded = |bytes: u64| bytes.div_ceil(SMALLEST).saturating_mul(SMALLEST);
        let mine = self.segments.iter().filter(|segment| segment.device == device).flat_map(|segment| &segment.blocks);
        let held = mine.filter(|block| block.state == BlockState::Allocated);
        let asked = |block: &Block| if block.requested > 0 { block.requested } else { block.bytes };
        let mut live: HashMap<u64, Live> =
            held.map(|b| (b.address, Live { bytes: rounded(asked(b)), stack: b.stack })).collect();
        let mut now = live.values().map(|block| block.bytes).fold(0, u64::saturating_add);
        let (mut most, mut behind) = (now, trace.len());
        for (at, entry) in trace.iter().enumerate().rev() {
            match entry.action {
                Action::Alloc => now = now.saturating_sub(rounded(entry.bytes)),
                Action::FreeRequested => now = now.saturating_add(rounded(entry.bytes)),
                _ => continue,
            }
            if now > most {
                (most, behind) = (now, at);
            }
        }
        for entry in trace[behind..].iter().rev() {
            let Some(address) = entry.address else { continue };
            match entry.action {
                Action::Alloc => drop(live.remove(&address)),
                Action::FreeRequested => {
                    live.insert(address, Live { bytes: rounded(entry.bytes), stack: entry.stack });
                }
                _ => {}
            }
        }
        // Who frees a block may be recorded in place of who allocated it.
        for entry in trace[..behind].iter().filter(|entry| entry.action == Action::Alloc) {
            if let Some(block) = entry.address.and_then(|address| live.get_mut(&address))
                && entry.stack > 0
            {
                block.stack = entry.stack;
            }
        }
        let mut all: Vec<(u64, Live)> = live.into_iter().collect();
        all.sort_unstable_by_key(|(address, _)| *address);
        all.into_iter().map(|(_, block)| block).collect()
    }
}

/// What a device held at one moment.
struct Walk {
    allocated: u64,
    reserved: u64,
    large: u64,
}

impl Walk {
    fn undo(&mut self, entry: &TraceEntry) {
        let rounded = entry.bytes.div_ceil(SMALLEST).saturating_mul(SMALLEST);
        let is_large = u64::from(entry.bytes > UNSPLIT);
        match entry.action {
            Action::Alloc => {
                self.allocated = self.allocated.saturating_sub(rounded);
                self.large = self.large.saturating_sub(is_large);
            }
            Action::FreeRequested => {
                self.allocated = self.allocated.saturating_add(rounded);
                self.large += is_large;
            }
            Action::SegmentAlloc | Action::SegmentMap => self.reserved = self.reserved.saturating_sub(entry.bytes),
            Action::SegmentFree | Action::SegmentUnmap => self.reserved = self.reserved.saturating_add(entry.bytes),
            Action::FreeCompleted | Action::OutOfMemory | Action::Noted => {}
        }
    }

    fn peak(&self, before: Peak) -> Peak {
        let reserved = before.reserved.max(self.reserved);
        if self.allocated <= before.allocated {
            return Peak { reserved, ..before };
        }
        let unsplit = (self.large.saturating_mul(UNSPLIT)).min(self.reserved.saturating_sub(self.allocated));
        Peak { allocated: self.allocated, unsplit, reserved }
    }
}

/// A pickle being read; stacks that it shares are read once.
struct Reading<'p> {
    pickle: &'p Pickle,
    stacks: Vec<Vec<Frame>>,
    of: HashMap<Id, usize>,
}

impl Reading<'_> {
    fn all(&mut self) -> Option<(Vec<Segment>, Vec<Vec<TraceEntry>>)> {
        let root = self.pickle.root();
        let segments = self.pickle.items(self.pickle.get(root, "segments")?)?;
        let segments = segments.iter().map(|id| self.segment(*id)).collect::<Option<Vec<_>>>()?;
        let traces = match self.pickle.get(root, "device_traces") {
            Some(traces) => self.pickle.items(traces)?.to_vec(),
            None => Vec::new(),
        };
        let mut all = Vec::new();
        for trace in traces {
            let entries = self.pickle.items(trace)?;
            all.push(entries.iter().map(|id| self.entry(*id)).collect::<Option<Vec<_>>>()?);
        }
        Some((segments, all))
    }

    fn number(&self, id: Id, key: &str) -> Option<u64> {
        u64::try_from(self.pickle.int(self.pickle.get(id, key)?)?).ok()
    }

    fn segment(&mut self, id: Id) -> Option<Segment> {
        let blocks = self.pickle.items(self.pickle.get(id, "blocks")?)?;
        // Before torch 2.1 blocks have no address: they lie behind each other.
        let address = self.number(id, "address")?;
        let mut next = address;
        let mut all = Vec::new();
        for block in blocks {
            let block = self.block(*block, next)?;
            next = block.address.saturating_add(block.bytes);
            all.push(block);
        }
        let is_expandable = self.pickle.get(id, "is_expandable").map(|id| self.pickle.node(id).clone());
        Some(Segment {
            device: self.number(id, "device").unwrap_or(0),
            address,
            bytes: self.number(id, "total_size")?,
            stream: self.number(id, "stream").unwrap_or(0),
            is_expandable: is_expandable == Some(Node::Bool(true)),
            blocks: all,
        })
    }

    fn block(&mut self, id: Id, address: u64) -> Option<Block> {
        let state = match self.pickle.text(self.pickle.get(id, "state")?)? {
            "active_allocated" => BlockState::Allocated,
            "active_pending_free" | "active_awaiting_free" => BlockState::AwaitingFree,
            "inactive" => BlockState::Free,
            _ => return None,
        };
        let bytes = self.number(id, "size")?;
        Some(Block {
            address: self.number(id, "address").unwrap_or(address),
            bytes,
            requested: self.number(id, "requested_size").unwrap_or(bytes),
            state,
            stack: self.stack(id),
        })
    }

    fn entry(&mut self, id: Id) -> Option<TraceEntry> {
        let action = match self.pickle.text(self.pickle.get(id, "action")?)? {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" | "free" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "oom" => Action::OutOfMemory,
            _ => Action::Noted,
        };
        Some(TraceEntry {
            action,
            address: self.number(id, "addr"),
            bytes: self.number(id, "size").unwrap_or(0),
            stream: self.number(id, "stream").unwrap_or(0),
            stack: self.stack(id),
            time_us: self.number(id, "time_us"),
        })
    }

    /// Place of the frames of a block or an entry; the first is of those that have none.
    fn stack(&mut self, of: Id) -> usize {
        let Some(frames) = self.pickle.get(of, "frames") else { return 0 };
        if let Some(at) = self.of.get(&frames) {
            return *at;
        }
        let read: Vec<Frame> = self.pickle.items(frames).unwrap_or_default().iter().map(|id| self.frame(*id)).collect();
        let at = if read.is_empty() { 0 } else { self.stacks.len() };
        if at > 0 {
            self.stacks.push(read);
        }
        self.of.insert(frames, at);
        at
    }

    fn frame(&self, id: Id) -> Frame {
        let text = |key: &str| self.pickle.get(id, key).and_then(|id| self.pickle.text(id)).unwrap_or_default();
        Frame {
            file: diag::quote::terminal(text("filename")),
            line: self.number(id, "line").unwrap_or(0),
            name: diag::quote::terminal(text("name")),
        }
    }
}
