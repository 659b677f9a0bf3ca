//! What a search will take of this machine, told before each part of it starts. Beyond the limit an axis is
//! trimmed where nothing is lost that anyone runs, and says so; where that is not enough, the search is
//! refused with what would make it smaller.
//!
//! The constants are estimates of a core's nanoseconds, on the high side.

use crate::count::legal_of;
use crate::cuts::{Passes, in_a_search};
use crate::point::Order;
use crate::search::Effort;
use crate::space::Space;
use case::Case;
use diag::{Blame, Finding};
use layout::{Balance, Schedule};
use rayon::prelude::*;
use work::Work;

/// Degrees of a layer on a number of stages: every rule's mask, and the counts by rule.
const OF_A_MESH: u64 = 200;

/// The least time of a layout.
const OF_A_BOUND: u64 = 250;

/// Of what a search may take, the share that one short replay may: a layout takes a dozen of them.
pub(crate) const PROBE_SHARE: u64 = 100;

/// A layout's state counted.
pub(crate) const OF_A_STATE: u64 = 5000;

/// A layout's memory and time.
const OF_A_PRICE: u64 = 1500;

/// Layouts that are priced at most where bounds leave out the rest.
const PRICED: u64 = 4_000_000;

/// A pass of a microbatch over a chunk, simulated.
const OF_A_PASS: u64 = 60;

/// A layer of an order's cuts: weighed while they are looked for, and counted into its stage.
const OF_A_LAYER: u64 = 1000;

/// An order whose stages hold several chunks: layers moved between stages until all weigh alike.
const OF_AN_ORDER: u64 = 20_000_000;

/// Bytes of a layout with its bound, where layouts are priced one by one.
const BYTES_OF_A_LAYOUT: u64 = 128;

/// Bytes of a key, and of what is counted for it.
const BYTES_OF_A_KEY: u64 = 64;

/// So many keys, each on so many numbers of stages.
pub(crate) fn of_keys(keys: u64, stages: u64) -> Work {
    Work {
        bytes: keys.saturating_mul(BYTES_OF_A_KEY),
        operations: keys.saturating_mul(stages).saturating_mul(OF_A_MESH),
    }
}

/// The cuts of one order over so many layers and stages, for so many microbatches.
fn of_an_order(depth: u64, pp: u64, order: Order, (microbatches, passes): (u64, Passes)) -> u64 {
    let chunks = pp * order.vpp;
    let is_dealt = chunks > pp || matches!(order.schedule, Schedule::DualPipe);
    let passes = passes.for_cuts_of(chunks.saturating_mul(microbatches)).unwrap_or(0);
    let moved = if is_dealt { passes.saturating_mul(OF_A_PASS).saturating_add(OF_AN_ORDER) } else { 0 };
    moved.saturating_add(depth * OF_A_LAYER)
}

/// The cut of a job by what its stages are priced at.
pub(crate) fn of_a_job(case: &Case, balance: Balance) -> Work {
    let (layout, depth) = (&case.layout, case.recipe.depth() as u64);
    let order = Order { schedule: layout.schedule, vpp: layout.vpp.get() };
    let operations = match balance {
        Balance::Time => of_an_order(depth, layout.pp.get(), order, (layout.microbatches, Passes::OF_A_JOB)),
        Balance::Layers | Balance::Params | Balance::Memory => depth * OF_A_LAYER,
    };
    Work { bytes: 0, operations }
}

/// The cuts of every order.
fn of_cuts(space: &Space) -> Work {
    let mut operations = 0u64;
    for mode in &space.modes {
        let depth = mode.recipe.depth() as u64;
        for (&pp, orders) in &mode.orders {
            for order in orders.iter().filter(|order| pp * order.vpp <= depth) {
                operations = operations.saturating_add(of_an_order(depth, pp, *order, in_a_search(pp)));
            }
        }
    }
    Work { bytes: 0, operations }
}

/// Bounds of every legal layout, and prices of those that an effort looks at.
fn of_layouts(space: &Space, effort: Effort) -> Work {
    let (mut bounds, mut legal, mut dear) = (0u64, 0u64, false);
    for mode in &space.modes {
        let here: u64 = mode.keys.par_iter().map(|key| legal_of(space, mode, key)).sum();
        dear |= mode.estimator.is_dear();
        // Options of an engine move times by a few percent: bounds leave out about as much as without them.
        if mode.args.is_empty() || effort != Effort::Bounded {
            legal = legal.saturating_add(here);
        }
        bounds += if mode.estimator.is_dear() { here } else { here / mode.recompute.len().max(1) as u64 };
    }
    // Short replays stop by themselves, at the limit.
    let priced = match effort {
        _ if dear => 0,
        Effort::Bounded => legal.min(PRICED),
        Effort::Priced | Effort::Everything => legal,
    };
    Work {
        bytes: if dear { legal.saturating_mul(BYTES_OF_A_LAYOUT) } else { 0 },
        operations: bounds.saturating_mul(OF_A_BOUND).saturating_add(priced.saturating_mul(OF_A_PRICE)),
    }
}

/// Refuses cuts beyond the limit.
pub(crate) fn check_cuts(space: &Space) -> Result<(), Vec<Finding>> {
    check(space, of_cuts(space), "pin the pipeline (--pp, --vpp, --schedule)")
}

/// Refuses prices that are beyond the limit together with the cuts.
pub(crate) fn check_layouts(space: &Space, effort: Effort) -> Result<(), Vec<Finding>> {
    check(space, of_cuts(space) + of_layouts(space, effort), "pin an axis (--pp, --vpp, --ep, --mbs)")
}

/// Refuses work beyond the limit, with flags that make it less.
pub(crate) fn check(space: &Space, work: Work, less: &str) -> Result<(), Vec<Finding>> {
    let question = &space.question;
    let what = format!("searching {} over {} devices", question.recipe.name.terminal(), units::exact(space.world));
    question.limit.check(&what, work, less)
}

/// An axis of which not every value is searched.
pub(crate) fn trimmed(object: &str, message: String, hint: &str) -> Finding {
    Finding::warning("plan/trimmed", Blame::Usage, object, message).hint(hint)
}
