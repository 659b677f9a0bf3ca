//! Sums for engines whose ledgers wrap units of a plain model: FSDP2, DeepSpeed, nanotron.
//!
//! What such a stage holds grows evenly with its layers, with the microbatches in flight and with
//! those of a step. So the real ledger is replayed over three layers of each kind and a few more ([`longer`]), under
//! the layout's own ZeRO stage and shards, and the line through both is extrapolated out to the depth.
//! Forward, loss, backward and optimizer are extrapolated out each by itself, because which of them is
//! highest changes with depth. Of several kinds every layer adds its own, and the highest start
//! counts: the buffers of a neighbour of another kind are taken to be the larger's.

use super::counted::{Counted, Widths};
use super::held::Counter;
use super::{BEYOND, Highest, KindWeights, Once, StageShape, State, Sum};
use case::{KindId, LayerKinds, Options, PerKind};
use layout::{Engine, Layout, LayoutRequest, Needs, Recompute, Schedule, StagePlan, ZeroStage, settle};
use ledger::{Ledger, RankJob};
use recipe::{Layer, Mixer, Recipe};
use replay::Unmodelled;
use replay::line::Line;
use replay::{PhaseKind, Replay};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Layers of the shorter probe. Of three, the one in the middle has a
/// neighbour gathered on one side and one reduced on the other.
const SHORT: usize = 3;

/// How many more layers the longer probe has. Below ZeRO 3 DeepSpeed gathers gradients in buckets that several layers fill: one
/// more layer may add a whole bucket or nothing.
fn longer(layout: &Layout) -> usize {
    let fills_buckets = layout.engine == Some(Engine::Deepspeed) && layout.zero < ZeroStage::Three;
    if fills_buckets { 5 } else { 1 }
}

/// Microbatches in flight, and sequences of one, of the probes that larger ones are extrapolated from.
const FLIGHTS: [u64; 2] = [2, 3];
const SEQUENCES: [u64; 2] = [2, 4];

/// Where in the pipeline a stage stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Only,
    First,
    Middle,
    Last,
}

/// What a probe depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asked {
    kind: KindId,
    layers: usize,
    role: Role,
    flights: u64,
    microbatches: u64,
    /// tp, cp, dp, ep, etp.
    degrees: [u64; 5],
    sp: bool,
    micro_batch: u64,
    sequence: u64,
    vocab_multiple: u64,
    recompute: Recompute,
    zero: ZeroStage,
    engine: Option<Engine>,
    on_host: bool,
}

/// Peaks of forward, loss, backward and optimizer step, and of what stands before the steps; at the
/// highest point weights, gradients, optimizer state and saved activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    grows: [i64; 9],
    /// What the allocator kept beyond the peak of the steps, and beyond that before them. It does not
    /// grow evenly with anything.
    left: [i64; 2],
}

/// Where in the list what stands before the steps is, and where the lines begin.
const SETUP: usize = 4;
const LINES: usize = 5;

impl Figures {
    fn of(replay: &Replay) -> Figures {
        let mut all = [0; 9];
        for phase in &replay.phases {
            if !phase.kind.is_of_a_step() {
                all[SETUP] = all[SETUP].max(phase.peak.allocated as i64);
            } else if matches!(phase.kind, PhaseKind::Passes(_)) {
                (0..3).for_each(|part| all[part] = all[part].max(phase.by_part[part] as i64));
            } else {
                all[3] = all[3].max(phase.peak.allocated as i64);
            }
        }
        let lines: [&[Line]; 4] = [
            &[Line::ReplicatedParams, Line::TpParams, Line::ExpertParams],
            &[Line::Gradients],
            &[Line::MatrixOptimizer, Line::OtherOptimizer],
            &[Line::Activations, Line::ExpertInputs],
        ];
        for (slot, lines) in all[LINES..].iter_mut().zip(lines) {
            *slot = lines.iter().map(|line| replay.line(*line)).sum::<u64>() as i64;
        }
        let (reserved, peak) = (replay.reserved_peak() as i64, replay.allocated_peak() as i64);
        Figures { grows: all, left: [reserved - peak, reserved - all[SETUP]] }
    }

