//! What an implementation saves for backward differs, so it is data: one ledger an engine. A
//! ledger replays the engine's allocations in the engine's order on a [`replay::tape`].

mod choice;
pub mod deepspeed;
mod delta_scan;
mod from_options;
pub mod fsdp2;
mod grads;
mod mamba_scan;
pub mod megatron;
pub mod nanotron;
pub mod shardwright;
mod walk;
mod within;

pub use choice::{Ledger, RankJob};
pub use walk::work_of;
pub use within::{State, Within};

use layout::size::Sizes;
use layout::{Layout, StagePlan};
use recipe::Recipe;
use replay::Unmodelled;

/// The rank a replay is of, and all that decides what it holds.
#[derive(Debug)]
pub struct Job<'a, Options> {
    /// What the model is.
    pub recipe: &'a Recipe,
    /// How it is split; must be legal.
    pub layout: &'a Layout,
    /// Which layers each chunk of depth holds.
    pub stages: &'a StagePlan,
    /// The rank, in the engine's own order.
    pub rank: u64,
    /// What the engine is told besides.
    pub options: &'a Options,
}

impl<Options> Clone for Job<'_, Options> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Options> Copy for Job<'_, Options> {}

/// Refuses what a tape cannot count, whoever asks for a replay; a case was held to the same before.
pub(crate) fn countable(recipe: &Recipe, layout: &Layout, skew: f64) -> Result<(), Unmodelled> {
    let refusal = Sizes::of(recipe).refusal(layout, skew);
    refusal.map_or(Ok(()), |finding| Err(Unmodelled::new("this size", finding.message)))
}
