//! What a rank holds, counted from the ownership table and the blocks' declarations, against what
//! the run held. Saved activations are counted as balanced routing would have them.

use crate::params::Shelf;
use crate::rank::Rank;
use crate::real::Real;
use crate::saved::{self, Sizes};
use crate::train::Trainer;
use comm::Result;
use layout::order::{Block, Pass, Pipeline};
use layout::{Axis, Layout, OwnershipTable, ZeroStage};
use recipe::{Optimizer, Place};
use std::collections::HashMap;
use std::ops::Range;
use units::named;

named! {
    /// A line of a rank's memory.
    pub enum Line {
        /// Weights between uses.
        Weights = "weights",
        /// The buffers backward adds to, and the summed runs until the step.
        Gradients = "gradients",
        /// Moments.
        Optimizer = "optimizer state",
        /// What forward keeps for backward, at its peak.
        Saved = "saved activations",
    }
}

/// Parameters whose state is shared out as one run: their elements and optimizers in order.
struct Run {
    params: Vec<(u64, Optimizer)>,
    /// This rank's place among the ranks that share it, and their number.
    place: u64,
    members: u64,
}

impl Run {
    fn elements(&self) -> u64 {
        self.params.iter().map(|(n, _)| n).sum()
    }

    /// The stretch this rank keeps; the larger ones first, where they are uneven.
    fn kept(&self, is_shared: bool) -> Range<u64> {
        let len = self.elements();
        if !is_shared {
            return 0..len;
        }
        let (each, more) = (len / self.members, len % self.members);
        let start = self.place * each + self.place.min(more);
        start..start + each + u64::from(self.place < more)
    }

    /// Moments of a stretch: one where Muon steps, two where AdamW does.
    fn moments(&self, kept: &Range<u64>) -> u64 {
        let mut first = 0;
        let mut sum = 0;
        for (elements, optimizer) in &self.params {
            let overlap = (first + elements).min(kept.end).saturating_sub(first.max(kept.start));
            sum += overlap * if *optimizer == Optimizer::Muon { 1 } else { 2 };
            first += elements;
        }
        sum
    }
}

/// The runs of a rank, from the table alone.
fn runs(table: &OwnershipTable, rank: &Rank) -> Vec<Run> {
    let stage = rank.on(Axis::Pp);
    let mut runs: Vec<Run> = Vec::new();
    let mut numbers: HashMap<(Place, bool, Vec<usize>), usize> = HashMap::new();
    for row in &table.rows {
        let stages = 0..table.stages.by_stage.len();
        let holders: Vec<usize> = stages.filter(|s| table.copies_on_stage(row, *s) > 0).collect();
        if !holders.contains(&stage) {
            continue;
        }
        let is_expert = row.tensor.acting.is_some();
        let number = *numbers.entry((row.tensor.place, is_expert, holders)).or_insert_with(|| {
            let group = if is_expert { &rank.edp } else { &rank.shards };
            let place = group.place(rank.comm.rank()).unwrap_or(0) as u64;
            runs.push(Run { params: Vec::new(), place, members: group.len() as u64 });
            runs.len() - 1
        });
        runs[number].params.push((row.part_elements(rank.layout), row.tensor.optimizer));
    }
    runs
}

/// Bytes counted for each line of [`Line::ALL`].
pub(super) fn counted<R: Real>(
    table: &OwnershipTable,
    layout: &Layout,
    rank: &Rank,
    trainer: &Trainer<R>,
) -> Result<Vec<u64>> {
    let runs = runs(table, rank);
    let shared = layout.zero != ZeroStage::Zero;
    let whole: u64 = runs.iter().map(Run::elements).sum();
    let kept: Vec<Range<u64>> = runs.iter().map(|r| r.kept(shared)).collect();
    let stretch: u64 = kept.iter().map(|k| k.end - k.start).sum();
    let moments: u64 = runs.iter().zip(&kept).map(|(r, k)| r.moments(k)).sum();
    let weights = if layout.zero == ZeroStage::Three { stretch } else { whole };
    let elements = [weights, whole + stretch, moments];
    let mut bytes: Vec<u64> = elements.iter().map(|n| n * R::BYTES).collect();
    bytes.push(activations(layout, rank, trainer.shelf(), trainer)?);
    Ok(bytes)
}

/// The most the declarations of chunks in flight add up to, in the order of the schedule.
fn activations<R: Real>(layout: &Layout, rank: &Rank, shelf: &Shelf, trainer: &Trainer<R>) -> Result<u64> {
    let sizes = Sizes::of(layout);
    let of_chunk = |chunk: usize| {
        let saves: Vec<_> = trainer.model().saves(chunk, &sizes, shelf).into_iter().map(|(_, save)| save).collect();
        saved::bytes(&saves, R::BYTES)
    };
    let chunks: HashMap<usize, u64> = trainer.model().chunks().map(|c| (c, of_chunk(c))).collect();
    let (mut now, mut most) = (0, 0);
    for action in Pipeline::of(layout)?.stage(rank.on(Axis::Pp) as u32).flat_map(Block::actions) {
        let bytes = chunks[&(action.chunk as usize)];
        match action.pass {
            Pass::Forward => now += bytes,
            Pass::Backward | Pass::BackwardInput => now -= bytes,
            Pass::BackwardWeight => {}
        }
        most = most.max(now);
    }
    Ok(most)
}
