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

use crate::Unmodelled;
use crate::ledger::Replay;
use crate::ledger::megatron::{Job, MegatronOptions, replay};
use crate::line::Line;
use layout::{Layout, LayoutRequest, OwnershipTable, Schedule, StagePlan, ZeroStage, check};
use recipe::{Layer, Mixer, Optimizer, Place, Recipe, Surface};

/// Where in the pipeline a stage stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Only,
    First,
    Middle,
    Last,
}

/// Bytes of one layer kind, or of an edge, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    /// What a stage keeps besides its layers.
    besides: u64,
    /// What each further microbatch in flight keeps besides its layers.
    boundary: u64,
    grad_width: u64,
    /// Reserved over allocated, as the probes came out.
    overhead: f64,
}

/// A stage as the sum sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct QuickStage {
    /// Layers of each kind, in the order of [`Quick::kinds`].
    pub layers: Vec<u64>,
    /// For each kind, the layers of each kind from its last one on; empty when there is none.
    pub from_last: Vec<Vec<u64>>,
    /// Whether it owns the embedding.
    pub is_first: bool,
    /// Whether it owns the head.
    pub is_last: bool,
    /// Microbatches in flight, over the layers of the whole stage, in 1/256ths.
    pub in_flight: u64,
    /// Ranks that share out optimizer state of dense and of expert tensors.
    pub shards: [u64; 2],
    /// Ranks that share out gradients, likewise.
    pub gradient_shards: [u64; 2],
    /// Ranks that share out weights, likewise.
    pub weight_shards: [u64; 2],
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
    let (pp, vpp, count) = (layout.pp.get(), layout.vpp.get(), layout.microbatches);
    let whole = 256;
    match layout.schedule {
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
        let (mut layers, mut from_last) = (vec![0; quick.kinds.len()], vec![Vec::new(); quick.kinds.len()]);
        for layer in plan.layers_of_stage(stage) {
            let kind = quick.kinds.iter().position(|k| *k == recipe.layers[layer]);
            let kind = kind.expect("every layer of the recipe has its kind");
            layers[kind] += 1;
            from_last[kind] = vec![0; quick.kinds.len()];
            from_last.iter_mut().filter(|counts| !counts.is_empty()).for_each(|counts| counts[kind] += 1);
        }
        let last = plan.chunks.len() - 1;
        let from = |stage| if layout.zero >= stage { [layout.dense_shards(), layout.edp.get()] } else { [1, 1] };
        QuickStage {
            layers,
            from_last,
            is_first: plan.by_stage[stage].contains(&0),
            is_last: plan.by_stage[stage].contains(&last),
            in_flight: in_flight(layout, stage as u64),
            shards: from(ZeroStage::One),
            gradient_shards: from(ZeroStage::Two),
            weight_shards: from(ZeroStage::Three),
        }
    }
}

impl Quick {
    /// Probes a recipe under the degrees, batch, sequence and recompute of a layout.
    pub fn new(recipe: &Recipe, layout: &Layout, options: &MegatronOptions) -> Result<Quick, Unmodelled> {
        let prober = Prober { recipe, layout, options };
        let mut kinds: Vec<Layer> = Vec::new();
        for layer in &recipe.layers {
            if !kinds.contains(layer) {
                kinds.push(layer.clone());
            }
        }
        let middle = prober.dynamic(&kinds, Role::Middle, 1)?;
        let mut saved = Vec::new();
        for kind in &kinds {
            let mut longer = vec![kind.clone()];
            longer.extend(kinds.iter().cloned());
            saved.push(prober.dynamic(&longer, Role::Middle, 1)?.bytes.saturating_sub(middle.bytes));
        }
        let once: u64 = saved.iter().sum();
        let inside = kinds
            .iter()
            .map(|kind| Ok(prober.dynamic(std::slice::from_ref(kind), Role::Middle, 1)?.bytes))
            .collect::<Result<Vec<u64>, Unmodelled>>()?;
        let two = prober.dynamic(&kinds, Role::Middle, 2)?;
        let (held, front, back, tied) = prober.held(&kinds)?;
        let mut quick = Quick {
            boundary: two.bytes.saturating_sub(middle.bytes + once),
            saved,
            held,
            front,
            back,
            tied,
            inside,
            loss: [0; 2],
            embedding: 0,
            besides: 0,
            grad_width: options.gradients.bits() / 8,
            overhead: middle.overhead,
            kinds,
        };
        quick.calibrate(&prober, once)?;
        Ok(quick)
    }