    fn each(self, other: Figures, join: impl Fn(i64, i64) -> i64) -> Figures {
        Figures {
            grows: std::array::from_fn(|i| join(self.grows[i], other.grows[i])),
            left: std::array::from_fn(|i| self.left[i].max(other.left[i])),
        }
    }

    /// Some steps of the way to another, and beyond it.
    fn towards(self, other: Figures, steps: i64, of: i64) -> Figures {
        self.each(other, |from, to| sum(from, scaled(to - from, steps, of)))
    }

    fn sum(&self) -> Sum {
        let at = |i: usize| self.grows[i].max(0) as u64;
        let allocated = (0..SETUP).map(at).max().unwrap_or(0);
        let reserved = (allocated as i64 + self.left[0]).max(self.grows[SETUP] + self.left[1]).max(0) as u64;
        let highest = if at(1) == allocated { Highest::Loss } else { Highest::Layer };
        let mut rest = allocated;
        let mut take = |i: usize| {
            let bytes = at(i).min(rest);
            rest -= bytes;
            bytes
        };
        let state = State { weights: take(LINES), gradients: take(LINES + 1), adam: take(LINES + 2), muon: 0 };
        let kept = take(LINES + 3);
        Sum { state, kept, above: rest, highest, left: reserved.saturating_sub(allocated) }
    }
}

/// Two figures together, up to what no device holds.
fn sum(a: i64, b: i64) -> i64 {
    let most = BEYOND as i64;
    (a + b).clamp(-most, most)
}

/// A figure so many times over so many, likewise.
fn scaled(bytes: i64, times: i64, of: i64) -> i64 {
    let most = i128::from(BEYOND);
    (i128::from(bytes) * i128::from(times) / i128::from(of)).clamp(-most, most) as i64
}

/// Short replays of one recipe, each done once however often it is asked for. Threads may share it.
pub(super) struct Extrapolated {
    options: Options,
    kinds: LayerKinds,
    /// One layer of each kind.
    layers: PerKind<Layer>,
    /// The recipe without layers, to be given those of a probe.
    bare: Recipe,
    counter: Counter,
    replayed: Mutex<HashMap<Asked, Once<Figures>>>,
    /// Which probes the ledger refuses before it walks anything.
    checked: Mutex<HashMap<Asked, Result<(), Unmodelled>>>,
    /// Operations that their replays took, and the most that one may.
    walked: AtomicU64,
    most: u64,
}

impl Extrapolated {
    /// Nothing replayed yet.
    pub fn new(recipe: &Recipe, kinds: &LayerKinds, options: &Options) -> Extrapolated {
        let mut bare = recipe.clone();
        bare.layers.clear();
        let layers = PerKind::new(kinds, |layer| recipe.layers[layer].clone());
        Extrapolated {
            counter: Counter::new(&bare, kinds, &layers),
            options: *options,
            kinds: kinds.clone(),
            layers,
            bare,
            replayed: Mutex::default(),
            checked: Mutex::default(),
            walked: AtomicU64::new(0),
            most: u64::MAX,
        }
    }

    /// Refuses probes that are predicted to take more operations than this.
    pub fn within(&mut self, operations: u64) {
        self.most = operations;
    }

    /// Refuses what no probe sees of a layout.
    pub fn refuse(layout: &Layout) -> Result<(), Unmodelled> {
        if layout.vpp.splits() || (layout.pp.splits() && layout.schedule != Schedule::OneF1b) {
            let what = format!("schedule {}", layout.schedule);
            return Err(Unmodelled::new(what, "only 1f1b with one chunk a stage is replayed"));
        }
        Ok(())
    }

    /// What one rank of a stage holds, the `index`th of a legal layout, with a share of optimizer
    /// state on the host.
    pub fn stage(&self, layout: &Layout, shape: &StageShape, index: u64, share: f64) -> Result<Sum, Unmodelled> {
        self.stage_by(layout, shape, index, share, &|asked| self.known(asked))
    }

