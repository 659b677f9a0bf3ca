//! The replay's figures in nanoseconds, for searches that ask millions of times.
//!
//! What a stage holds is static state, counted, plus what microbatches in flight save, plus the
//! highest point inside a layer or the loss. Saved bytes add up over layers and microbatches, and
//! the highest point of a kind of layer is reached in its last one, so a few replays of short
//! probe stages, one for each kind of layer and place in the pipeline, give them all; a stage is
//! then a sum. The probes depend on degrees inside a layer, batch, sequence and recompute, not on
//! stages, replicas, ZeRO or schedule: one [`Quick`] serves every layout that shares the former.
//! What Megatron-FSDP gathers and reduces under ZeRO 2 and 3 is counted on top (`wrapped.rs`).
//!
//! Other engines' figures are [`Extrapolated`] out of short replays instead: fewer layouts are legal there,
//! and what a unit's buffers do at the peak is theirs to say.
//!
//! Nothing here words a reason: that is the replay's, for the layout a person looks at.

mod extrapolated;
mod probes;
mod wrapped;

pub use extrapolated::Extrapolated;
pub use probes::Probes;

use layout::{Layout, Schedule, StagePlan, ZeroStage};
use ledger::megatron::MegatronOptions;
use recipe::{Layer, Recipe};
use replay::Unmodelled;

/// Bytes of one layer kind, or of an edge, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    /// Parameters stepped by AdamW, dense and expert.
    adam: [u64; 2],
    /// Parameters stepped by Muon, dense and expert.
    muon: [u64; 2],
}

impl Held {
    fn add(&mut self, other: Held, times: u64) {
        for i in 0..2 {
            self.adam[i] += other.adam[i] * times;
            self.muon[i] += other.muon[i] * times;
        }
    }

    fn elements(&self) -> u64 {
        self.adam.iter().chain(&self.muon).sum()
    }
}

/// Everything the sum needs.
#[derive(Clone, Debug)]
pub struct Quick {
    kinds: Vec<Layer>,
    saved: Vec<u64>,
    held: Vec<Held>,
    front: Held,
    back: Held,
    /// The copy of the token table that a tied head needs away from the first stage.
    tied: Held,
    /// The highest point inside one layer of each kind, above what stood when it began.
    inside: Vec<u64>,
    /// The highest point of head and loss above what all layers saved; none but at the end.
    loss: [u64; 2],
    /// The highest point of the embedding's backward, when nothing of its microbatch is left.
    embedding: u64,
    /// What each further microbatch in flight keeps besides its layers.
    boundary: u64,
    grad_width: u64,
    /// What the allocator keeps besides: blocks that the front, the end and the widest layer of a
    /// step leave split. How many there are no sum tells; what each leaves by itself comes near.
    left: u64,
}

/// What a stage consists of, whatever runs through it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageShape {
    /// Layers of each kind, in the order of [`Quick::kinds`].
    pub layers: Vec<u64>,
    /// For each kind, the layers of each kind from its last one on; empty when there is none.
    pub from_last: Vec<Vec<u64>>,
    /// Whether it owns the embedding.
    pub is_first: bool,
    /// Whether it owns the head.
    pub is_last: bool,
}

impl StageShape {
    /// A stage of layers given by their kinds, of `num_kinds` in all.
    pub fn new(num_kinds: usize, layers: impl IntoIterator<Item = usize>, is_first: bool, is_last: bool) -> StageShape {
        let (mut counts, mut from_last) = (vec![0; num_kinds], vec![Vec::new(); num_kinds]);
        for kind in layers {
            counts[kind] += 1;
            from_last[kind] = vec![0; num_kinds];
            from_last.iter_mut().filter(|behind| !behind.is_empty()).for_each(|behind| behind[kind] += 1);
        }
        StageShape { layers: counts, from_last, is_first, is_last }
    }
}

/// Ranks that share out state: of dense and of expert tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Optimizer state.
    pub optimizer: [u64; 2],
    /// Gradients.
    pub gradients: [u64; 2],
    /// Weights.
    pub weights: [u64; 2],
}

impl Shards {
    /// What a ZeRO stage shares out over `ranks`.
    pub fn new(zero: ZeroStage, ranks: [u64; 2]) -> Shards {
        let from = |stage| if zero >= stage { ranks } else { [1, 1] };
        Shards { optimizer: from(ZeroStage::One), gradients: from(ZeroStage::Two), weights: from(ZeroStage::Three) }
    }
}

/// What runs through a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Microbatches in flight, over the layers of the whole stage, in 1/256ths.
    pub in_flight: u64,
    /// Microbatches of a step.
    pub microbatches: u64,
    /// Chunks it holds.
    pub chunks: u64,
}

