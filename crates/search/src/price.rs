//! Memory and time of every legal layout that shares the degrees inside a layer. The probes of a
//! key are paid once; a layout is then a few sums, without allocation.

use crate::point::{Key, Offload, Point};
use crate::shape::{Shape, Stage};
use crate::simplicity::complexity;
use crate::space::{Realm, Space};
use cost::simulate::ChunkTimes;
use cost::{Prices, Unpriced};
use layout::{Layout, Schedule, ZeroStage};
use memory::fit::{communicator_bytes, communicators};
use memory::quick::{Highest, Probes, Quick, Shards, StageTerms, State, in_flight_under};
use recipe::Mixer;
use std::collections::BTreeMap;
use units::named;

named! {
    /// The line of a rank that is largest where a layout does not fit.
    pub enum MemoryLine {
        /// Weights.
        Weights = "memory/weights",
        /// Gradients.
        Gradients = "memory/gradients",
        /// Optimizer state.
        Optimizer = "memory/optimizer",
        /// What layers save for backward, over all microbatches in flight.
        Activations = "memory/activations",
        /// The highest point inside one layer.
        Layer = "memory/layer",
        /// Head and loss.
        Loss = "memory/loss",
    }
}

/// A layout that fits, with a time it cannot go below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub point: Point,
    /// Seconds a sequence takes, at least.
    pub bound: f64,
    /// Bytes left on the worst rank.
    pub headroom: i64,
    /// How much there is to get wrong.
    pub complexity: u32,
}

/// What became of layouts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Priced: memory and time.
    pub priced: u64,
    /// Of these, fitting with the headroom asked for.
    pub fit: u64,
    /// Of these, not fitting, by the largest line of the worst stage.
    pub misfit: [u64; MemoryLine::ALL.len()],
    /// Likewise, by where that stage stands: the only one, first, middle, last.
    pub misfit_at: [u64; 4],
    /// Legal, and left out because a bound shows them to be slower than what is asked for.
    pub bounded: u64,
    /// Legal, and not priced, by the reason.
    pub unpriced: BTreeMap<String, u64>,
    /// The layout that misses by least, and by how much.
    pub nearest: Option<(i64, Point)>,
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, other: &Tally) {
        self.priced += other.priced;
        self.fit += other.fit;
        self.bounded += other.bounded;
        self.misfit.iter_mut().zip(other.misfit).for_each(|(a, b)| *a += b);
        self.misfit_at.iter_mut().zip(other.misfit_at).for_each(|(a, b)| *a += b);
        for (reason, count) in &other.unpriced {
            *self.unpriced.entry(reason.clone()).or_default() += count;
        }
        if let Some(other) = other.nearest {
            self.nearer(other);
        }
    }

    fn nearer(&mut self, other: (i64, Point)) {
        let is_nearer = self.nearest.is_none_or(|(over, point)| (other.0, other.1) < (over, point));
        self.nearest = if is_nearer { Some(other) } else { self.nearest };
    }
}

/// Degrees of a pipeline that are legal for a key.
#[derive(Clone, Copy, Debug)]
struct Mesh {
    pp: u64,
    microbatches: u64,
}

/// What a search still wants to know of.
pub struct Interest<'a> {
    /// Whether layouts that take at least so long a sequence are of interest.
    pub reaches: &'a (dyn Fn(f64) -> bool + Sync),
    /// Whether a layout that fits is.
    pub wants: &'a (dyn Fn(&Candidate) -> bool + Sync),
}

/// Prices the keys of one realm.
pub struct Pricer<'a> {
    space: &'a Space<'a>,
    realm: &'a Realm,
    index: usize,
    probes: Probes<'a>,
    /// Bytes a rank may hold in its allocator before communicators.
    budget: i64,
    reserve: hardware::Reserve,
    has_experts: bool,
}

/// What a stage comes to under one recompute policy, before state is shared out.
struct Summed {
    terms: StageTerms,
    running: u64,
}

