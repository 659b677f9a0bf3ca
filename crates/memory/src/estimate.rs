//! The replay's figures as sums, for searches that ask millions of times.
//!
//! An [`Estimator`] answers for any engine; how depends on its ledger. Megatron's stages are summed
//! from probes that all pipelines, replicas and ZeRO stages of the same degrees share (`probed.rs`).
//! Other engines' are extrapolated from short replays (`extrapolated.rs`): fewer layouts are legal
//! there, and what a unit's buffers do at the peak is theirs to say. What state comes to at least is
//! counted for both (`held.rs`, `counted.rs`).
//!
//! Nothing here words a reason: that is the replay's, for the layout a person looks at.

mod counted;
mod extrapolated;
mod held;
mod probed;
mod probes;
mod uneven;
mod wrapped;

use case::{Case, LayerKinds, Options, PerKind};
use counted::Counted;
use extrapolated::Extrapolated;
use layout::{Layout, Schedule, StagePlan, ZeroStage};
use ledger::Ledger;
use probed::{Probed, Terms};
use probes::Probes;
use recipe::Recipe;
use replay::Unmodelled;
use std::sync::{Arc, OnceLock};
use uneven::Uneven;

/// A search puts layouts of any number of microbatches in flight over what was probed: a sum that comes to
/// more than this is this, which no device holds either.
const BEYOND: u64 = 1 << 60;

/// What one thread replays and others wait for.
type Once<T> = Arc<OnceLock<Result<T, Unmodelled>>>;

/// What stages of a recipe hold under an engine's ledger. What was replayed for one layout is kept
/// for the next; threads may share it.
pub struct Estimator {
    kinds: LayerKinds,
    how: How,
}

enum How {
    Probed(Box<Probes>),
    Extrapolated(Box<Extrapolated>),
}

impl Estimator {
    /// Nothing replayed yet. `kinds` are those of the recipe's layers, `ledger` what replays it.
    pub fn new(recipe: &Recipe, kinds: &LayerKinds, ledger: &Ledger, options: &Options) -> Estimator {
        let how = match ledger {
            Ledger::Megatron(options) => How::Probed(Box::new(Probes::new(recipe, kinds, options))),
            _ => How::Extrapolated(Box::new(Extrapolated::new(recipe, kinds, options))),
        };
        Estimator { kinds: kinds.clone(), how }
    }

    /// The same, which refuses short replays that are predicted to take more operations than this, where
    /// layouts may need their own.
    pub fn within(mut self, operations: u64) -> Estimator {
        if let How::Extrapolated(extrapolated) = &mut self.how {
            extrapolated.within(operations);
        }
        self
    }

    /// The estimator of a job.
    pub fn of_case(case: &Case) -> Result<Estimator, Unmodelled> {
        Ok(Estimator::new(&case.recipe, &case.kinds, &Ledger::of_case(case)?, &case.options))
    }

    /// Whether a layout's sums may take replays of its own: they are then better asked for one by one, the
    /// most promising layout first.
    pub fn is_dear(&self) -> bool {
        matches!(self.how, How::Extrapolated(_))
    }

    /// Short replays that were done.
    pub fn probes(&self) -> u64 {
        match &self.how {
            How::Probed(probes) => probes.replayed(),
            How::Extrapolated(extrapolated) => extrapolated.replayed(),
        }
    }

    /// Operations of this machine that short replays took so far, where layouts may need their own.
    pub fn walked(&self) -> u64 {
        match &self.how {
            How::Probed(_) => 0,
            How::Extrapolated(extrapolated) => extrapolated.walked(),
        }
    }

    /// Why the schedule or state of a layout has no sums, whatever else it is.
    pub fn refuse(&self, layout: &Layout) -> Result<(), Unmodelled> {
        match &self.how {
            How::Probed(probes) => probes.refuse(layout),
            How::Extrapolated(_) => Extrapolated::refuse(layout),
        }
    }