    /// Whether all short replays that a stage needs are done.
    pub fn is_known(&self, layout: &Layout, shape: &StageShape, index: u64, share: f64) -> bool {
        let is_lacking = Cell::new(false);
        let look = |asked: Asked| {
            let replayed = self.replayed.lock().unwrap_or_else(|e| e.into_inner());
            let known = replayed.get(&asked).and_then(|once| once.get().cloned());
            is_lacking.set(is_lacking.get() || known.is_none());
            known.unwrap_or(Ok(Figures::default()))
        };
        // What has no price is known as well.
        let _ = self.stage_by(layout, shape, index, share, &look);
        !is_lacking.get()
    }

    /// Why a stage has no sums, as far as that is known before anything is walked.
    pub fn refuse_stage(&self, layout: &Layout, shape: &StageShape, index: u64, share: f64) -> Result<(), Unmodelled> {
        let check = |asked: Asked| {
            // Neither says whether a rank is replayed.
            let asked = Asked { layers: SHORT, micro_batch: 1, ..asked };
            let mut checked = self.checked.lock().unwrap_or_else(|e| e.into_inner());
            let known = checked.entry(asked).or_insert_with_key(|asked| self.refuse_probe(asked));
            known.clone().map(|()| Figures::default())
        };
        self.stage_by(layout, shape, index, share, &check).map(|_| ())
    }

    fn stage_by(
        &self,
        layout: &Layout,
        shape: &StageShape,
        index: u64,
        share: f64,
        ask: &dyn Fn(Asked) -> Result<Figures, Unmodelled>,
    ) -> Result<Sum, Unmodelled> {
        Extrapolated::refuse(layout)?;
        let role = match (shape.is_first, shape.is_last) {
            (true, true) => Role::Only,
            (true, false) => Role::First,
            (false, true) => Role::Last,
            (false, false) => Role::Middle,
        };
        let stage = AtStage { layout, role, flights: layout.pp.get() - index, share, ask };
        let mut start: Option<Figures> = None;
        let mut layers = Figures::default();
        let further = longer(layout);
        for (kind, &count) in shape.layers.entries().filter(|(_, count)| **count > 0) {
            let (short, long) = (self.flying(&stage, kind, SHORT)?, self.flying(&stage, kind, SHORT + further)?);
            let base = short.towards(long, -(SHORT as i64), further as i64);
            start = Some(start.map_or(base, |other| other.each(base, i64::max)));
            layers = layers
                .each(long.each(short, |a, b| a - b), |all, each| sum(all, scaled(each, count as i64, further as i64)));
        }
        let start = start.ok_or_else(|| Unmodelled::new("an empty stage", "it holds no layers"))?;
        let more = self.more_microbatches(&stage, shape)?;
        Ok(start.each(layers, sum).each(more, sum).sum())
    }

    /// What a layout's state comes to at least; none where it has no ledger, or nobody has counted it.
    pub fn counted(&self, layout: &Layout) -> Option<Counted> {
        let ledger = Ledger::of(&self.bare, layout, &self.options).ok()?;
        let widths = Widths::of(&ledger, layout)?;
        let widths = if self.bare.adapters().is_some() { widths.frozen() } else { widths };
        Some(Counted { holdings: self.counter.under(layout, layout.engine).ok()?, widths })
    }

    /// What kinds of layers weigh under a layout of one stage.
    pub fn weights(&self, layout: &Layout) -> Result<KindWeights, Unmodelled> {
        let ask = |asked| self.known(asked);
        let stage = AtStage { layout, role: Role::Only, flights: 1, share: 0.0, ask: &ask };
        let state_of = |figures: &Figures| figures.grows[LINES..LINES + 3].iter().sum::<i64>().max(0) as u64;
        let none = PerKind::new(&self.kinds, |_| 0);
        let (mut state, mut saved, mut ends) = (none.clone(), none, 0);
        let further = longer(layout);
        for (kind, _) in self.kinds.all() {
            let (short, long) = (self.flying(&stage, kind, SHORT)?, self.flying(&stage, kind, SHORT + further)?);
            let each = long.each(short, |a, b| scaled(a - b, 1, further as i64));
            state[kind] = state_of(&each);
            saved[kind] = each.grows[LINES + 3].max(0) as u64;
            ends = state_of(&short.towards(long, -(SHORT as i64), further as i64)).max(ends);
        }
        // Table and head are the same size; a tied one stands at both ends.
        let end = if self.bare.tied { ends } else { ends / 2 };
        Ok(KindWeights { state, saved, state_ends: [end, end] })
    }

