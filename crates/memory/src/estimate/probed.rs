//! Megatron's stages as sums over probes.
//!
//! What a stage holds is static state, counted, plus what microbatches in flight save, plus the
//! highest point inside a layer or the loss. Saved bytes add up over layers and microbatches, and
//! the highest point of a kind of layer is reached in its last one, so a few replays of short
//! probe stages, one for each kind of layer and place in the pipeline, give them all; a stage is
//! then a sum. The probes depend on degrees inside a layer, batch, sequence and recompute, not on
//! stages, replicas, ZeRO or schedule: one [`Probed`] serves every layout that shares the former.
//! What Megatron-FSDP gathers and reduces under ZeRO 2 and 3 is counted on top (`wrapped.rs`).

use super::held::Held;
use super::wrapped::Units;
use super::{BEYOND, Highest, KindWeights, Shards, StageShape, State, Sum, in_flight, uneven};
use case::{KindId, PerKind};
use layout::{Layout, ZeroStage};

/// Everything a sum needs.
#[derive(Clone, Debug)]
pub(super) struct Probed {
    pub saved: PerKind<u64>,
    /// Of what a layer saves, what its first pass leaves for all later ones, such as copies of weights in 8 bits.
    pub stays: PerKind<u64>,
    pub held: PerKind<Held>,
    pub front: Held,
    pub back: Held,
    /// The copy of the token table that a tied head needs away from the first stage.
    pub tied: Held,
    /// The highest point inside one layer of each kind, above what stood when it began.
    pub inside: PerKind<u64>,
    /// The highest point of head and loss above what all layers saved; none but at the end.
    pub loss: [u64; 2],
    /// The highest point of the embedding's backward, when nothing of its microbatch is left.
    pub embedding: u64,
    /// What each further microbatch in flight keeps besides its layers.
    pub boundary: u64,
    pub grad_width: u64,
    /// Bytes of AdamW's state an element.
    pub adam_width: u64,
    /// What the allocator keeps besides: blocks that the front, the end and the widest layer of a
    /// step leave split. How many there are no sum tells; what each leaves by itself comes near.
    pub left: u64,
}

/// What runs through a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// Microbatches in flight, over the layers of the whole stage, in 1/256ths.
    pub in_flight: u64,
    /// Microbatches of a step.
    pub microbatches: u64,
    /// Chunks it holds.
    pub chunks: u64,
    /// Rounds of microbatches that go through its chunks.
    pub rounds: u64,
}

/// What a stage holds, before it is said how many ranks share its state and how much is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    held: Held,
    /// What every further microbatch in flight keeps.
    flying: u64,
    /// What all passes in flight keep where chunks differ, for one round of microbatches, two and more.
    uneven: Option<[u64; uneven::ROUNDS]>,
    /// The highest points of one microbatch: inside a layer, of the loss, of the embedding.
    pub points: [u64; 3],
    /// Of a point, what all layers saved.
    pub saved: u64,
    /// What a wrapper that gathers and reduces unit by unit adds to.
    pub units: Units,
}

impl Probed {
    /// The highest point of one microbatch inside the layers, which saved `saved` in all; `beside`
    /// is what stands beside a layer of each kind.
    fn highest(&self, shape: &StageShape, saved: u64, beside: impl Fn(KindId) -> u64) -> u64 {
        let present = shape.from_last.entries().filter_map(|(kind, counts)| Some((kind, counts.as_ref()?)));
        let points = present.map(|(kind, counts)| {
            let goes = self.saved.iter().zip(self.stays.iter()).map(|(saved, stays)| saved - stays);
            let behind: u64 = counts.iter().zip(goes).map(|(n, bytes)| n * bytes).sum();
            saved.saturating_sub(behind) + self.inside[kind] + beside(kind)
        });
        points.max().unwrap_or(0).max(saved)
    }

    /// What kinds of layers and the ends weigh, their state shared out.
    pub fn weights(&self, shards: &Shards) -> KindWeights {
        let state = |held: Held| self.state(&held, shards).total();
        let mut back = self.back;
        back.add(self.tied, 1);
        let (mut layers, mut saved) = (self.held.map(|held| state(*held)), self.saved.clone());
        for (kind, stays) in self.stays.entries() {
            layers[kind] += stays;
            saved[kind] -= stays;
        }
        KindWeights { state: layers, saved, state_ends: [state(self.front), state(back)] }
    }

