//! Two snapshots of the allocator: what a process held at its peak, beside what the replay of it holds at its own. Blocks
//! are told by size: nothing else of a block is the same on both sides. So of blocks of one size some of which were not
//! predicted, all places that allocate that size are named.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

use evidence::snapshot::{Frame, Live, Snapshot};
use serde::Serialize;
use std::collections::BTreeMap;

/// Where two snapshots part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Bytes asked for at the peak, and blocks.
    pub measured: Held,
    pub predicted: Held,
    /// Bytes that are on both sides.
    pub both: u64,
    /// Sizes of which one side has more blocks, the most bytes first.
    pub sizes: Vec<Size>,
    /// What was predicted of each line, the largest first.
    pub lines: Vec<LineHeld>,
}

/// Blocks in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    pub bytes: u64,
    pub blocks: u64,
}

/// Blocks of one size that are not as many on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Of one block.
    pub bytes: u64,
    /// How many there were.
    pub measured: u64,
    /// How many the replay has.
    pub predicted: u64,
    /// Where blocks of the size were allocated, with their number.
    pub allocated_in: Vec<(String, u64)>,
    /// What the replay books blocks of the size as, with their number.
    pub booked_as: Vec<(String, u64)>,
}

impl Size {
    /// Bytes that the sides are apart by.
    pub fn apart(&self) -> u64 {
        self.measured.abs_diff(self.predicted).saturating_mul(self.bytes)
    }
}

/// A line of the replay at its peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineHeld {
    pub line: String,
    /// Bytes of it that were predicted.
    pub predicted: u64,
    /// Bytes of it that may be among those that are not there: where lines share a size, of each as much as could be.
    pub missing_at_most: u64,
}

/// A device's peak beside the replay's, which is device 0 of its own snapshot.
pub fn diff(measured: &Snapshot, device: u64, predicted: &Snapshot) -> Difference {
    let (there, said) = (by_size(measured, device), by_size(predicted, 0));
    let mut difference = Difference { measured: held(&there), predicted: held(&said), ..Difference::default() };
    let mut lines: BTreeMap<String, LineHeld> = BTreeMap::new();
    let none = Vec::new();
    let mut all: Vec<u64> = there.keys().chain(said.keys()).copied().collect();
    all.sort_unstable();
    all.dedup();
    for bytes in all {
        let (there, said) = (there.get(&bytes).unwrap_or(&none), said.get(&bytes).unwrap_or(&none));
        let (count, wanted) = (there.len() as u64, said.len() as u64);
        difference.both = difference.both.saturating_add(count.min(wanted).saturating_mul(bytes));
        book(&mut lines, predicted, said, wanted.saturating_sub(count));
        if count != wanted {
            difference.sizes.push(Size {
                bytes,
                measured: count,
                predicted: wanted,
                allocated_in: places(there, |block| allocated_in(&measured.stacks[block.stack])),
                booked_as: places(said, |block| booked_as(&predicted.stacks[block.stack])),
            });
        }
    }
    difference.sizes.sort_by_key(|size| (std::cmp::Reverse(size.apart()), size.bytes));
    difference.lines = lines.into_values().collect();
    difference.lines.sort_by_key(|line| (std::cmp::Reverse(line.predicted), line.line.clone()));
    difference
}

type BySize = BTreeMap<u64, Vec<Live>>;

fn by_size(snapshot: &Snapshot, device: u64) -> BySize {
    let mut all = BySize::new();
    for block in snapshot.live_at_peak(device) {
        all.entry(block.bytes).or_default().push(block);
    }
    all
}

fn held(blocks: &BySize) -> Held {
    let bytes = blocks.iter().map(|(bytes, all)| bytes.saturating_mul(all.len() as u64));
    Held { bytes: bytes.fold(0, u64::saturating_add), blocks: blocks.values().map(Vec::len).sum::<usize>() as u64 }
}

/// How many blocks have each place, the most first.
fn places(blocks: &[Live], place: impl Fn(&Live) -> String) -> Vec<(String, u64)> {
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    blocks.iter().for_each(|block| *counted.entry(place(block)).or_default() += 1);
    let mut all: Vec<(String, u64)> = counted.into_iter().collect();
    all.sort_by_key(|(place, count)| (std::cmp::Reverse(*count), place.clone()));
    all
}

/// The innermost frame of Python outside torch itself, or of anything.
fn allocated_in(stack: &[Frame]) -> String {
    let is_python = |frame: &&Frame| frame.file.ends_with(".py");
    let is_torchs = |frame: &Frame| frame.file.contains("site-packages/torch/") || frame.file.contains("/torch/nn/");
    let own = stack.iter().filter(is_python).find(|frame| !is_torchs(frame));
    let Some(frame) = own.or_else(|| stack.iter().find(is_python)).or(stack.first()) else {
        return "before the history was recorded".to_string();
    };
    let mut file: Vec<&str> = frame.file.rsplit('/').take(2).collect();
    file.reverse();
    format!("{} ({}:{})", frame.name, file.join("/"), frame.line)
}

/// The line, the tensor and where it was made, as a replay's stack has them.
fn booked_as(stack: &[Frame]) -> String {
    let Some(first) = stack.first() else { return "nothing".to_string() };
    let what = first.name.split_once(": ").map_or(first.name.as_str(), |(name, _)| name);
    format!("{}: {what}", first.file)
}