    /// Layers of one kind with as many microbatches in flight as the stage has.
    fn flying(&self, stage: &AtStage, kind: KindId, layers: usize) -> Result<Figures, Unmodelled> {
        let at = |flights: u64| {
            // One more than fly shows what a pass leaves for the next.
            let more = u64::from(stage.layout.microbatches > flights);
            self.batched(stage, kind, layers, [flights, flights + more])
        };
        let flights = stage.flights.min(stage.layout.microbatches).max(1);
        let [few, many] = FLIGHTS;
        if flights <= many {
            return at(flights);
        }
        Ok(at(few)?.towards(at(many)?, (flights - few) as i64, (many - few) as i64))
    }

    /// What microbatches beyond those probed add, such as a buffer to receive each in.
    fn more_microbatches(&self, stage: &AtStage, shape: &StageShape) -> Result<Figures, Unmodelled> {
        let flights = stage.flights.min(FLIGHTS[1]);
        let beyond = stage.layout.microbatches.saturating_sub(stage.flights + 1);
        let mut present = shape.layers.entries().filter(|(_, count)| **count > 0);
        let Some((kind, _)) = present.next() else { return Ok(Figures::default()) };
        if beyond == 0 || stage.role == Role::Only {
            return Ok(Figures::default());
        }
        let probe = |microbatches| self.batched(stage, kind, SHORT, [flights, microbatches]);
        let (few, many) = (probe(flights + 1)?, probe(flights + 2)?);
        Ok(many.each(few, |a, b| scaled(a - b, beyond as i64, 1)))
    }

    /// A probe of so many `[in flight, of a step]`, extrapolated out to the sequences of a microbatch.
    fn batched(
        &self,
        stage: &AtStage,
        kind: KindId,
        layers: usize,
        [flights, microbatches]: [u64; 2],
    ) -> Result<Figures, Unmodelled> {
        let layout = stage.layout;
        // Degrees of experts say nothing of a layer that has none.
        let suffix = self.bare.features.mtp().filter(|_| matches!(stage.role, Role::Only | Role::Last));
        let has_experts = self.layers[kind].has(Mixer::Moe) || suffix.is_some_and(|mtp| mtp.layer.has(Mixer::Moe));
        let [ep, etp] = if has_experts { [layout.ep.get(), layout.etp.get()] } else { [1, 1] };
        let at = |micro_batch: u64| {
            (stage.ask)(Asked {
                kind,
                layers,
                role: stage.role,
                flights,
                microbatches,
                degrees: [layout.tp.get(), layout.cp.get(), layout.dp.get(), ep, etp],
                sp: layout.sp,
                micro_batch,
                sequence: layout.sequence,
                vocab_multiple: layout.vocab_multiple,
                recompute: layout.recompute.clone(),
                zero: layout.zero,
                engine: layout.engine,
                on_host: stage.share > 0.0,
            })
        };
        let [few, many] = SEQUENCES;
        match layout.micro_batch {
            wanted if wanted <= many => at(wanted),
            wanted => Ok(at(few)?.towards(at(many)?, (wanted - few) as i64, (many - few) as i64)),
        }
    }

    /// Probes that were replayed.
    pub fn replayed(&self) -> u64 {
        self.replayed.lock().unwrap_or_else(|e| e.into_inner()).len() as u64
    }

    /// Operations that probes took so far.
    pub fn walked(&self) -> u64 {
        self.walked.load(Ordering::Relaxed)
    }