/// A stage as the sum sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct QuickStage {
    /// What it consists of.
    pub shape: StageShape,
    /// What runs through it.
    pub flow: Flow,
    /// ZeRO stage.
    pub zero: ZeroStage,
    /// Who shares out its state.
    pub shards: Shards,
}

/// What the highest point of a microbatch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Highest {
    /// Inside a layer.
    Layer,
    /// Head and loss.
    Loss,
    /// The embedding's backward.
    Embedding,
}

/// What a stage holds, before it is said how many ranks share its state and how much is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTerms {
    held: Held,
    /// What every further microbatch in flight keeps.
    flying: u64,
    /// The highest points of one microbatch: inside a layer, of the loss, of the embedding.
    points: [u64; 3],
    /// Of a point, what all layers saved.
    pub saved: u64,
    /// What a wrapper that gathers and reduces unit by unit adds to.
    units: wrapped::Units,
}

/// What one rank of a stage holds at its highest point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Weights, gradients, optimizer state.
    pub state: State,
    /// What layers saved, over all microbatches in flight.
    pub kept: u64,
    /// The highest point above that.
    pub above: u64,
    /// What that point is.
    pub highest: Highest,
    /// What the allocator keeps besides.
    pub left: u64,
}

impl Sum {
    /// Bytes of tensors.
    pub fn allocated(&self) -> u64 {
        self.state.total() + self.kept + self.above
    }

    /// With what the allocator keeps besides.
    pub fn reserved(&self) -> u64 {
        self.allocated() + self.left
    }

    /// The same with a share of AdamW's state on the host.
    pub fn less_host(mut self, share: f64) -> Sum {
        self.state.adam -= (self.state.adam as f64 * share) as u64;
        self
    }
}

/// What a partition of depth weighs: bytes of one layer of each kind, and of the ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindWeights {
    /// Weights, gradients and optimizer state of a layer.
    pub state: Vec<u64>,
    /// What a layer saves for backward.
    pub saved: Vec<u64>,
    /// State of what stands before the first layer and behind the last.
    pub state_ends: [u64; 2],
}

/// Bytes of state on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Weights.
    pub weights: u64,
    /// Gradients.
    pub gradients: u64,
    /// State of what Muon steps.
    pub muon: u64,
    /// State of what AdamW steps.
    pub adam: u64,
}

impl State {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.muon + self.adam
    }
}

/// Microbatches in flight on a stage, in 1/256ths of its layers: what [`layout::order`] comes to,
/// without walking it.
pub fn in_flight(layout: &Layout, stage: u64) -> u64 {
    in_flight_under(layout.schedule, [layout.pp.get(), layout.vpp.get()], layout.microbatches, stage)
}

/// The same for a schedule over `[pp, vpp]` with `count` microbatches.
pub fn in_flight_under(schedule: Schedule, [pp, vpp]: [u64; 2], count: u64, stage: u64) -> u64 {
    let whole = 256;
    match schedule {
        Schedule::GPipe => count * whole,
        Schedule::OneF1b => (pp - stage).min(count) * whole,
        // Weight passes wait, so that every stage keeps what the first does (Qi et al., Zero
        // Bubble Pipeline Parallelism, arXiv 2401.10241).
        Schedule::ZbH1 => pp.min(count) * whole,
        Schedule::Interleaved => {
            let warmup = 2 * (pp - stage - 1) + (vpp - 1) * pp + 1;
            warmup.min(count * vpp) * whole / vpp
        }
        // One pass more than there are chunks, each over half of the stage (deepseek-ai/DualPipe,
        // the table of its README, which counts chunks as stages).
        Schedule::DualPipe => (pp + 1) * whole / 2,
        Schedule::DualPipeV => (2 * pp + 1) * whole / 2,
    }
}

impl QuickStage {
    /// The stage of a layout, counted by the kinds of a [`Quick`].
    pub fn of(quick: &Quick, recipe: &Recipe, layout: &Layout, plan: &StagePlan, stage: usize) -> QuickStage {
        let kind = |layer: usize| quick.kinds.iter().position(|k| *k == recipe.layers[layer]);
        let layers = plan.layers_of_stage(stage).map(|l| kind(l).expect("every layer of the recipe has its kind"));
        let (held, last) = (&plan.by_stage[stage], plan.chunks.len() - 1);
        QuickStage {
            shape: StageShape::new(quick.kinds.len(), layers, held.contains(&0), held.contains(&last)),
            flow: Flow {
                in_flight: in_flight(layout, stage as u64),
                microbatches: layout.microbatches,
                chunks: layout.vpp.get(),
            },
            zero: layout.zero,
            shards: Shards::new(layout.zero, [layout.dense_shards(), layout.edp.get()]),
        }
    }
}