    /// The `index`th stage of a layout.
    pub fn stage(&self, terms: &Terms, layout: &Layout, index: u64) -> Sum {
        let shards = Shards::new(layout.zero, [layout.dense_shards(), layout.edp.get()]);
        let flow = Flow {
            in_flight: in_flight(layout, index),
            microbatches: layout.microbatches,
            chunks: layout.vpp.get(),
            rounds: layout.microbatches.div_ceil(layout.pp.get()),
        };
        self.sum(terms, layout.zero, &shards, &flow)
    }

    /// What a stage holds, before shares and microbatches in flight.
    pub fn terms(&self, shape: &StageShape) -> Terms {
        let mut held = Held::default();
        let (mut saved, mut stays) = (0, 0);
        for ((&count, each), bytes) in shape.layers.iter().zip(self.held.iter()).zip(self.saved.iter()) {
            held.add(*each, count);
            saved += bytes * count;
        }
        for (&count, bytes) in shape.layers.iter().zip(self.stays.iter()) {
            stays += bytes * count;
        }
        let layers = held.elements();
        held.add(self.front, u64::from(shape.is_first));
        held.add(self.back, u64::from(shape.is_last));
        held.add(self.tied, u64::from(shape.is_last && !shape.is_first));
        let inside = self.highest(shape, saved, |_| 0);
        let at_the_end = if shape.is_last { saved + self.loss[usize::from(!shape.is_first)] } else { 0 };
        let at_the_start = if shape.is_first { self.embedding + stays } else { 0 };
        let sizes = shape.layers.iter().zip(self.held.iter()).filter(|(count, _)| **count > 0);
        let units = Units {
            largest: sizes.map(|(_, held)| held.elements()).max().unwrap_or(0),
            count: shape.layers.iter().sum(),
            layers,
            edges: held.elements() - layers,
            inside: self.highest(shape, saved, |kind| self.grad_width * self.held[kind].elements()),
        };
        let points = [inside, at_the_end, at_the_start];
        let goes = || self.saved.iter().zip(self.stays.iter()).map(|(saved, stays)| saved - stays);
        let keep = |layers: &PerKind<u64>| layers.iter().zip(goes()).map(|(passes, bytes)| passes * bytes).sum();
        let uneven = shape.uneven.as_ref().map(|uneven| uneven.rounds.each_ref().map(keep));
        Terms { held, flying: saved - stays + self.boundary, uneven, points, saved, units }
    }

    /// What a stage comes to.
    fn sum(&self, terms: &Terms, zero: ZeroStage, shards: &Shards, flow: &Flow) -> Sum {
        let points = match zero {
            ZeroStage::Zero | ZeroStage::One => terms.points,
            ZeroStage::Two | ZeroStage::Three => terms.wrapped(zero, self.grad_width, flow),
        };
        let names = [Highest::Layer, Highest::Loss, Highest::Embedding];
        let (once, highest) =
            points.into_iter().zip(names).max_by_key(|(bytes, _)| *bytes).unwrap_or((0, Highest::Layer));
        let flying = |bytes: u64| u128::from(bytes) * u128::from(flow.in_flight.saturating_sub(256)) / 256;
        let before = match &terms.uneven {
            None => flying(terms.flying),
            Some(rounds) => {
                let most = rounds[(flow.rounds.max(1) as usize).min(rounds.len()) - 1];
                u128::from(most.saturating_sub(terms.flying - self.boundary)) + flying(self.boundary)
            }
        };
        let before = u64::try_from(before).map_or(BEYOND, |bytes| bytes.min(BEYOND));
        let saved = terms.saved.min(once);
        Sum {
            state: self.state(&terms.held, shards),
            kept: before + saved,
            above: once - saved,
            highest,
            left: self.left,
        }
    }

    /// Weights, gradients and optimizer state, shared out.
    fn state(&self, held: &Held, shards: &Shards) -> State {
        let mut state = State::default();
        for i in 0..2 {
            let (adam, muon) = (held.adam[i], held.muon[i]);
            state.weights += 2 * (adam + muon) / shards.weights[i];
            state.gradients += self.grad_width * (adam + muon) / shards.gradients[i];
            state.adam += self.adam_width * adam / shards.optimizer[i];
            // Main weight and one moment in fp32.
            state.muon += 8 * muon / shards.optimizer[i];
        }
        state
    }
}
