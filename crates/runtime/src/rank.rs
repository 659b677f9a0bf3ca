//! A rank's place: its group on every axis, and the positions of the sequence it holds.

use comm::{Comm, Group};
use diag::Finding;
use layout::{Axis, Layout, Mesh, Order};
use std::ops::Range;

/// The sequence dealt out over the context axis. Each rank gets an early span and the late one that
/// mirrors it, so that all do the same amount of causal work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    sequence: usize,
    cp: usize,
}

impl Timeline {
    /// A timeline of `sequence` positions over `cp` ranks.
    pub fn new(sequence: usize, cp: usize) -> Timeline {
        Timeline { sequence, cp }
    }

    /// Number of parts.
    pub fn parts(&self) -> usize {
        if self.cp == 1 { 1 } else { 2 * self.cp }
    }

    /// The parts a rank of the context axis holds, in the order of time.
    pub fn held(&self, rank: usize) -> Vec<usize> {
        if self.cp == 1 { vec![0] } else { vec![rank, 2 * self.cp - 1 - rank] }
    }

    /// Which rank of the context axis holds a part.
    pub fn owner(&self, part: usize) -> usize {
        part.min(self.parts() - 1 - part)
    }

    /// Positions of a part.
    pub fn positions(&self, part: usize) -> Range<usize> {
        let len = self.sequence / self.parts();
        part * len..(part + 1) * len
    }

    /// Positions a rank holds, part by part.
    pub fn spans(&self, rank: usize) -> Vec<Range<usize>> {
        self.held(rank).into_iter().map(|part| self.positions(part)).collect()
    }
}

/// One rank of a layout.
pub struct Rank<'a> {
    pub comm: &'a Comm,
    pub layout: &'a Layout,
    pub at: layout::mesh::Coordinates,
    pub tp: Group,
    pub cp: Group,
    /// One rank of every stage, in the order of stages.
    pub pp: Group,
    pub ep: Group,
    pub etp: Group,
    /// Ranks with the same part of the same experts.
    pub edp: Group,
    /// Ranks that divide the state of dense tensors among them: all context ranks of all replicas.
    pub shards: Group,
    pub timeline: Timeline,
    mesh: Mesh,
}

impl<'a> Rank<'a> {
    /// The rank that `comm` is, under a layout.
    pub fn new(comm: &'a Comm, layout: &'a Layout) -> Result<Rank<'a>, Finding> {
        let has_experts = layout.ep.splits() || layout.etp.splits();
        let mesh = Mesh::new(layout, Order::Megatron, has_experts)?;
        let rank = comm.rank() as u64;
        let at = mesh.coordinates(rank);
        let group = |axis| Group::new(mesh.group(axis, rank).ranks().map(|r| r as usize));
        let same = |axis, other: u64| mesh.coordinates(other).on(axis) == at.on(axis);
        let shards = (0..mesh.world()).filter(|r| same(Axis::Tp, *r) && same(Axis::Pp, *r));
        let timeline = Timeline::new(layout.sequence as usize, layout.cp.get() as usize);
        // Without experts the expert mesh need not fill the world, so its groups are left alone.
        let expert_group = |axis| if layout.degree(axis).splits() { group(axis) } else { Group::new([comm.rank()]) };
        let edp = (0..mesh.world()).filter(|r| [Axis::Ep, Axis::Etp, Axis::Pp].iter().all(|a| same(*a, *r)));
        Ok(Rank {
            comm,
            layout,
            tp: group(Axis::Tp),
            cp: group(Axis::Cp),
            pp: group(Axis::Pp),
            ep: expert_group(Axis::Ep),
            etp: expert_group(Axis::Etp),
            edp: Group::new(edp.map(|r| r as usize)),
            shards: Group::new(shards.map(|r| r as usize)),
            timeline,
            at,
            mesh: mesh.clone(),
        })
    }

    pub fn coordinates(&self, rank: usize) -> layout::mesh::Coordinates {
        self.mesh.coordinates(rank as u64)
    }

    /// Its index on an axis.
    pub fn on(&self, axis: Axis) -> usize {
        self.at.on(axis) as usize
    }

    /// The axis that exchanges around tensor-parallel regions are booked on: `sp` under SP, else `tp`.
    pub fn tensor_axis(&self) -> &'static str {
        if self.layout.sp { "sp" } else { "tp" }
    }

    /// Positions of the rows it has inside tensor-parallel regions, in row order.
    pub fn positions(&self) -> Vec<usize> {
        self.timeline.spans(self.on(Axis::Cp)).into_iter().flatten().collect()
    }

    /// Positions of the rows it has between them: a share under SP.
    pub fn shard_positions(&self) -> Vec<usize> {
        let mut all = self.positions();
        if self.layout.sp {
            let len = all.len() / self.tp.len();
            let start = self.on(Axis::Tp) * len;
            all = all[start..start + len].to_vec();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_held_once_and_work_is_even() {
        let timeline = Timeline::new(24, 3);
        let mut all: Vec<usize> = (0..3).flat_map(|r| timeline.spans(r)).flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (0..24).collect::<Vec<_>>());
        // Causal work is the sum of positions.
        let work = |r| timeline.spans(r).into_iter().flatten().sum::<usize>();
        assert!((1..3).all(|r| work(r) == work(0)));
        assert!((0..6).all(|p| timeline.held(timeline.owner(p)).contains(&p)));
    }
}
