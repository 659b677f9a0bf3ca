//! Bytes of two sides: measured peaks by class of ranks, and the predicted lines that explain them.

use crate::{RankPrediction, Receipt};
use evidence::{Memory, MemoryKind};
use serde::Serialize;
use units::median;

/// A peak of one class of ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryChange {
    /// `stage 0 (ranks 0-3)`, or `all ranks` where nobody said which rank it was.
    pub class: String,
    /// What is counted.
    pub kind: MemoryKind,
    /// The most of any rank of the class; the median of several runs.
    pub old: u64,
    /// The same of the second side.
    pub new: u64,
    /// Either may be off by so much: what its source rounds to.
    pub resolution: u64,
}

impl MemoryChange {
    /// Relative change.
    pub fn change(&self) -> f64 {
        self.new as f64 / self.old.max(1) as f64 - 1.0
    }

    /// Whether the two differ by more than their sources round.
    pub fn shows(&self) -> bool {
        self.old.abs_diff(self.new) > 2 * self.resolution
    }
}

/// A predicted line of one class of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineChange {
    /// The class.
    pub class: String,
    /// The line, as `fit` calls it.
    pub line: String,
    /// Bytes at the peak.
    pub old: u64,
    /// The same of the second side.
    pub new: u64,
}

const PEAKS: [MemoryKind; 4] =
    [MemoryKind::AllocatedPeak, MemoryKind::ReservedPeak, MemoryKind::DeviceUsedPeak, MemoryKind::HostUsed];

fn name(class: &RankPrediction) -> String {
    match class.first_rank == class.last_rank {
        true => format!("stage {} (rank {})", class.stage, class.first_rank),
        false => format!("stage {} (ranks {}-{})", class.stage, class.first_rank, class.last_rank),
    }
}

/// Classes of a side, where its prediction names them.
fn classes(side: &[Receipt]) -> Vec<RankPrediction> {
    side.first().and_then(|receipt| receipt.prediction.as_ref()).map_or_else(Vec::new, |p| p.ranks.clone())
}

/// Peaks that both sides recorded. Where the sides have other classes, the largest of all ranks is compared.
pub fn memory(old: &[Receipt], new: &[Receipt]) -> Vec<MemoryChange> {
    let (before, after) = (classes(old), classes(new));
    let span = |c: &RankPrediction| (c.stage, c.first_rank, c.last_rank);
    let alike = !before.is_empty() && before.iter().map(span).eq(after.iter().map(span));
    let mut rows = Vec::new();
    for kind in PEAKS {
        let mut found = false;
        for class in before.iter().filter(|_| alike) {
            let of = |m: &&Memory| m.rank.is_some_and(|rank| (class.first_rank..=class.last_rank).contains(&rank));
            let row = both(old, new, kind, &name(class), &of);
            found |= row.is_some();
            rows.extend(row);
        }
        if !found {
            rows.extend(both(old, new, kind, "all ranks", &|_| true));
        }
    }
    rows
}

fn both(
    old: &[Receipt],
    new: &[Receipt],
    kind: MemoryKind,
    class: &str,
    of: &dyn Fn(&&Memory) -> bool,
) -> Option<MemoryChange> {
    let most = |receipt: &Receipt| {
        let all = receipt.evidence.memory.iter().filter(|m| m.kind == kind).filter(|m| of(m));
        all.max_by_key(|m| m.bytes).map(|m| (m.bytes, m.resolution))
    };
    let side = |side: &[Receipt]| -> Option<(u64, u64)> {
        let all: Vec<(u64, u64)> = side.iter().filter_map(most).collect();
        let middle = median(&all.iter().map(|(bytes, _)| *bytes as f64).collect::<Vec<_>>())?;
        Some((middle as u64, all.iter().map(|(_, resolution)| *resolution).max().unwrap_or(0)))
    };
    let ((a, rough), (b, rougher)) = (side(old)?, side(new)?);
    Some(MemoryChange { class: class.to_string(), kind, old: a, new: b, resolution: rough.max(rougher) })
}

/// Lines whose predictions differ, the largest change first. Of a class that only one side has, nothing is said.
pub(super) fn lines(old: &Receipt, new: &Receipt) -> Vec<LineChange> {
    let side = |receipt: &Receipt| receipt.prediction.as_ref().map_or_else(Vec::new, |p| p.ranks.clone());
    let (before, after) = (side(old), side(new));
    let mut rows = Vec::new();
    for class in &before {
        let Some(other) = after.iter().find(|other| other.stage == class.stage) else { continue };
        let names: std::collections::BTreeSet<&String> = class.lines.keys().chain(other.lines.keys()).collect();
        for line in names {
            let bytes = |lines: &std::collections::BTreeMap<String, u64>| lines.get(line).copied().unwrap_or(0);
            let (a, b) = (bytes(&class.lines), bytes(&other.lines));
            if a != b {
                rows.push(LineChange { class: name(class), line: line.clone(), old: a, new: b });
            }
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.old.abs_diff(row.new)));
    rows
}
