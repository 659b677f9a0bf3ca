//! The replay's figures in nanoseconds, for searches that ask millions of times.
//!
//! What a stage holds is static state, counted, plus what microbatches in flight save, plus the
//! highest point inside a layer or the loss. Saved bytes add up over layers and microbatches, and
//! the highest point of a kind of layer is reached in its last one, so a few replays of short
//! probe stages, one for each kind of layer and place in the pipeline, give them all; a stage is
//! then a sum. The probes depend on degrees inside a layer, batch, sequence and recompute, not on
//! stages, replicas, ZeRO or schedule: one [`Quick`] serves every layout that shares the former.
//!
//! Nothing here words a reason: that is the replay's, for the layout a person looks at.

mod probes;

pub use probes::Probes;

use crate::Unmodelled;
use crate::ledger::megatron::MegatronOptions;
use layout::{Layout, Schedule, StagePlan, ZeroStage};
use recipe::{Layer, Recipe};

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

/// A stage as the sum sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct QuickStage {
    /// What it consists of.
    pub shape: StageShape,
    /// Microbatches in flight, over the layers of the whole stage, in 1/256ths.
    pub in_flight: u64,
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
    pub flying: u64,
    /// The highest point of one microbatch.
    pub once: u64,
    /// What that point is.
    pub highest: Highest,
    /// Of that point, what all layers saved.
    pub saved: u64,
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

/// What one rank of a stage holds at its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuickPeak {
    /// Weights, gradients, optimizer state.
    pub fixed: u64,
    /// All of it.
    pub allocated: u64,
    /// With what the allocator keeps besides.
    pub reserved: u64,
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
            in_flight: in_flight(layout, stage as u64),
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

    /// The highest point of one microbatch inside the layers, which saved `saved` in all.
    fn highest(&self, from_last: &[Vec<u64>], saved: u64) -> u64 {
        let points =
            from_last.iter().zip(&self.inside).filter(|(counts, _)| !counts.is_empty()).map(|(counts, inside)| {
                let behind: u64 = counts.iter().zip(&self.saved).map(|(n, bytes)| n * bytes).sum();
                saved.saturating_sub(behind) + inside
            });
        points.max().unwrap_or(0).max(saved)
    }

    /// Kinds of layers, in the order stages count them.
    pub fn kinds(&self) -> &[Layer] {
        &self.kinds
    }

    /// What one layer of each kind saves for backward.
    pub fn saved_by_kind(&self) -> &[u64] {
        &self.saved
    }

    /// The peak of one stage.
    pub fn peak(&self, stage: &QuickStage) -> QuickPeak {
        let terms = self.terms(&stage.shape);
        let fixed = self.state(&terms, &stage.shards).total();
        let allocated = fixed + terms.running(stage.in_flight);
        QuickPeak { fixed, allocated, reserved: self.reserved(allocated) }
    }

    /// What a stage holds, before shares and microbatches in flight.
    pub fn terms(&self, shape: &StageShape) -> StageTerms {
        let mut held = Held::default();
        let mut saved = 0;
        for (i, &count) in shape.layers.iter().enumerate() {
            held.add(self.held[i], count);
            saved += self.saved[i] * count;
        }
        held.add(self.front, u64::from(shape.is_first));
        held.add(self.back, u64::from(shape.is_last));
        held.add(self.tied, u64::from(shape.is_last && !shape.is_first));
        let inside = self.highest(&shape.from_last, saved);
        let at_the_start = if shape.is_first { self.embedding } else { 0 };
        let at_the_end = if shape.is_last { saved + self.loss[usize::from(!shape.is_first)] } else { 0 };
        let points = [(inside, Highest::Layer), (at_the_end, Highest::Loss), (at_the_start, Highest::Embedding)];
        let (once, highest) = points.into_iter().max_by_key(|(bytes, _)| *bytes).unwrap_or(points[0]);
        StageTerms { held, flying: saved + self.boundary, once, highest, saved }
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

    /// What the allocator keeps for so many allocated bytes.
    pub fn reserved(&self, allocated: u64) -> u64 {
        allocated + self.left
    }
}

impl StageTerms {
    /// What comes and goes at the highest point, with so much in flight (in 1/256ths).
    pub fn running(&self, in_flight: u64) -> u64 {
        self.once + self.flying * in_flight.saturating_sub(256) / 256
    }

    /// Parameters stepped by AdamW and by Muon.
    pub fn params(&self) -> [u64; 2] {
        [self.held.adam.iter().sum(), self.held.muon.iter().sum()]
    }
}