    /// Sums under the degrees inside a layer, batch, sequence and recompute of a legal layout.
    pub fn under(&self, layout: &Layout) -> Result<Estimate<'_>, Unmodelled> {
        Ok(Estimate(match &self.how {
            How::Probed(probes) => By::Probed(Box::new(probes.probed(layout)?), probes),
            How::Extrapolated(extrapolated) => By::Extrapolated(extrapolated),
        }))
    }

    /// Sums of state alone, below [`Estimator::under`]'s: counted, which takes no replay.
    pub fn state(&self, layout: &Layout) -> Option<Estimate<'_>> {
        match &self.how {
            How::Probed(probes) => Some(Estimate(By::Probed(Box::new(probes.counted(layout).ok()?), probes))),
            How::Extrapolated(extrapolated) => Some(Estimate(By::Counted(Box::new(extrapolated.counted(layout)?)))),
        }
    }

    /// What kinds of layers and the ends weigh under a layout of one stage, where `shards` share out
    /// their state.
    pub fn weights(&self, layout: &Layout, shards: &Shards) -> Result<KindWeights, Unmodelled> {
        match &self.how {
            How::Probed(probes) => Ok(probes.probed(layout)?.weights(shards)),
            How::Extrapolated(extrapolated) => extrapolated.weights(layout),
        }
    }

    /// One stage of a legal layout, with a share of AdamW's state on the host.
    pub fn stage(&self, layout: &Layout, plan: &StagePlan, stage: usize, share: f64) -> Result<Sum, Unmodelled> {
        let estimate = self.under(layout)?;
        let shape = self.shape(plan, stage);
        let chunks: Vec<PerKind<u64>> =
            plan.by_stage[stage].iter().map(|chunk| self.kinds.count(plan.chunks[*chunk].layers.clone())).collect();
        let shape = match estimate.saved() {
            Some(saved) => shape.in_chunks(&chunks, saved, layout, stage as u64),
            None => shape,
        };
        estimate.sum(layout, stage as u64, &shape, &estimate.terms(&shape), share)
    }

    /// The state of one stage alone, counted; none where nobody has counted it.
    pub fn stage_of_state(&self, layout: &Layout, plan: &StagePlan, stage: usize) -> Option<Sum> {
        let (shape, estimate) = (self.shape(plan, stage), self.state(layout)?);
        estimate.sum(layout, stage as u64, &shape, &estimate.terms(&shape), 0.0).ok()
    }

    fn shape(&self, plan: &StagePlan, stage: usize) -> StageShape {
        let (held, last) = (&plan.by_stage[stage], plan.chunks.len() - 1);
        StageShape::new(&self.kinds, plan.layers_of_stage(stage), held.contains(&0), held.contains(&last))
    }

    /// Whether the sum of a stage takes no replay that is not done.
    pub fn is_known(&self, layout: &Layout, index: u64, shape: &StageShape, share: f64) -> bool {
        match &self.how {
            How::Probed(_) => true,
            How::Extrapolated(extrapolated) => extrapolated.is_known(layout, shape, index, share),
        }
    }

    /// Why a stage has no sum, as far as that takes no replay to say.
    pub fn refuse_stage(&self, layout: &Layout, index: u64, shape: &StageShape, share: f64) -> Result<(), Unmodelled> {
        match &self.how {
            How::Probed(_) => Ok(()),
            How::Extrapolated(extrapolated) => extrapolated.refuse_stage(layout, shape, index, share),
        }
    }
}

/// Sums under one set of degrees inside a layer, batch, sequence and recompute.
pub struct Estimate<'a>(By<'a>);

enum By<'a> {
    Probed(Box<Probed>, &'a Probes),
    Extrapolated(&'a Extrapolated),
    Counted(Box<Counted>),
}

/// What a stage holds whatever its index, ZeRO and microbatches, where that is known apart.
#[derive(Clone, Copy, Debug)]
pub struct StageTerms(Option<Terms>);

impl Estimate<'_> {
    /// What a layer of each kind saves, where sums are of kinds.
    fn saved(&self) -> Option<&PerKind<u64>> {
        match &self.0 {
            By::Probed(probed, _) => Some(&probed.saved),
            By::Extrapolated(_) | By::Counted(_) => None,
        }
    }

    /// What a stage holds before it is said where it stands, who shares its state and what is in
    /// flight.
    pub fn terms(&self, shape: &StageShape) -> StageTerms {
        match &self.0 {
            By::Probed(probed, _) => StageTerms(Some(probed.terms(shape))),
            By::Extrapolated(_) | By::Counted(_) => StageTerms(None),
        }
    }

    /// What one rank of the `index`th stage of a layout holds at its highest point, with a share of
    /// AdamW's state on the host. `terms` are those of `shape`.
    pub fn sum(
        &self,
        layout: &Layout,
        index: u64,
        shape: &StageShape,
        terms: &StageTerms,
        share: f64,
    ) -> Result<Sum, Unmodelled> {
        match (&self.0, &terms.0) {
            (By::Probed(probed, probes), terms) => {
                probes.refuse(layout)?;
                let terms = terms.unwrap_or_else(|| probed.terms(shape));
                Ok(probed.stage(&terms, layout, index).less_host(share))
            }
            (By::Extrapolated(extrapolated), _) => extrapolated.stage(layout, shape, index, share),
            (By::Counted(counted), _) => Ok(counted.stage(layout, shape).less_host(share)),
        }
    }
}

