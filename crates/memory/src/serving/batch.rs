//! The largest batch that fits a budget, and the line that stops the next sequence.

use super::{Item, MOST_BATCH, ServeRequest, Serving, ServingPrice};
use diag::Finding;
use serde::Serialize;
use units::Bytes;

/// The answer to "how many sequences fit".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LargestBatch {
    /// Sequences that fit; zero when not even one does.
    pub batch: u64,
    /// Bytes held at that batch, or at one sequence when none fits.
    pub total: Bytes,
    /// What stands in the way of one more: the line that grows most, or the largest line when not
    /// even one sequence fits. Nothing when the budget holds more than we agree to count.
    pub binds: Option<Item>,
}

impl Serving {
    /// The largest batch whose lines together fit the budget, everything else as in `request`
    /// (whose own batch is ignored). What the lines leave unmodelled must be taken off the budget
    /// beforehand.
    pub fn largest_batch(&self, request: &ServeRequest, budget: Bytes) -> Result<LargestBatch, Vec<Finding>> {
        let at = |batch| self.price(&ServeRequest { batch, ..*request });
        let one = at(1)?;
        if one.total > budget {
            let largest = one.lines.iter().max_by_key(|line| line.bytes);
            return Ok(LargestBatch { batch: 0, total: one.total, binds: largest.map(|line| line.item) });
        }
        // `low` fits; `high` does not, or is more than we count. No line falls as batch rises.
        let fits = |batch| batch <= MOST_BATCH && at(batch).is_ok_and(|price| price.total <= budget);
        let (mut low, mut high) = (1, MOST_BATCH + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        let here = at(low)?;
        let binds = if low == MOST_BATCH { None } else { at(low + 1).ok().and_then(|next| grows_most(&here, &next)) };
        Ok(LargestBatch { batch: low, total: here.total, binds })
    }
}

fn grows_most(here: &ServingPrice, next: &ServingPrice) -> Option<Item> {
    let growth = |item: Item| next.of(item).0 - here.of(item).0;
    next.lines.iter().map(|line| line.item).max_by_key(|item| growth(*item))
}