impl<'a> Pricer<'a> {
    /// A pricer for one realm of a space.
    pub fn new(space: &'a Space<'a>, index: usize) -> Pricer<'a> {
        let realm = &space.realms[index];
        let device = &space.question.cluster.device;
        let reserve = device.outside().reserve;
        Pricer {
            space,
            realm,
            index,
            probes: Probes::new(&realm.recipe, &realm.options),
            budget: device.visible_bytes() as i64 - (reserve.context_bytes + reserve.libraries_bytes) as i64,
            reserve,
            has_experts: realm.recipe.uses(Mixer::Moe),
        }
    }

    /// Probes shared by everything this realm prices.
    pub fn probes(&self) -> &Probes<'a> {
        &self.probes
    }

    /// Prices of a layer under a key.
    pub fn prices(&self, layout: &Layout, offload: Offload) -> Result<Prices, cost::Unpriced> {
        let share = self.space.question.offload.share(offload);
        let options = cost::Options { offload: share, ..self.space.question.options };
        Prices::new(&self.realm.recipe, layout, self.space.question.cluster, &options)
    }

    fn meshes(&self, key: &Key) -> Vec<Mesh> {
        let meshes = self.realm.shapes.keys().filter_map(|&pp| {
            let dp = self.space.replicas(key, pp)?;
            let mesh = Mesh { pp, microbatches: self.space.microbatches(key, dp) };
            (self.realm.rules.mesh(key, pp, dp) == 0).then_some(mesh)
        });
        meshes.collect()
    }

    fn shapes(&self, mesh: Mesh) -> impl Iterator<Item = (usize, &'a Shape)> + '_ {
        let shapes = self.realm.shapes[&mesh.pp].iter().enumerate();
        shapes.filter(move |(_, shape)| self.realm.rules.order(mesh.pp, shape.order, mesh.microbatches) == 0)
    }

    /// Seconds a sequence takes at least, over all layouts of a key: recompute only adds to it.
    pub fn least(&self, key: &Key) -> f64 {
        let meshes = self.meshes(key);
        if meshes.is_empty() {
            return f64::INFINITY;
        }
        let mut layout = self.realm.template.clone();
        self.space.set_key(&mut layout, key);
        layout.recompute = self.realm.recompute[0].clone();
        let mut clock = Clock::default();
        let read = self
            .prices(&layout, Offload::Device)
            .and_then(|mut prices| clock.read(self, key, &meshes, &mut prices, &mut layout));
        // What has no price is looked at, so that it is named.
        if read.is_ok() { clock.least() } else { 0.0 }
    }

    /// Prices every layout of a key. `reaches` says of a time whether layouts that take at least
    /// so long are of interest, `wants` the same of a layout that fits; those are handed back.
    pub fn price(&self, key: &Key, interest: &Interest) -> (Tally, Vec<Candidate>) {
        let (mut tally, mut kept) = (Tally::default(), Vec::new());
        let meshes = self.meshes(key);
        if meshes.is_empty() {
            return (tally, kept);
        }
        let mut layout = self.realm.template.clone();
        self.space.set_key(&mut layout, key);
        let mut clock = Clock::default();
        for recompute in (0..self.realm.recompute.len()).filter(|policy| self.realm.rules.recompute(*policy) == 0) {
            layout.recompute = self.realm.recompute[recompute].clone();
            let read = self
                .prices(&layout, Offload::Device)
                .and_then(|mut prices| clock.read(self, key, &meshes, &mut prices, &mut layout));
            let probed = read.map_err(|e| e.to_string()).and_then(|()| {
                if !(interest.reaches)(clock.least()) {
                    return Ok(None);
                }
                let quick = self.probes.quick(&layout).map_err(|e| format!("{}: {}", e.what, e.why))?;
                Ok(Some(quick))
            });
            match probed {
                Ok(Some(quick)) => {
                    let run = Run { pricer: self, key, recompute, quick: &quick, layout: &mut layout };
                    run.judge_all(&meshes, &clock, interest, &mut tally, &mut kept);
                }
                Ok(None) => tally.bounded += clock.seconds.len() as u64,
                Err(reason) => *tally.unpriced.entry(reason).or_default() += self.count(&meshes),
            }
        }
        (tally, kept)
    }

    /// Whether no rule refuses a point, whose degrees must divide the world.
    pub fn is_legal(&self, point: &Point) -> bool {
        let Some(dp) = self.space.replicas(&point.key, point.pp) else { return false };
        let microbatches = self.space.microbatches(&point.key, dp);
        let rules = &self.realm.rules;
        let order = self.space.shape(point).order;
        rules.mesh(&point.key, point.pp, dp)
            | rules.order(point.pp, order, microbatches)
            | rules.state(point.pp, point.zero)
            | rules.recompute(point.recompute)
            == 0
    }

    /// Bytes left on the worst rank of a legal point, by the quick sum; none when it has none.
    pub fn headroom(&self, point: &Point) -> Option<i64> {
        let mut layout = self.space.layout(point);
        let shape = self.space.shape(point);
        let quick = self.probes.quick(&layout).ok()?;
        let talking = communicators(&layout, self.has_experts).len() as u64;
        let budget = self.budget - communicator_bytes(&self.reserve, talking) as i64;
        let mesh = Mesh { pp: point.pp, microbatches: layout.microbatches };
        let shards = Shards::new(point.zero, [layout.dense_shards(), layout.edp.get()]);
        let run = Run { pricer: self, key: &point.key, recompute: point.recompute, quick: &quick, layout: &mut layout };
        let mut summed = Vec::new();
        run.sum(mesh, shape, &mut summed);
        Some(run.worst(&summed, &shards, budget, self.space.question.offload.share(point.offload)).0)
    }

    /// Layouts of one recompute policy.
    fn count(&self, meshes: &[Mesh]) -> u64 {
        let states = |mesh: &Mesh| self.states(mesh.pp).count() as u64 * self.space.offload.len() as u64;
        meshes.iter().map(|mesh| self.shapes(*mesh).count() as u64 * states(mesh)).sum()
    }

    fn states(&self, pp: u64) -> impl Iterator<Item = ZeroStage> + '_ {
        self.space.zero.iter().copied().filter(move |zero| self.realm.rules.state(pp, *zero) == 0)
    }
}

