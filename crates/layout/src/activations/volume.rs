//! What one rank puts into collectives in a step, by axis: the exchanges of its chunks for every
//! pass its stage runs, and what moves once a step. Exact for this project's own engine: rows that
//! routing deals out are counted as it dealt them, where that is known. Balanced, they are the mean
//! over ranks.

use super::{
    Exchange, Holds, Over, Region, Routed, Routing, Site, depth_state, indexer, prediction_join, routed, state,
    vocabulary,
};
use crate::axis::Axis;
use crate::layout::Layout;
use crate::mesh::{Coordinates, Mesh, Order};
use crate::order::{Action, Block, Pass, Pipeline};
use crate::ownership::OwnershipTable;
use crate::request::{RecomputeModule, ZeroStage};
use crate::shards::{Buffer, buffers};
use diag::Finding;
use recipe::kinds::side::OwnerStage;
use recipe::{Layer, Mixer, Place, Recipe};
use std::collections::BTreeMap;

/// What a rank puts in on one axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Numbers of the run's format.
    pub numbers: u64,
    /// Counts and sums of eight bytes.
    pub wide: u64,
}

impl Moved {
    /// Bytes, when a number has `bytes_each`.
    pub fn bytes(&self, bytes_each: u64) -> u64 {
        self.numbers * bytes_each + self.wide * 8
    }
}

/// By the ranks that calls run over.
pub type ByAxis = BTreeMap<Over, Moved>;

/// What one rank puts in over a step.
pub fn of_rank(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    rank: u64,
    routing: Routing,
) -> Result<ByAxis, Finding> {
    let mesh = Mesh::new(layout, Order::Megatron, layout.ep.splits() || layout.etp.splits())?;
    let order = Pipeline::of(layout)?;
    let at = mesh.coordinates(rank);
    let stage = at.on(Axis::Pp) as u32;
    let buffers = buffers(table, layout, &mesh, rank);
    let mut sum = Sum { layout, at, by_axis: ByAxis::new() };
    let mut chunks: BTreeMap<u32, [ByAxis; 2]> = BTreeMap::new();
    // Experts that are computed again dispatch and combine again in backward.
    let again = 1 + u64::from(layout.recompute.repeats(Mixer::Moe));
    for action in order.stage(stage).flat_map(Block::actions) {
        let of_chunk = chunks.entry(action.chunk).or_insert_with(|| {
            let passes = [Direction::Forward, Direction::Backward];
            passes.map(|d| Chunk { recipe, layout, table, at, buffers: &buffers, index: action.chunk as usize }.pass(d))
        });
        let passed = match action.pass {
            Pass::Forward => Some((&of_chunk[0], 1)),
            Pass::Backward | Pass::BackwardInput => Some((&of_chunk[1], again)),
            Pass::BackwardWeight => None,
        };
        match (passed, routing) {
            (None, _) => {}
            (Some((by_axis, _)), Routing::Balanced) => sum.add_all(by_axis),
            (Some((by_axis, times)), Routing::Real(dealt)) => {
                sum.add_all(&dealt_out(recipe, layout, by_axis, dealt.of(action.microbatch, action.chunk), times));
            }
        }
        sum.add(Over::Pp, Holds::Numbers, seam(recipe, layout, table, &order, stage, action));
    }
    for exchange in state::of_rank(recipe, layout, table, &mesh, rank) {
        sum.add(exchange.axis, exchange.holds, exchange.elements * exchange.count);
    }
    sum.by_axis.retain(|_, moved| *moved != Moved::default());
    Ok(sum.by_axis)
}

/// The same pass with rows as routing dealt them: nothing else puts numbers in on the axes of
/// experts, but for state, once a step.
fn dealt_out(recipe: &Recipe, layout: &Layout, balanced: &ByAxis, blocks: &[Routed], times: u64) -> ByAxis {
    let mut by_axis = balanced.clone();
    for (axis, rows) in [Over::Ep, Over::Etp].into_iter().zip(routed::put(recipe, layout, blocks)) {
        by_axis.entry(axis).or_default().numbers = rows * times;
    }
    by_axis
}