    /// What the ends of the pipeline add to the sum over layers.
    fn calibrate(&mut self, prober: &Prober, once: u64) -> Result<(), Unmodelled> {
        let each = self.each_once();
        let middle = prober.dynamic(&self.kinds, Role::Middle, 1)?.bytes;
        self.besides = middle.saturating_sub(self.highest(&each, once));
        self.embedding = prober.dynamic(&self.kinds, Role::First, 1)?.bytes;
        for (i, role) in [(0, Role::Only), (1, Role::Last)] {
            let probe = prober.dynamic(&self.kinds, role, 1)?;
            self.loss[i] = probe.bytes.saturating_sub(once);
            self.overhead = self.overhead.max(probe.overhead);
        }
        Ok(())
    }

    /// A stage with one layer of each kind, in order.
    fn each_once(&self) -> Vec<Vec<u64>> {
        let count = self.kinds.len();
        (0..count).map(|kind| (0..count).map(|other| u64::from(other >= kind)).collect()).collect()
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

    /// The peak of one stage.
    pub fn peak(&self, stage: &QuickStage) -> QuickPeak {
        let mut held = Held::default();
        let mut saved = 0;
        for (i, &count) in stage.layers.iter().enumerate() {
            held.add(self.held[i], count);
            saved += self.saved[i] * count;
        }
        held.add(self.front, u64::from(stage.is_first));
        held.add(self.back, u64::from(stage.is_last));
        held.add(self.tied, u64::from(stage.is_last && !stage.is_first));
        let fixed = self.fixed(&held, stage);
        let inside = self.highest(&stage.from_last, saved) + self.besides;
        let at_the_start = if stage.is_first { self.embedding } else { 0 };
        let at_the_end = match (stage.is_first, stage.is_last) {
            (_, false) => 0,
            (is_first, true) => saved + self.loss[usize::from(!is_first)],
        };
        let further = stage.in_flight.saturating_sub(256);
        let flying = (saved + self.boundary) * further / 256;
        let allocated = fixed + flying + inside.max(at_the_end).max(at_the_start);
        QuickPeak { fixed, allocated, reserved: (allocated as f64 * self.overhead) as u64 }
    }

    fn fixed(&self, held: &Held, stage: &QuickStage) -> u64 {
        let mut bytes = 0;
        for i in 0..2 {
            let (adam, muon) = (held.adam[i], held.muon[i]);
            bytes += 2 * (adam + muon) / stage.weight_shards[i];
            bytes += self.grad_width * (adam + muon) / stage.gradient_shards[i];
            // Main weight and moments in fp32: two for AdamW, one for Muon.
            bytes += (12 * adam + 8 * muon) / stage.shards[i];
        }
        bytes
    }
}

/// Bytes of a probe beyond its static state, and how much the allocator kept besides.
struct Probe {
    bytes: u64,
    overhead: f64,
}

/// Replays short stages.
struct Prober<'a> {
    recipe: &'a Recipe,
    layout: &'a Layout,
    options: &'a MegatronOptions,
}