impl Quick {
    /// Probes a recipe under the degrees, batch, sequence and recompute of a layout, which must be
    /// legal.
    pub fn new(recipe: &Recipe, layout: &Layout, options: &MegatronOptions) -> Result<Quick, Unmodelled> {
        Probes::new(recipe, options).quick(layout)
    }

    /// The highest point of one microbatch inside the layers, which saved `saved` in all; `beside`
    /// is what stands beside a layer of each kind.
    fn highest(&self, from_last: &[Vec<u64>], saved: u64, beside: impl Fn(usize) -> u64) -> u64 {
        let present = from_last.iter().enumerate().filter(|(_, counts)| !counts.is_empty());
        let points = present.map(|(kind, counts)| {
            let behind: u64 = counts.iter().zip(&self.saved).map(|(n, bytes)| n * bytes).sum();
            saved.saturating_sub(behind) + self.inside[kind] + beside(kind)
        });
        points.max().unwrap_or(0).max(saved)
    }

    /// Kinds of layers, in the order stages count them.
    pub fn kinds(&self) -> &[Layer] {
        &self.kinds
    }

    /// What kinds of layers and the ends weigh, their state shared out.
    pub fn weights(&self, shards: &Shards) -> KindWeights {
        let count = self.kinds.len();
        let state = |layers: Vec<usize>, is_first, is_last| {
            self.state(&self.terms(&StageShape::new(count, layers, is_first, is_last)), shards).total()
        };
        KindWeights {
            state: (0..count).map(|kind| state(vec![kind], false, false)).collect(),
            saved: self.saved.clone(),
            state_ends: [state(vec![], true, false), state(vec![], false, true)],
        }
    }

    /// The peak of one stage.
    pub fn peak(&self, stage: &QuickStage) -> Sum {
        self.sum(&self.terms(&stage.shape), stage.zero, &stage.shards, &stage.flow)
    }

    /// What a stage holds, before shares and microbatches in flight.
    pub fn terms(&self, shape: &StageShape) -> StageTerms {
        let mut held = Held::default();
        let mut saved = 0;
        for (i, &count) in shape.layers.iter().enumerate() {
            held.add(self.held[i], count);
            saved += self.saved[i] * count;
        }
        let layers = held.elements();
        held.add(self.front, u64::from(shape.is_first));
        held.add(self.back, u64::from(shape.is_last));
        held.add(self.tied, u64::from(shape.is_last && !shape.is_first));
        let inside = self.highest(&shape.from_last, saved, |_| 0);
        let at_the_end = if shape.is_last { saved + self.loss[usize::from(!shape.is_first)] } else { 0 };
        let at_the_start = if shape.is_first { self.embedding } else { 0 };
        let sizes = shape.layers.iter().zip(&self.held).filter(|(count, _)| **count > 0);
        let units = wrapped::Units {
            largest: sizes.map(|(_, held)| held.elements()).max().unwrap_or(0),
            count: shape.layers.iter().sum(),
            layers,
            edges: held.elements() - layers,
            inside: self.highest(&shape.from_last, saved, |kind| self.grad_width * self.held[kind].elements()),
        };
        let points = [inside, at_the_end, at_the_start];
        StageTerms { held, flying: saved + self.boundary, points, saved, units }
    }

    /// What a stage comes to.
    pub fn sum(&self, terms: &StageTerms, zero: ZeroStage, shards: &Shards, flow: &Flow) -> Sum {
        let points = match zero {
            ZeroStage::Zero | ZeroStage::One => terms.points,
            ZeroStage::Two | ZeroStage::Three => terms.wrapped(zero, self.grad_width, flow),
        };
        let names = [Highest::Layer, Highest::Loss, Highest::Embedding];
        let (once, highest) =
            points.into_iter().zip(names).max_by_key(|(bytes, _)| *bytes).unwrap_or((0, Highest::Layer));
        let before = terms.flying * flow.in_flight.saturating_sub(256) / 256;
        let saved = terms.saved.min(once);
        Sum { state: self.state(terms, shards), kept: before + saved, above: once - saved, highest, left: self.left }
    }

    /// Weights, gradients and optimizer state, shared out.
    pub fn state(&self, terms: &StageTerms, shards: &Shards) -> State {
        let mut state = State::default();
        for i in 0..2 {
            let (adam, muon) = (terms.held.adam[i], terms.held.muon[i]);
            state.weights += 2 * (adam + muon) / shards.weights[i];
            state.gradients += self.grad_width * (adam + muon) / shards.gradients[i];
            // Main weight and moments in fp32: two for AdamW, one for Muon.
            state.adam += 12 * adam / shards.optimizer[i];
            state.muon += 8 * muon / shards.optimizer[i];
        }
        state
    }
}
