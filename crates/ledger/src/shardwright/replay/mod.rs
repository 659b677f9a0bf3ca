//! A step of one rank replayed: state that stays, passes in the order of the schedule with their
//! temporaries, reductions and the optimizer's step.

mod blocks;
mod heap;
mod passes;
mod region;
mod step;

use super::chunk::mixers;
use super::saves::{Link, dropped, head};
use heap::Buf;
use layout::ZeroStage;
use layout::activations::depth_state;
use layout::order::Pass;
use layout::shards::Buffer;
use recipe::kinds::side::OwnerStage;
use recipe::{Layer, Mixer, Place};
use region::{Cx, Kept, len};
use replay::line::Line;
use std::collections::HashMap;

pub use step::{Highest, highest};

/// By block its input, and what stays of each mixer.
type Blocks = Vec<(Buf, Vec<Stays>)>;

/// What stays of a mixer's forward.
enum Stays {
    /// What it kept, with the places and lengths of what was dropped of it and is made again.
    Saved(Kept, Vec<(usize, usize)>),
    /// State from the R block below, if any: forward runs again.
    Below(Option<Buf>),
}

/// What one microbatch kept in a chunk: of its blocks, and of the head and every prediction depth.
#[derive(Default)]
struct Flight {
    blocks: Blocks,
    head: Vec<(Kept, Blocks)>,
}

/// A layer of a chunk or of a prediction suffix, with the place whose weights its blocks open.
struct Level<'a> {
    layer: &'a Layer,
    prefix: String,
    place: Option<Place>,
}

/// A chunk of depth on one rank.
struct Chunk<'a> {
    cx: &'a Cx<'a>,
    index: usize,
    buffers: &'a ByPlace<'a>,
}

/// A rank's buffers by the place of the model they belong to.
type ByPlace<'a> = HashMap<Place, Vec<&'a Buffer>>;

