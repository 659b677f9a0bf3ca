//! Weights of one rank while serving, by the axis that owns them: no degree shrinks everything.
//! Neither data parallelism nor a ZeRO stage is credited: a server gathers nothing.

use super::{countable, stored};
use diag::Finding;
use layout::ownership::{Owner, Row};
use layout::rules::How;
use layout::{Layout, OwnershipTable};
use units::Bytes;

/// Weights of a rank by owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weights {
    /// What no axis but depth cuts.
    pub replicated: Bytes,
    /// What the tensor axis cuts.
    pub tensor: Bytes,
    /// Routed experts.
    pub expert: Bytes,
}

impl Weights {
    /// Counts a stage.
    pub fn new(layout: &Layout, table: &OwnershipTable, stage: usize) -> Result<Weights, Finding> {
        let (mut replicated, mut tensor, mut expert) = (0u128, 0u128, 0u128);
        for row in &table.rows {
            let copies = u128::from(table.copies_on_stage(row, stage));
            let line = match row.owner() {
                Owner::Expert => &mut expert,
                Owner::Tensor => &mut tensor,
                Owner::Replicated => &mut replicated,
            };
            *line += copies * stored(part_elements(row, layout).into(), row.tensor.dtype);
        }
        Ok(Weights { replicated: countable(replicated)?, tensor: countable(tensor)?, expert: countable(expert)? })
    }
}

/// Elements of a rank's part. Where a training engine cuts packed rows evenly and gathers the
/// activations, a server copies the shared KV heads instead: it has no other place for their cache.
fn part_elements(row: &Row, layout: &Layout) -> u64 {
    if row.cuts.iter().all(|cut| cut.how == How::Units) {
        return row.part_elements(layout);
    }
    let mut by_unit = row.clone();
    by_unit.cuts.iter_mut().for_each(|cut| cut.how = How::Units);
    by_unit.part_elements(layout)
}