impl Prober<'_> {
    /// A recipe and layout whose stage under test holds exactly `layers`.
    fn stage(
        &self,
        layers: &[Layer],
        role: Role,
        microbatches: u64,
    ) -> Result<(Recipe, Layout, StagePlan), Unmodelled> {
        // Neighbours with experts keep an expert mesh legal whatever the stage itself holds.
        let filler = self.recipe.layers.iter().find(|l| l.has(Mixer::Moe)).unwrap_or(&self.recipe.layers[0]);
        let (before, after) = match role {
            Role::Only => (0, 0),
            Role::First => (0, 1),
            Role::Middle => (1, 1),
            Role::Last => (1, 0),
        };
        let mut recipe = self.recipe.clone();
        recipe.layers = vec![filler.clone(); before];
        recipe.layers.extend_from_slice(layers);
        recipe.layers.extend(vec![filler.clone(); after]);
        let mut cuts = Vec::new();
        cuts.extend((before > 0).then_some(before as u64));
        cuts.extend((after > 0).then_some((before + layers.len()) as u64));
        let own = self.layout;
        let request = LayoutRequest {
            tp: Some(own.tp.get()),
            sp: Some(own.sp),
            cp: Some(own.cp.get()),
            pp: Some(1 + before as u64 + after as u64),
            ep: Some(own.ep.get()),
            etp: Some(own.etp.get()),
            zero: Some(ZeroStage::Zero),
            micro_batch: Some(own.micro_batch),
            microbatches: Some(microbatches),
            sequence: Some(own.sequence),
            recompute: Some(own.recompute.clone()),
            boundaries: Some(cuts).filter(|c| !c.is_empty()),
            vocab_multiple: Some(own.vocab_multiple),
            ..LayoutRequest::default()
        };
        let checked = check(&recipe, &request);
        let refused = || Unmodelled::new("this layout", checked.findings.first().map_or("", |f| f.message.as_str()));
        let layout = checked.layout.clone().filter(|_| checked.is_legal()).ok_or_else(refused)?;
        let plan = StagePlan::new(&recipe, &layout, None).map_err(|f| Unmodelled::new("this partition", f.message))?;
        Ok((recipe, layout, plan))
    }

    fn dynamic(&self, layers: &[Layer], role: Role, microbatches: u64) -> Result<Probe, Unmodelled> {
        let (recipe, layout, plan) = self.stage(layers, role, microbatches)?;
        let stage = u64::from(matches!(role, Role::Middle | Role::Last));
        let rank = stage * (layout.world / layout.pp.get());
        let options = MegatronOptions { steps: 2, ..self.options.clone() };
        let job = Job { recipe: &recipe, layout: &layout, stages: &plan, rank, options: &options };
        let replay = replay(&job)?;
        Ok(Probe {
            bytes: running_bytes(&replay, self.options.gradients.bits() / 8),
            overhead: replay.reserved_peak() as f64 / replay.allocated_peak().max(1) as f64,
        })
    }

    /// Parameters on one rank by layer kind and at the edges.
    fn held(&self, kinds: &[Layer]) -> Result<(Vec<Held>, Held, Held, Held), Unmodelled> {
        let (recipe, layout, _) = self.stage(kinds, Role::Only, 1)?;
        let refused = |f: Vec<diag::Finding>| Unmodelled::new("this layout", f[0].message.clone());
        let table = OwnershipTable::new(&recipe, &layout).map_err(refused)?;
        let (mut held, mut front, mut back) = (vec![Held::default(); kinds.len()], Held::default(), Held::default());
        let mut tied = Held::default();
        for row in &table.rows {
            let slot = match row.tensor.place {
                Place::Layer(layer) => &mut held[layer],
                Place::Embedding | Place::Side(_) => &mut front,
                Place::FinalNorm | Place::Head | Place::Mtp(_) => &mut back,
            };
            let group = usize::from(row.tensor.acting.is_some());
            let side = if row.tensor.optimizer == Optimizer::Muon { &mut slot.muon } else { &mut slot.adam };
            side[group] += row.part_elements(&layout);
            if recipe.tied && row.tensor.surface == Surface::TokenEmbedding {
                tied.adam[0] += row.part_elements(&layout);
            }
        }
        debug_assert!(recipe.has(Mixer::Moe) || held.iter().all(|h| h.adam[1] + h.muon[1] == 0));
        Ok((held, front, back, tied))
    }
}

/// Bytes that come and go, at the highest point while layers run: every line but weights and
/// optimizer state, and of gradients what lies outside their buffers. Probes keep whole optimizer
/// state, whose blocks and steps are not a real stage's, so both are left out.
fn running_bytes(replay: &Replay, grad_width: u64) -> u64 {
    let running = replay.phases.iter().filter(|phase| phase.name.starts_with("fwdbwd"));
    let Some(highest) = running.max_by_key(|phase| phase.peak.allocated) else { return 0 };
    let of = |line: Line| highest.peak.by_line[line as usize];
    let fixed = [
        Line::ReplicatedParams,
        Line::TpParams,
        Line::ExpertParams,
        Line::Gradients,
        Line::MatrixOptimizer,
        Line::OtherOptimizer,
    ];
    let fixed: u64 = fixed.into_iter().map(of).sum();
    let fresh_gradients = of(Line::Gradients).saturating_sub(grad_width * replay.params);
    highest.peak.allocated - fixed + fresh_gradients
}