/// Elements a pass sends to the stage of the next chunk, or of the one before: the residual stream,
/// and recurrent state where it runs up the depth. A stage that holds both sends nothing.
fn seam(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, order: &Pipeline, stage: u32, action: Action) -> u64 {
    let to = match action.pass {
        Pass::Forward => Some(action.chunk + 1).filter(|c| *c < order.chunks()),
        Pass::Backward | Pass::BackwardInput => action.chunk.checked_sub(1),
        Pass::BackwardWeight => None,
    };
    let leaves = |chunk: &u32| order.stage_of(order.direction(action.microbatch), *chunk) != stage;
    let Some(chunk) = to.filter(leaves) else { return 0 };
    let above = &table.stages.chunks[chunk.max(action.chunk) as usize];
    layout.tokens_per_microbatch_per_rank() * recipe.hidden + depth_state(recipe, layout, above.layers.start)
}

/// Whether recompute runs the forward of a mixer's exchange again in backward: all of them where
/// the mixer is computed again, and otherwise those that stand inside a named module.
fn repeats(recipe: &Recipe, layout: &Layout, mixer: Mixer, exchange: &Exchange) -> bool {
    let policy = &layout.recompute;
    let is_into = |region| exchange.site == Site::Into(region);
    let normed = match (mixer, recipe.is_latent()) {
        // Latents are made whole behind the down-projections, not behind the norm.
        (Mixer::Attention, true) => false,
        (Mixer::Moe, _) => is_into(Region::SharedExpert),
        _ => is_into(Region::Mixer(mixer)),
    };
    let gate = recipe.moe.as_ref().and_then(|m| m.shared.as_ref()).is_some_and(|s| s.gate);
    let is_gated = gate && exchange.site == Site::OutOf(Region::SharedExpert);
    let shared = is_into(Region::SharedExpert) || is_gated;
    policy.repeats(mixer)
        || policy.names(RecomputeModule::Layernorm) && normed
        || policy.names(RecomputeModule::SharedExperts) && shared
        || policy.names(RecomputeModule::CoreAttn) && exchange.site == Site::KeysAndValues
        || policy.names(RecomputeModule::GdnNormOut) && exchange.site == Site::HeadsForTime(Mixer::GatedDelta)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// Sums by axis on one rank.
struct Sum<'a> {
    layout: &'a Layout,
    at: Coordinates,
    by_axis: ByAxis,
}

impl Sum<'_> {
    fn add(&mut self, axis: Over, holds: Holds, elements: u64) {
        let moved = self.by_axis.entry(axis).or_default();
        match holds {
            Holds::Numbers => moved.numbers += elements,
            Holds::Wide => moved.wide += elements,
        }
    }

    fn add_all(&mut self, other: &ByAxis) {
        for (axis, moved) in other {
            self.add(*axis, Holds::Numbers, moved.numbers);
            self.add(*axis, Holds::Wide, moved.wide);
        }
    }

    fn pass<'e>(&mut self, exchanges: impl IntoIterator<Item = &'e Exchange>, direction: Direction, times: u64) {
        for exchange in exchanges {
            let [forward, backward] = exchange.put(self.layout, &self.at);
            let put = if direction == Direction::Forward { forward } else { backward };
            self.add(exchange.axis, exchange.holds, put * times);
        }
    }
}

/// One chunk of depth on one rank.
struct Chunk<'a> {
    recipe: &'a Recipe,
    layout: &'a Layout,
    table: &'a OwnershipTable,
    at: Coordinates,
    buffers: &'a [Buffer],
    index: usize,
}

