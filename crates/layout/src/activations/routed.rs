//! Rows that routing sends to experts and back, on one rank.

use crate::layout::Layout;
use recipe::Recipe;
use recipe::kinds::moe::Moe;
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
    /// As many as balanced routing deals to every rank, or as there is room for.
    pub fn balanced(recipe: &Recipe, layout: &Layout) -> Routed {
        let sent = layout.tokens_per_microbatch_per_rank() * recipe.moe.as_ref().map_or(0, |moe| moe.top_k);
        let room = recipe.moe.as_ref().and_then(|moe| Room::new(moe, layout));
        let sent = room.map_or(sent, |room| sent.min(room.sent).min(room.arrived));
        Routed { sent, arrived: sent, came: sent * layout.etp.get() }
    }
}

/// Tokens of one sequence that an expert accepts; none where nothing is dropped.
pub fn slots(moe: &Moe, sequence: u64) -> Option<u64> {
    let even = (sequence * moe.top_k) as f64 / moe.experts as f64;
    moe.capacity_factor.map(|factor| (factor * even).ceil() as u64)
}

/// Rows that the buffers of an expert block have room for under a capacity factor: known before anyone
/// knows where tokens go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Rows of this rank's tokens that come back.
    pub sent: u64,
    /// Rows over the expert axis.
    pub arrived: u64,
    /// Rows of the whole expert-tensor group.
    pub came: u64,
}

impl Room {
    /// The room of a layout; none where nothing is dropped. A rank has the slots of its sequences for
    /// every expert, and never more rows for one than it has tokens.
    pub fn new(moe: &Moe, layout: &Layout) -> Option<Room> {
        let tokens = layout.tokens_per_microbatch_per_rank();
        let to_expert = (layout.micro_batch * slots(moe, layout.sequence)?).min(tokens);
        let ep = layout.ep.get();
        let of_sender = |experts: u64| (experts * to_expert).min(tokens * moe.top_k.min(experts));
        let arrived = ep * of_sender(moe.experts / ep);
        Some(Room { sent: of_sender(moe.experts), arrived, came: arrived * layout.etp.get() })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Needs, settle};
    use crate::request::LayoutRequest;

    fn room(factor: f64, set: impl Fn(&mut LayoutRequest)) -> Room {
        let mut recipe = recipe::builtin::find("mixtral-8x7b").unwrap();
        recipe.moe.as_mut().unwrap().capacity_factor = Some(factor);
        let mut request = LayoutRequest { sequence: Some(4096), ..LayoutRequest::default() };
        set(&mut request);
        let (layout, _) = settle(&request, Needs::of(&recipe)).unwrap();
        Room::new(recipe.moe.as_ref().unwrap(), &layout).unwrap()
    }

    /// 4096 tokens choose 2 of 8 experts: 1024 each, 1229 with room for a fifth more.
    #[test]
    fn buffers_have_the_slots_of_every_sender() {
        let alone = room(1.2, |_| ());
        assert_eq!(alone, Room { sent: 8192, arrived: 8192, came: 8192 });
        let over_four = room(1.2, |r| (r.dp, r.ep) = (Some(4), Some(4)));
        assert_eq!(over_four, Room { sent: 8192, arrived: 4 * 2 * 1229, came: 4 * 2 * 1229 });
        let narrow = room(0.5, |r| (r.dp, r.ep, r.micro_batch) = (Some(4), Some(4), Some(2)));
        assert_eq!((narrow.sent, narrow.arrived), (8 * 2 * 512, 4 * 2 * 2 * 512));
    }

    #[test]
    fn no_token_is_expected_beyond_the_room() {
        let mut recipe = recipe::builtin::find("mixtral-8x7b").unwrap();
        recipe.moe.as_mut().unwrap().capacity_factor = Some(0.5);
        let request = LayoutRequest { sequence: Some(4096), dp: Some(4), ep: Some(4), ..LayoutRequest::default() };
        let (layout, _) = settle(&request, Needs::of(&recipe)).unwrap();
        assert_eq!(Routed::balanced(&recipe, &layout).sent, 8 * 512);
    }
}
