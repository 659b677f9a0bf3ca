//! The passes of a step in the order of the schedule.
//!
//! Nothing on this heap depends on where a buffer lies, so that a pass changes the book by the same
//! bytes whenever it runs with the same rows. Under balanced routing every microbatch has the same:
//! each kind of pass of a chunk is walked once, and booked from then on.

use super::heap::{Buf, Change, Heap};
use super::region::Cx;
use super::step::reduce;
use super::{ByPlace, Chunk, Flight};
use crate::shardwright::chunk::ByPath;
use layout::ZeroStage;
use layout::activations::Routing;
use layout::order::{Action, Block, Pass, Pipeline};
use layout::shards::Buffer;
use std::collections::HashMap;

/// Something that is walked once where it is the same every time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Walk {
    Pass(Pass, u32),
    /// Gradients reduced, not for the first time.
    Reduce,
}

/// The passes of one stage on their way.
struct Passes<'a> {
    cx: &'a Cx<'a>,
    buffers: &'a [Buffer],
    by_place: ByPlace<'a>,
    routing: Routing<'a>,
    /// What microbatches keep, by microbatch and chunk; balanced, that of the one that was walked.
    flights: HashMap<(u32, u32), Flight>,
    waiting: HashMap<(u32, u32), Vec<Buf>>,
    known: HashMap<Walk, Change>,
}

/// Passes in the order of the schedule, each with the rows that routing deals it; `sums` are what the
/// first reduction of a step keeps.
pub(super) fn passes(
    cx: &Cx,
    buffers: &[Buffer],
    stage: u32,
    (order, routing): (Pipeline, Routing),
    sums: &mut [Option<Buf>],
) {
    let (flights, waiting, known) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut by_place = ByPlace::new();
    buffers.iter().for_each(|buffer| by_place.entry(buffer.place).or_default().push(buffer));
    let mut passes = Passes { cx, buffers, by_place, routing, flights, waiting, known };
    for action in order.stage(stage).flat_map(Block::actions) {
        passes.run(action);
        if cx.layout.zero >= ZeroStage::Two && matches!(action.pass, Pass::Backward | Pass::BackwardWeight) {
            passes.reduce(sums);
        }
    }
}

impl Passes<'_> {
    fn heap(&self) -> Heap {
        self.cx.heap.clone()
    }

    fn run(&mut self, action: Action) {
        let Action { pass, microbatch, chunk } = action;
        match self.routing {
            Routing::Real(_) => self.walk(pass, (microbatch, chunk)),
            Routing::Balanced => self.once(Walk::Pass(pass, chunk), |passes| passes.walk(pass, (0, chunk))),
        }
    }

    fn reduce(&mut self, sums: &mut [Option<Buf>]) {
        let is_first = sums.iter().any(Option::is_none);
        let (cx, buffers) = (self.cx, self.buffers);
        match self.routing {
            Routing::Balanced if !is_first => self.once(Walk::Reduce, |_| reduce(cx, buffers, sums)),
            _ => reduce(cx, buffers, sums),
        }
    }

    fn once(&mut self, walk: Walk, run: impl FnOnce(&mut Self)) {
        match self.known.get(&walk) {
            Some(change) => self.heap().book(change),
            None => {
                let change = self.heap().change_of(|| run(self));
                self.known.insert(walk, change);
            }
        }
    }

    fn walk(&mut self, pass: Pass, at: (u32, u32)) {
        let cx = self.cx;
        let cx = &Cx { rows: ByPath::new(cx.recipe, cx.layout, cx.table, at, self.routing), ..cx.clone() };
        let part = Chunk { cx, index: at.1 as usize, buffers: &self.by_place };
        match pass {
            Pass::Forward => {
                self.flights.insert(at, part.forward());
            }
            Pass::Backward | Pass::BackwardInput => {
                // A second kind of backward finds that its forward was only booked.
                let again = || self.cx.heap.without_booking(|| part.forward());
                let flight = self.flights.remove(&at).unwrap_or_else(again);
                let waits = part.backward(pass, flight);
                if pass == Pass::BackwardInput {
                    self.waiting.insert(at, waits);
                }
            }
            Pass::BackwardWeight => {
                self.waiting.remove(&at);
            }
        }
    }
}