    /// A probe, replayed once: whoever asks meanwhile waits.
    fn known(&self, asked: Asked) -> Result<Figures, Unmodelled> {
        let known = self.replayed.lock().unwrap_or_else(|e| e.into_inner()).entry(asked.clone()).or_default().clone();
        known.get_or_init(|| self.replay(&asked)).clone()
    }

    /// What a probe replays: recipe, layout, stages, the ledger and the rank.
    fn probe(&self, asked: &Asked) -> Result<Probe, Unmodelled> {
        // A stage has as many in flight as there are stages from it on.
        let (before, after) = match asked.role {
            Role::Only => (0, 0),
            Role::First => (0, asked.flights.max(2) - 1),
            Role::Middle => (1, asked.flights.max(2) - 1),
            Role::Last => (1, 0),
        };
        let stages = before + 1 + after;
        let [tp, cp, dp, ep, etp] = asked.degrees;
        let mut recipe = self.bare.clone();
        recipe.layers = vec![self.layers[asked.kind].clone(); asked.layers + (stages - 1) as usize];
        let cuts = (1..stages).map(|cut| if cut <= before { cut } else { cut + asked.layers as u64 - 1 });
        let request = LayoutRequest {
            world: Some(tp * cp * dp * stages),
            tp: Some(tp),
            sp: Some(asked.sp),
            cp: Some(cp),
            pp: Some(stages),
            ep: Some(ep),
            etp: Some(etp),
            zero: Some(asked.zero),
            engine: asked.engine,
            micro_batch: Some(asked.micro_batch),
            microbatches: Some(asked.microbatches),
            sequence: Some(asked.sequence),
            recompute: Some(asked.recompute.clone()),
            boundaries: Some(cuts.collect()).filter(|cuts: &Vec<u64>| !cuts.is_empty()),
            vocab_multiple: Some(asked.vocab_multiple),
            ..LayoutRequest::default()
        };
        let refused = |f: &diag::Finding| Unmodelled::new("this layout", f.message.as_str());
        let (layout, _) = settle(&request, Needs::of(&recipe)).map_err(|found| refused(&found[0]))?;
        let plan = StagePlan::new(&recipe, &layout, None).map_err(|finding| refused(&finding))?;
        let share = if asked.on_host { 1.0 } else { 0.0 };
        // The second step sees the optimizer's moments.
        let ledger = Ledger::of(&recipe, &layout, &Options { offload: share, ..self.options })?;
        let ledger = ledger.over_steps(2);
        let rank = before * (layout.world / stages);
        Ok(Probe { recipe, layout, plan, ledger, rank })
    }

    fn refuse_probe(&self, asked: &Asked) -> Result<(), Unmodelled> {
        let probe = self.probe(asked)?;
        probe.ledger.refuse(&probe.job())
    }

    fn replay(&self, asked: &Asked) -> Result<Figures, Unmodelled> {
        let probe = self.probe(asked)?;
        let takes = probe.ledger.work(&probe.job()).operations;
        if takes > self.most {
            let (takes, most) = (units::count(takes), units::count(self.most));
            let why = format!("it takes about {takes} operations, and {most} are left for one of them (--work-limit)");
            return Err(Unmodelled::new("a short replay", why));
        }
        let replay = probe.ledger.replay(&probe.job())?;
        self.walked.fetch_add(ledger::work_of(&replay), Ordering::Relaxed);
        Ok(Figures::of(&replay))
    }
}

/// A few layers of one kind with what replays them.
struct Probe {
    recipe: Recipe,
    layout: Layout,
    plan: StagePlan,
    ledger: Ledger,
    rank: u64,
}

impl Probe {
    fn job(&self) -> RankJob<'_> {
        RankJob { recipe: &self.recipe, layout: &self.layout, stages: &self.plan, rank: self.rank }
    }
}

/// A stage of a layout.
struct AtStage<'a> {
    layout: &'a Layout,
    role: Role,
    /// Stages from it on.
    flights: u64,
    share: f64,
    /// What answers for a probe.
    ask: &'a dyn Fn(Asked) -> Result<Figures, Unmodelled>,
}
