//! The phases of a step, and what a rank holds in each.

use super::replay::{Highest, highest};
use super::state::{Held, held};
use diag::Finding;
use layout::activations::Routing;
use layout::{Layout, OwnershipTable, ZeroStage};
use recipe::Recipe;
use replay::line::ByLine;
use units::named;

named! {
    /// A phase of a run.
    pub enum Phase {
        /// Between steps: weights, gradient buffers and moments.
        State = "state",
        /// Every microbatch forward and backward; from ZeRO 2 on with its gradients reduced.
        Passes = "fwdbwd",
        /// Gradients reduced, and summed over copies.
        Reduce = "reduce",
        /// The optimizer's step.
        Step = "opt",
    }
}

/// One rank in one phase.
#[derive(Clone, Copy, Debug)]
pub struct InPhase {
    /// Which.
    pub phase: Phase,
    /// The highest point, by line of the replay.
    pub peak: ByLine,
    /// What the rank's own lines hold when it ends; of saved activations the most in it.
    pub held: Held,
}

impl InPhase {
    /// The most bytes at once.
    pub fn peak_bytes(&self) -> u64 {
        self.peak.iter().sum()
    }
}

/// The phases of one rank in order, when a number has `bytes_each`.
pub fn phases(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    rank: u64,
    bytes_each: u64,
    routing: Routing,
) -> Result<[InPhase; 4], Finding> {
    walked(recipe, layout, table, rank, bytes_each, routing).map(|(phases, _)| phases)
}

/// The same, and how many buffers were taken to find it out.
pub(super) fn walked(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    rank: u64,
    bytes_each: u64,
    routing: Routing,
) -> Result<([InPhase; 4], u64), Finding> {
    let Highest { state, passes, reduce, step, operations } =
        highest(recipe, layout, table, rank, bytes_each, routing)?;
    let all = held(recipe, layout, table, rank, bytes_each, routing)?;
    let summed = Held { saved: 0, ..all };
    let bare = Held { gradients: all.gradients - all.sums, sums: 0, ..summed };
    let passed = if layout.zero >= ZeroStage::Two { all } else { Held { saved: all.saved, ..bare } };
    let phases = [
        InPhase { phase: Phase::State, peak: state, held: bare },
        InPhase { phase: Phase::Passes, peak: passes, held: passed },
        InPhase { phase: Phase::Reduce, peak: reduce, held: summed },
        InPhase { phase: Phase::Step, peak: step, held: bare },
    ];
    Ok((phases, operations))
}