impl Chunk<'_> {
    fn is_last(&self) -> bool {
        self.index + 1 == self.table.stages.chunks.len()
    }

    fn depth(&self) -> u64 {
        self.recipe.features.mtp().map_or(0, |mtp| mtp.depth)
    }

    /// What one microbatch puts in.
    fn pass(&self, direction: Direction) -> ByAxis {
        let mut sum = Sum { layout: self.layout, at: self.at, by_axis: ByAxis::new() };
        for layer in self.table.stages.chunks[self.index].layers.clone() {
            self.layer(&self.recipe.layers[layer], direction, 1, &mut sum);
            let mut indexers = Vec::new();
            indexer::exchanges(self.recipe, self.layout, 1, &mut indexers);
            self.mixer(Mixer::Attention, &indexers, direction, self.recipe.indexers_of(layer), &mut sum);
        }
        self.edges(direction, &mut sum);
        if self.layout.zero == ZeroStage::Three {
            self.weights(direction, &mut sum);
        }
        sum.by_axis
    }

    /// A layer's mixers; one that is computed again runs its forward in backward too.
    fn layer(&self, layer: &Layer, direction: Direction, times: u64, sum: &mut Sum) {
        for mixer in layer.mixers() {
            let exchanges = super::of_mixer(self.recipe, self.layout, mixer);
            self.mixer(mixer, &exchanges, direction, times, sum);
        }
    }

    fn mixer(&self, mixer: Mixer, exchanges: &[Exchange], direction: Direction, times: u64, sum: &mut Sum) {
        sum.pass(exchanges, direction, times);
        if direction == Direction::Backward {
            let again = exchanges.iter().filter(|e| repeats(self.recipe, self.layout, mixer, e));
            sum.pass(again, Direction::Forward, times);
        }
    }

    fn edges(&self, direction: Direction, sum: &mut Sum) {
        let (layout, tokens) = (self.layout, self.layout.micro_batch * self.layout.sequence / self.layout.cp.get());
        let mut edges = Vec::new();
        vocabulary(self.recipe, layout, tokens, &mut edges);
        let at = edges.len().min(1);
        let head = edges.split_off(at);
        if self.index == 0 {
            sum.pass(&edges, direction, 1);
        }
        if !self.is_last() {
            return;
        }
        sum.pass(&head, direction, 1 + self.depth());
        let Some(mtp) = self.recipe.features.mtp() else { return };
        sum.pass(&edges, direction, mtp.depth);
        self.layer(&mtp.layer, direction, mtp.depth, sum);
        if layout.tp.splits() {
            let mut join = Vec::new();
            prediction_join(layout, tokens, self.recipe.hidden, mtp.depth, &mut join);
            sum.pass(&join, direction, mtp.depth);
        }
    }

    /// Weights gathered before every use. A block opens its whole layer; the token table's gradient
    /// needs no weights.
    fn weights(&self, direction: Direction, sum: &mut Sum) {
        let mut places = Vec::new();
        if self.index == 0 {
            places.extend((direction == Direction::Forward).then_some(Place::Embedding));
            places.push(Place::Side(OwnerStage::First));
        }
        for layer in self.table.stages.chunks[self.index].layers.clone() {
            places.extend(self.recipe.layers[layer].blocks.iter().map(|_| Place::Layer(layer)));
        }
        if self.is_last() {
            let head = if self.recipe.tied { Place::Embedding } else { Place::Head };
            places.extend([Place::Side(OwnerStage::Last), Place::FinalNorm, head]);
            for depth in 0..self.depth() as usize {
                let stack = Place::Mtp(self.recipe.features.mtp().map_or(depth, |mtp| mtp.stack_of(depth)));
                places.extend([Place::Embedding, if self.recipe.tied { stack } else { Place::Head }, stack]);
            }
        }
        for place in places {
            for buffer in self.buffers.iter().filter(|b| b.place == place && b.members > 1) {
                sum.add(buffer.axis().into(), Holds::Numbers, buffer.held_len());
            }
        }
    }
}
