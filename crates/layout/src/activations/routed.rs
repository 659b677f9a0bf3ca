//! Rows that routing sends to experts and back, on one rank.

use crate::layout::Layout;
use recipe::Recipe;
use std::collections::BTreeMap;

/// Rows of one expert block in one microbatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routed {
    /// Choices of this rank's tokens that found room.
    pub sent: u64,
    /// Rows that came over the expert axis.
    pub arrived: u64,
    /// Rows of the whole expert-tensor group, which each of its members computes.
    pub came: u64,
}

impl Routed {
    /// As many as balanced routing without drops deals to every rank.
    pub fn balanced(recipe: &Recipe, layout: &Layout) -> Routed {
        let sent = layout.tokens_per_microbatch_per_rank() * recipe.moe.as_ref().map_or(0, |moe| moe.top_k);
        Routed { sent, arrived: sent, came: sent * layout.etp.get() }
    }
}

/// How routing really dealt rows in a step: by microbatch and chunk of depth, its expert blocks in
/// the order forward runs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dealing(pub BTreeMap<(u32, u32), Vec<Routed>>);

impl Dealing {
    /// The expert blocks of one microbatch in one chunk.
    pub fn of(&self, microbatch: u32, chunk: u32) -> &[Routed] {
        self.0.get(&(microbatch, chunk)).map_or(&[], Vec::as_slice)
    }
}

/// What a prediction takes routing to be.
#[derive(Clone, Copy, Debug)]
pub enum Routing<'a> {
    /// Every expert gets its share, and nothing is dropped.
    Balanced,
    /// As the routers of a step dealt it.
    Real(&'a Dealing),
}

/// Rows of all expert blocks together put into calls, in one pass of one microbatch: over the expert
/// axis, and over the expert-tensor axis. What forward dispatches backward combines, so that both
/// passes put in the same.
pub(super) fn put(recipe: &Recipe, layout: &Layout, blocks: &[Routed]) -> [u64; 2] {
    let width = recipe.moe.as_ref().map_or(0, |moe| moe.latent.unwrap_or(recipe.hidden));
    let over = |rows: fn(&Routed) -> u64| blocks.iter().map(rows).sum::<u64>() * width;
    [
        if layout.ep.splits() { over(|r| r.sent + r.arrived) } else { 0 },
        if layout.etp.splits() { over(|r| r.arrived + r.came) } else { 0 },
    ]
}