/// The times of all layouts of one key and policy, in the order they are judged in.
#[derive(Default)]
struct Clock {
    /// Seconds a sequence takes, at least.
    seconds: Vec<f64>,
    /// What distinct chunks take, and distinct stages.
    chunks: Vec<ChunkTimes>,
    stages: Vec<ChunkTimes>,
    along: Vec<ChunkTimes>,
    scratch: cost::Scratch,
}

impl Clock {
    fn least(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Reads every layout's time.
    fn read(
        &mut self,
        pricer: &Pricer,
        key: &Key,
        meshes: &[Mesh],
        prices: &mut Prices,
        layout: &mut Layout,
    ) -> Result<(), Unpriced> {
        self.seconds.clear();
        for &mesh in meshes {
            for (_, shape) in pricer.shapes(mesh) {
                pricer.space.set_pipeline(layout, key, mesh.pp, shape.order);
                let mut known: Option<(bool, f64)> = None;
                for zero in pricer.states(mesh.pp) {
                    layout.zero = zero;
                    // Only ZeRO 3 does anything inside a microbatch.
                    let gathers = zero == ZeroStage::Three;
                    let makespan = match known {
                        Some((same, makespan)) if same == gathers => makespan,
                        _ => self.makespan(prices, layout, shape)?,
                    };
                    known = Some((gathers, makespan));
                    for &offload in &pricer.space.offload {
                        prices.set_offload(pricer.space.question.offload.share(offload));
                        let seconds = self.step(prices, layout, shape, makespan);
                        self.seconds.push(seconds / layout.global_batch as f64);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads what chunks and stages take.
    fn pass(&mut self, prices: &Prices, layout: &Layout, shape: &Shape) {
        self.chunks.clear();
        self.chunks.extend(shape.chunks.iter().map(|chunk| prices.chunk(layout, chunk.counts())));
        self.stages.clear();
        self.stages.extend(shape.stages.iter().map(|stage| prices.chunk(layout, stage.counts())));
    }

    /// What the pipeline takes at least, in a few sums: a stage does all its own work, and before
    /// it the first microbatch passed every chunk in front, behind it the last one passes them
    /// back. A schedule that splits backward does not wait for the way back; for one that folds the
    /// depth `cost` has the bound.
    fn makespan(&mut self, prices: &Prices, layout: &Layout, shape: &Shape) -> Result<f64, Unpriced> {
        self.pass(prices, layout, shape);
        if matches!(shape.order.schedule, Schedule::DualPipe | Schedule::DualPipeV) {
            return self.tight(prices, layout, shape);
        }
        let way = |times: &ChunkTimes| match shape.order.schedule {
            Schedule::GPipe | Schedule::OneF1b | Schedule::Interleaved => times.forward + times.backward(),
            _ => times.forward,
        };
        let of_stage = |(stage, times): (&Stage, &ChunkTimes)| {
            let fill: f64 = stage.chunks_before.iter().zip(&self.chunks).map(|(n, chunk)| *n as f64 * way(chunk)).sum();
            fill + layout.microbatches as f64 * (times.forward + times.backward())
        };
        Ok(shape.stages.iter().zip(&self.stages).map(of_stage).fold(0.0, f64::max))
    }

    /// The tightest bound on the pipeline there is.
    fn tight(&mut self, prices: &Prices, layout: &Layout, shape: &Shape) -> Result<f64, Unpriced> {
        self.along.clear();
        self.along.extend(shape.chunk_of.iter().map(|chunk| self.chunks[*chunk]));
        prices.least_makespan(&mut self.scratch, layout, &self.along)
    }

    fn step(&self, prices: &Prices, layout: &Layout, shape: &Shape, makespan: f64) -> f64 {
        let waits = shape.stages.iter().map(|stage| {
            let before = stage.before.iter().zip(&self.stages);
            let slack: f64 = before.map(|(count, times)| *count as f64 * prices.slack(layout, *times)).sum();
            prices.around(layout, makespan, stage.counts(), slack)
        });
        waits.fold(0.0, f64::max)
    }
}

/// Seconds of a step, by the tightest bound that needs no simulation.
pub(crate) fn tight(prices: &Prices, layout: &Layout, shape: &Shape) -> Result<f64, Unpriced> {
    let mut clock = Clock::default();
    clock.pass(prices, layout, shape);
    let makespan = clock.tight(prices, layout, shape)?;
    Ok(clock.step(prices, layout, shape, makespan))
}

/// One recompute policy of one key.
struct Run<'r, 'a> {
    pricer: &'r Pricer<'a>,
    key: &'r Key,
    recompute: usize,
    quick: &'r Quick,
    layout: &'r mut Layout,
}

impl Run<'_, '_> {
    /// Judges every layout, in the order of the clock.
    fn judge_all(
        self,
        meshes: &[Mesh],
        clock: &Clock,
        interest: &Interest,
        tally: &mut Tally,
        kept: &mut Vec<Candidate>,
    ) {
        let pricer = self.pricer;
        let mut next = 0;
        let mut summed: Vec<Summed> = Vec::new();
        for &mesh in meshes {
            for (index, shape) in pricer.shapes(mesh) {
                pricer.space.set_pipeline(self.layout, self.key, mesh.pp, shape.order);
                let talking = communicators(self.layout, pricer.has_experts).len() as u64;
                let budget = pricer.budget - communicator_bytes(&pricer.reserve, talking) as i64;
                self.sum(mesh, shape, &mut summed);
                for zero in pricer.states(mesh.pp) {
                    let shards = Shards::new(zero, [self.layout.dense_shards(), self.layout.edp.get()]);
                    for &offload in &pricer.space.offload {
                        let point = Point {
                            realm: pricer.index,
                            key: *self.key,
                            pp: mesh.pp,
                            order: shape.order,
                            shape: index,
                            zero,
                            recompute: self.recompute,
                            offload,
                        };
                        let bound = clock.seconds[next];
                        next += 1;
                        let Some(headroom) = self.judge(point, shape, &summed, &shards, budget, tally) else {
                            continue;
                        };
                        let complexity = complexity(&point, shape, &self.layout.recompute);
                        let candidate = Candidate { point, bound, headroom, complexity };
                        kept.extend(Some(candidate).filter(|candidate| (interest.wants)(candidate)));
                    }
                }
            }
        }
    }

    fn sum(&self, mesh: Mesh, shape: &Shape, summed: &mut Vec<Summed>) {
        summed.clear();
        summed.extend(shape.stages.iter().map(|stage| {
            let terms = self.quick.terms(&stage.shape);
            let degrees = [mesh.pp, shape.order.vpp];
            let flights = in_flight_under(shape.order.schedule, degrees, mesh.microbatches, stage.index);
            Summed { running: terms.running(flights), terms }
        }));
    }

    /// Bytes left on the worst rank, and its stage among the distinct ones.
    fn worst(&self, summed: &[Summed], shards: &Shards, budget: i64, share: f64) -> (i64, usize) {
        let (mut most, mut worst) = (0, 0);
        for (i, stage) in summed.iter().enumerate() {
            let held = on_device(self.quick.state(&stage.terms, shards), share).total() + stage.running;
            if held > most {
                (most, worst) = (held, i);
            }
        }
        (budget - self.quick.reserved(most) as i64, worst)
    }

    /// Bytes left on the worst rank, when they are enough.
    fn judge(
        &self,
        point: Point,
        shape: &Shape,
        summed: &[Summed],
        shards: &Shards,
        budget: i64,
        tally: &mut Tally,
    ) -> Option<i64> {
        let space = self.pricer.space;
        let share = space.question.offload.share(point.offload);
        let (headroom, worst) = self.worst(summed, shards, budget, share);
        let missing = (space.question.headroom.0 + space.question.caution.0) as i64 - headroom;
        tally.priced += 1;
        if missing <= 0 {
            tally.fit += 1;
            return Some(headroom);
        }
        let stage = &summed[worst];
        let state = on_device(self.quick.state(&stage.terms, shards), share);
        tally.misfit[largest(&state, stage) as usize] += 1;
        tally.misfit_at[place(&shape.stages[worst], shape)] += 1;
        tally.nearer((missing, point));
        None
    }
}

fn on_device(mut state: State, share: f64) -> State {
    state.adam -= (state.adam as f64 * share) as u64;
    state
}

/// The largest line of a stage.
fn largest(state: &State, stage: &Summed) -> MemoryLine {
    let kept = stage.running - stage.terms.once + stage.terms.saved.min(stage.terms.once);
    let point = match stage.terms.highest {
        Highest::Layer | Highest::Embedding => MemoryLine::Layer,
        Highest::Loss => MemoryLine::Loss,
    };
    let lines = [
        (state.weights, MemoryLine::Weights),
        (state.gradients, MemoryLine::Gradients),
        (state.adam + state.muon, MemoryLine::Optimizer),
        (kept, MemoryLine::Activations),
        (stage.running - kept, point),
    ];
    lines.into_iter().max_by_key(|(bytes, _)| *bytes).map_or(MemoryLine::Activations, |(_, line)| line)
}

/// Where a stage stands: the only one, first, middle, last.
fn place(stage: &Stage, shape: &Shape) -> usize {
    match (stage.shape.is_first, stage.shape.is_last) {
        _ if shape.stages.len() == 1 => 0,
        (true, _) => 1,
        (false, false) => 2,
        (false, true) => 3,
    }
}