impl Chunk<'_> {
    fn is_last(&self) -> bool {
        self.index + 1 == self.cx.table.stages.chunks.len()
    }

    fn levels(&self) -> Vec<Level<'_>> {
        let layers = self.cx.table.stages.chunks[self.index].layers.clone();
        let level = |i: usize| Level {
            layer: &self.cx.recipe.layers[i],
            prefix: format!("layers.{i}"),
            place: Some(Place::Layer(i)),
        };
        layers.map(level).collect()
    }

    /// A place's weights while they are used, where they are gathered for use only: buffer by buffer
    /// gathered end to end, then cut apart.
    fn opened(&self, place: Option<Place>) -> Kept {
        if self.cx.layout.zero != ZeroStage::Three {
            return Vec::new();
        }
        let buffers = place.and_then(|place| self.buffers.get(&place)).into_iter().flatten();
        let take = |len: u64| self.cx.heap.reals(Line::Communication, len as usize);
        let open = |buffer: &&Buffer| {
            // The run is freed as soon as the whole is there.
            let gathered = |run: Buf| if buffer.members > 1 { take(buffer.len) } else { run };
            let whole = gathered(take(buffer.held_len()));
            let weights = take(buffer.len);
            drop(whole);
            weights
        };
        buffers.map(open).collect()
    }

    fn edges(&self) -> Vec<Kept> {
        let second = if self.cx.recipe.tied { Place::Embedding } else { Place::Head };
        [Place::FinalNorm, second].map(|place| self.opened(Some(place))).into()
    }

    /// Runs a microbatch forward; gives what it kept. The output is the next stage's.
    fn forward(&self) -> Flight {
        let cx = self.cx;
        let x = if self.index == 0 {
            let table = self.opened(Some(Place::Embedding));
            let x = cx.leave(cx.temp(cx.sizes.tokens * cx.hidden()));
            drop(table);
            self.sides(OwnerStage::First);
            x
        } else {
            cx.stream()
        };
        let mut flight = Flight::default();
        let mut carried = self.state(self.index);
        let x = self.stack(&self.levels(), x, &mut carried, &mut flight.blocks);
        if !self.is_last() {
            return flight;
        }
        self.sides(OwnerStage::Last);
        let edges = self.edges();
        let loss = self.loss();
        drop(edges);
        flight.head.push((loss, Vec::new()));
        let hidden = x.like(Line::ActivationGradients);
        flight.head[0].0.push(x.onto(Line::Activations));
        self.suffix(hidden, &mut flight);
        flight
    }

    /// Recurrent state that enters a chunk, or its gradient on the way out.
    fn state(&self, chunk: usize) -> Option<Buf> {
        let above = self.cx.table.stages.chunks.get(chunk)?;
        let elements = depth_state(self.cx.recipe, self.cx.layout, above.layers.start);
        (elements > 0).then(|| self.cx.temp(elements as usize))
    }

    /// State on its way up over a mixer: what came is freed, and what goes on is as large as `states`.
    fn hand_on(&self, carried: &mut Option<Buf>, link: Link, path: &str) {
        if link.takes || link.gives {
            let states = len(&self.cx.saves(Mixer::Recurrent, path), "states");
            *carried = link.gives.then(|| self.cx.temp(states));
        }
    }

    /// Drops what is made again before backward.
    fn forget(&self, mixer: Mixer, path: &str, mut saved: Kept) -> Stays {
        let (saves, mut gone) = (self.cx.saves(mixer, path), Vec::new());
        for name in dropped(&self.cx.layout.recompute, mixer) {
            let len = len(&saves, name);
            if let Some(at) = saved.iter().rposition(|b| b.len == len && len > 0) {
                saved.remove(at);
                gone.push((at, len));
            }
        }
        Stays::Saved(saved.into_iter().map(Buf::saved).collect(), gone)
    }

    fn stack(&self, levels: &[Level], mut x: Buf, carried: &mut Option<Buf>, blocks: &mut Blocks) -> Buf {
        let cx = self.cx;
        for level in levels {
            for block in mixers(level.layer, &level.prefix) {
                let _weights = self.opened(level.place);
                let normed = x.like(Line::ActivationGradients);
                let out = x.like(Line::ActivationGradients);
                let mut kept = Vec::new();
                for (mixer, path) in &block {
                    let (link, is_again) = (Link::of(cx.recipe, path), cx.layout.recompute.repeats(*mixer));
                    let copied = carried.as_ref().filter(|_| link.takes && is_again);
                    let below = copied.map(|b| b.like(Line::Activations));
                    let (y, saved) = blocks::forward(cx, *mixer, path, normed.like(Line::ActivationGradients));
                    drop(y);
                    self.hand_on(carried, link, path);
                    kept.push(if is_again { Stays::Below(below) } else { self.forget(*mixer, path, saved) });
                }
                blocks.push((std::mem::replace(&mut x, out).onto(Line::Activations), kept));
                drop(normed);
            }
        }
        x
    }

    /// Side embeddings of a stage, one after the other: what was found, and its projection.
    fn sides(&self, stage: OwnerStage) {
        let (cx, mut weights) = (self.cx, None);
        for width in self.side_widths(stage) {
            weights = weights.or_else(|| Some(self.opened(Some(Place::Side(stage)))));
            let found = cx.temp(cx.sizes.shard * width);
            let projected = cx.stream();
            drop((found, projected));
        }
    }

    /// Rows are looked up again, and their gradients lie beside them.
    fn sides_back(&self, stage: OwnerStage, waits: &mut Option<Kept>) {
        let (cx, mut weights) = (self.cx, None);
        for width in self.side_widths(stage) {
            weights = weights.or_else(|| Some(self.opened(Some(Place::Side(stage)))));
            let found = [0; 2].map(|_| cx.temp(cx.sizes.shard * width));
            waits.iter_mut().for_each(|w| w.push(cx.temp(cx.sizes.shard * (width + cx.hidden()))));
            drop(found);
        }
    }

    /// Widths of what each side embedding of a stage finds for a token.
    fn side_widths(&self, stage: OwnerStage) -> Vec<usize> {
        let mine = self.cx.recipe.features.sides().filter(|(_, side)| side.stage == stage);
        mine.map(|(_, side)| (side.tables * side.dim) as usize).collect()
    }

    /// The head and the loss: input, shares, and three statistics of every token on the way.
    fn loss(&self) -> Kept {
        let cx = self.cx;
        let x = cx.enter(cx.stream());
        let logits = cx.heap.reals(Line::Loss, head(cx.recipe, cx.layout, &cx.sizes)[1].elements() as usize);
        let _statistics = cx.temp(3 * cx.sizes.tokens);
        vec![x.onto(Line::Loss), logits]
    }

    fn suffix(&self, mut hidden: Buf, flight: &mut Flight) {
        let (cx, Some(mtp)) = (self.cx, self.cx.recipe.features.mtp()) else { return };
        for depth in 0..mtp.depth as usize {
            let _open = self.suffix_places(depth);
            let embedded = cx.leave(cx.temp(cx.sizes.tokens * cx.hidden()));
            let normed = [0; 2].map(|_| cx.stream());
            let joined = cx.enter(cx.temp(2 * cx.sizes.shard * cx.hidden()));
            let columns = cx.temp(cx.sizes.tokens * cx.hidden() / cx.tp());
            let x = cx.stream();
            drop((columns, normed));
            let mut blocks = Vec::new();
            let x = self.stack(&[suffix_level(&mtp.layer, depth)], x, &mut None, &mut blocks);
            let mut kept = self.loss();
            let next = x.like(Line::ActivationGradients);
            let inputs = [std::mem::replace(&mut hidden, next), embedded, joined, x];
            kept.extend(inputs.map(|b| b.onto(Line::FeatureActivations)));
            flight.head.push((kept, blocks));
        }
    }

    fn suffix_places(&self, depth: usize) -> Vec<Kept> {
        let second = if self.cx.recipe.tied { Place::Mtp(depth) } else { Place::Head };
        let mut places = vec![Place::Embedding, second, Place::Mtp(depth)];
        places.dedup();
        places.into_iter().map(|place| self.opened(Some(place))).collect()
    }

    /// Runs a microbatch backward; gives what products that wait hold.
    fn backward(&self, pass: Pass, flight: Flight) -> Kept {
        let cx = self.cx;
        let mut waits = (pass == Pass::BackwardInput).then(Vec::new);
        let Flight { blocks, mut head } = flight;
        let dx = cx.stream();
        if self.is_last() {
            let first = (!head.is_empty()).then(|| head.remove(0));
            if let Some((kept, _)) = first {
                let _edges = self.edges();
                waits.iter_mut().for_each(|w| w.push(self.head_waiting()));
                let dhead = cx.leave(cx.temp(cx.sizes.tokens * cx.hidden()));
                drop((kept, dhead));
            }
            for (depth, (kept, blocks)) in head.into_iter().enumerate().rev() {
                let Some(mtp) = cx.recipe.features.mtp() else { break };
                let _open = self.suffix_places(depth);
                waits.iter_mut().for_each(|w| w.push(self.head_waiting()));
                let inner = cx.stream();
                self.stack_back(&[suffix_level(&mtp.layer, depth)], blocks, &inner, &mut None, &mut waits);
                let djoined = cx.temp(2 * cx.sizes.tokens * cx.hidden());
                let djoined = cx.leave(djoined);
                let parts = cx.temp(2 * cx.sizes.shard * cx.hidden());
                drop((kept, inner, djoined, parts));
            }
            self.sides_back(OwnerStage::Last, &mut waits);
        }
        self.stack_back(&self.levels(), blocks, &dx, &mut self.state(self.index + 1), &mut waits);
        if self.index == 0 {
            self.sides_back(OwnerStage::First, &mut waits);
        }
        waits.unwrap_or_default()
    }

    fn stack_back(
        &self,
        levels: &[Level],
        blocks: Blocks,
        dx: &Buf,
        carried: &mut Option<Buf>,
        waits: &mut Option<Kept>,
    ) {
        let cx = self.cx;
        let all: Vec<_> = levels
            .iter()
            .flat_map(|level| mixers(level.layer, &level.prefix).into_iter().map(|block| (level.place, block)))
            .collect();
        for ((place, block), (x, kept)) in all.into_iter().zip(blocks).rev() {
            let _weights = self.opened(place);
            let dnormed = dx.like(Line::ActivationGradients);
            for ((mixer, path), saved) in block.iter().zip(kept) {
                let saved = match saved {
                    Stays::Saved(mut saved, gone) => {
                        gone.into_iter().rev().for_each(|(at, len)| saved.insert(at, cx.temp(len)));
                        saved
                    }
                    Stays::Below(_below) => {
                        let (y, saved) = blocks::forward(cx, *mixer, path, x.like(Line::ActivationGradients));
                        drop(y);
                        saved
                    }
                };
                let widths = cx.local(path).linear_widths();
                waits.iter_mut().for_each(|w| w.push(cx.temp(cx.sizes.tokens * widths)));
                drop(blocks::backward(cx, *mixer, path, saved, dx.like(Line::ActivationGradients), carried));
            }
            let dnorm = dx.like(Line::ActivationGradients);
            drop((dnormed, dnorm, x));
        }
    }

    /// Copies that the head's put-off weight product holds. A mixer's are alike: output's gradient
    /// and input of every linear layer.
    fn head_waiting(&self) -> Buf {
        let cx = self.cx;
        let vocab = head(cx.recipe, cx.layout, &cx.sizes)[1].cols;
        cx.temp(cx.sizes.tokens * (cx.hidden() + vocab))
    }
}

fn suffix_level(layer: &Layer, depth: usize) -> Level<'_> {
    Level { layer, prefix: format!("mtp.{depth}"), place: None }
}