/// Adds blocks of one size, so many of which are not there, to their lines.
fn book(lines: &mut BTreeMap<String, LineHeld>, snapshot: &Snapshot, blocks: &[Live], missing: u64) {
    let mut here: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for block in blocks {
        for (line, bytes) in shares(&snapshot.stacks[block.stack], block.bytes) {
            here.entry(line).or_default().push(bytes);
        }
    }
    for (name, mut each) in here {
        each.sort_unstable_by(|a, b| b.cmp(a));
        let sum = |most: u64| each.iter().take(most as usize).fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let line = lines.entry(name.to_string()).or_insert_with(|| LineHeld {
            line: name.to_string(),
            predicted: 0,
            missing_at_most: 0,
        });
        line.predicted = line.predicted.saturating_add(sum(each.len() as u64));
        line.missing_at_most = line.missing_at_most.saturating_add(sum(missing));
    }
}

/// Lines of a block with their bytes; what it was rounded up by is the first one's.
fn shares(stack: &[Frame], bytes: u64) -> Vec<(&str, u64)> {
    let share = |frame: &Frame| frame.name.strip_suffix(" bytes")?.rsplit_once(": ")?.1.parse::<u64>().ok();
    let mut all: Vec<(&str, u64)> =
        stack.iter().map_while(|frame| Some((frame.file.as_str(), share(frame)?))).collect();
    let sum = all.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    match all.first_mut() {
        Some(first) if sum <= bytes => first.1 += bytes - sum,
        _ => all = stack.first().map(|frame| (frame.file.as_str(), bytes)).into_iter().collect(),
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::snapshot::{Action, Block, BlockState, Segment, TraceEntry};

    fn frame(file: &str, line: u64, name: &str) -> Frame {
        Frame { file: file.to_string(), line, name: name.to_string() }
    }

    /// 1 MiB is held throughout; 4 MiB come and go twice, the second time with 512 bytes more beside them.
    fn snapshot() -> Snapshot {
        let stacks = vec![
            vec![],
            vec![frame("tp-params", 0, "weight"), frame("layer 0", 0, "forward")],
            vec![frame("activations", 0, "x"), frame("layer 0", 0, "forward")],
            vec![frame("gradients", 0, "flat: 400 bytes"), frame("replicated-gradients", 0, "flat: 100 bytes")],
        ];
        let entry = |action, address, bytes, stack| TraceEntry {
            action,
            address: Some(address),
            bytes,
            stream: 0,
            stack,
            time_us: None,
        };
        let trace = vec![
            entry(Action::Alloc, 0, 1 << 20, 1),
            entry(Action::Alloc, 1 << 20, 4 << 20, 2),
            entry(Action::FreeRequested, 1 << 20, 4 << 20, 0),
            entry(Action::Alloc, 5 << 20, 500, 3),
            entry(Action::Alloc, 1 << 20, 4 << 20, 2),
            entry(Action::FreeRequested, 1 << 20, 4 << 20, 0),
            entry(Action::FreeRequested, 5 << 20, 500, 0),
        ];
        let block = Block { address: 0, bytes: 1 << 20, requested: 1 << 20, state: BlockState::Allocated, stack: 1 };
        let segment =
            Segment { device: 0, address: 0, bytes: 6 << 20, stream: 0, is_expandable: false, blocks: vec![block] };
        Snapshot { segments: vec![segment], traces: vec![trace], stacks }
    }

    #[test]
    fn a_snapshot_is_no_different_from_itself() {
        let same = diff(&snapshot(), 0, &snapshot());
        assert_eq!(same.sizes, []);
        assert_eq!((same.measured, same.predicted), (same.predicted, Held { bytes: (5 << 20) + 512, blocks: 3 }));
        assert_eq!(same.both, same.measured.bytes);
        let lines: Vec<(&str, u64)> = same.lines.iter().map(|l| (l.line.as_str(), l.predicted)).collect();
        let expected =
            [("activations", 4 << 20), ("tp-params", 1 << 20), ("gradients", 412), ("replicated-gradients", 100)];
        assert_eq!(lines, expected);
        assert!(same.lines.iter().all(|line| line.missing_at_most == 0));
    }

    #[test]
    fn a_block_that_is_there_and_was_not_predicted_says_where_it_was_allocated() {
        let mut more = snapshot();
        let torchs = frame("/env/site-packages/torch/nn/modules/linear.py", 9, "forward");
        more.stacks.push(vec![frame("??", 0, "at::empty"), torchs, frame("/src/megatron/core/moe.py", 77, "dispatch")]);
        let stack = more.stacks.len() - 1;
        let address = Some(9 << 20);
        let entry = TraceEntry { action: Action::Alloc, address, bytes: 3 << 20, stream: 0, stack, time_us: None };
        more.traces[0].insert(1, entry.clone());
        more.traces[0].push(TraceEntry { action: Action::FreeRequested, stack: 0, ..entry });
        let difference = diff(&more, 0, &snapshot());
        let [size] = &difference.sizes[..] else { panic!("{difference:?}") };
        assert_eq!((size.bytes, size.measured, size.predicted, size.apart()), (3 << 20, 1, 0, 3 << 20));
        assert_eq!(size.allocated_in, [("dispatch (core/moe.py:77)".to_string(), 1)]);
        assert!(size.booked_as.is_empty());
    }

    #[test]
    fn a_block_that_was_predicted_and_is_not_there_is_missed_on_its_line() {
        let mut less = snapshot();
        less.traces[0].retain(|entry| entry.bytes != 500);
        let difference = diff(&less, 0, &snapshot());
        let [size] = &difference.sizes[..] else { panic!("{difference:?}") };
        assert_eq!((size.bytes, size.measured, size.predicted), (512, 0, 1));
        assert_eq!(size.booked_as, [("gradients: flat".to_string(), 1)]);
        let missed: Vec<_> = difference.lines.iter().filter(|line| line.missing_at_most > 0).collect();
        assert_eq!(missed.iter().map(|line| line.missing_at_most).sum::<u64>(), 512);
    }
}
