//! Two estimates side by side: which lines grow, by how much, and whether the peak moves.

use super::{Entry, Fit, RankClass, Scaling};

/// One line in two estimates.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which line.
    pub entry: Entry,
    /// Bytes before.
    pub before: u64,
    /// Bytes after.
    pub after: u64,
    /// What it grows with after the change.
    pub scaling: Scaling,
}

impl Change {
    /// Growth, negative when it shrinks.
    pub fn delta(&self) -> i64 {
        self.after as i64 - self.before as i64
    }
}

/// What a change does to the worst rank.
#[derive(Clone, Debug)]
pub struct Review {
    /// Lines that differ, largest difference first.
    pub changes: Vec<Change>,
    /// Phase and block of the peak, before and after.
    pub peaks: [(String, String); 2],
    /// Whether what lies outside the model's lines is now the largest line.
    pub tail_dominates: bool,
    /// Growth of everything the device must hold.
    pub delta: i64,
}

/// Compares the worst ranks of two estimates.
pub fn review(before: &Fit, after: &Fit) -> Review {
    let (old, new) = (before.worst(), after.worst());
    let mut entries: Vec<Entry> = old.lines.iter().chain(&new.lines).map(|a| a.entry).collect();
    entries.sort();
    entries.dedup();
    let scaling = |entry: Entry| {
        let of = |class: &RankClass| class.lines.iter().find(|a| a.entry == entry).map(|a| a.scaling.clone());
        of(new).or_else(|| of(old))
    };
    let change = |entry: Entry| {
        Some(Change { entry, before: old.line(entry), after: new.line(entry), scaling: scaling(entry)? })
    };
    let mut changes: Vec<Change> = entries.into_iter().filter_map(change).filter(|c| c.delta() != 0).collect();
    changes.sort_by_key(|c| std::cmp::Reverse(c.delta().unsigned_abs()));
    let peak = |class: &RankClass| (class.peak_phase.to_string(), class.peak_origin.to_string());
    Review {
        changes,
        peaks: [peak(old), peak(new)],
        tail_dominates: tail(new) > largest_line(new),
        delta: new.total() as i64 - old.total() as i64,
    }
}

fn tail(class: &RankClass) -> u64 {
    [Entry::AllocatorOverhead, Entry::RuntimeReserve, Entry::Communicators].iter().map(|e| class.line(*e)).sum()
}

fn largest_line(class: &RankClass) -> u64 {
    let ledger = class.lines.iter().filter(|a| matches!(a.entry, Entry::Ledger(_)));
    ledger.map(|a| a.bytes).max().unwrap_or(0)
}