/// What a stage consists of, whatever runs through it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageShape {
    /// Layers of each kind.
    pub layers: PerKind<u64>,
    /// For each kind, the layers of each kind from its last one on; none when the stage has none.
    from_last: PerKind<Option<PerKind<u64>>>,
    /// Whether it owns the embedding.
    pub is_first: bool,
    /// Whether it owns the head.
    pub is_last: bool,
    /// Layer passes in flight where interleaved chunks differ; none where each is the mean chunk.
    pub(crate) uneven: Option<Box<Uneven>>,
}

impl StageShape {
    /// A stage of these layers of the recipe, in their order.
    pub fn new(
        kinds: &LayerKinds,
        layers: impl IntoIterator<Item = usize>,
        is_first: bool,
        is_last: bool,
    ) -> StageShape {
        let none = PerKind::new(kinds, |_| 0);
        let mut shape =
            StageShape { from_last: none.map(|_| None), layers: none.clone(), is_first, is_last, uneven: None };
        for kind in layers.into_iter().map(|layer| kinds.of_layer(layer)) {
            shape.layers[kind] += 1;
            shape.from_last[kind] = Some(none.clone());
            shape.from_last.iter_mut().flatten().for_each(|behind| behind[kind] += 1);
        }
        shape
    }

    /// The same stage of an interleaved layout whose chunks hold these layers, in the order of depth. `saved` says which
    /// passes weigh most.
    pub fn in_chunks(self, chunks: &[PerKind<u64>], saved: &PerKind<u64>, layout: &Layout, stage: u64) -> StageShape {
        let is_uneven = layout.schedule == Schedule::Interleaved && chunks.windows(2).any(|pair| pair[0] != pair[1]);
        let uneven = is_uneven.then(|| Box::new(Uneven::of(chunks, saved, layout.pp.get(), stage)));
        StageShape { uneven, ..self }
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

    /// Bytes that the replay of the stage reserves at least. How much more than the replay sums have said at most was
    /// measured part by part (`tests/all/least.rs`).
    pub fn least(&self, layout: &Layout) -> u64 {
        let parts = [(self.state.total(), STATE_OVER), (self.kept, kept_over(layout)), (self.above, ABOVE_OVER)];
        parts.into_iter().map(|(bytes, over)| bytes as f64 * (1.0 - over)).sum::<f64>() as u64
    }

    /// The same with a share of AdamW's state on the host.
    pub fn less_host(mut self, share: f64) -> Sum {
        // A float of large figures may be rounded up.
        self.state.adam = self.state.adam.saturating_sub((self.state.adam as f64 * share) as u64);
        self
    }
}

/// Of a sum's state, what padding may make it more than the replay's.
const STATE_OVER: f64 = 0.01;

/// The same of its highest point, which probes reach with other blocks beside it.
const ABOVE_OVER: f64 = 0.4;

/// The same of what microbatches in flight keep.
fn kept_over(layout: &Layout) -> f64 {
    let is_wrapped = layout.zero >= ZeroStage::Two;
    match (is_wrapped, layout.schedule) {
        // Every microbatch is counted, of which those that repeat are not replayed.
        (_, Schedule::GPipe) => 0.6,
        (false, Schedule::OneF1b | Schedule::Interleaved) => 0.02,
        (false, _) => 0.16,
        (true, Schedule::Interleaved) => 0.25,
        (true, _) => 0.06,
    }
}

/// What a partition of depth weighs: bytes of one layer of each kind, and of the ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindWeights {
    /// Weights, gradients and optimizer state of a layer.
    pub state: PerKind<u64>,
    /// What a layer saves for backward.
    pub saved: PerKind<u64>,
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
