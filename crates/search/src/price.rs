//! Memory and time of every legal layout that shares the degrees inside a layer. The probes of a
//! key are paid once; a layout is then a few sums, without allocation.

use crate::clock::Clock;
use crate::point::{Key, Offload, Point};
use crate::shape::{Shape, Stage};
use crate::simplicity::complexity;
use crate::space::{ModeSpace, Space};
use case::Options;
use cost::Prices;
use layout::{Layout, ZeroStage};
use ledger::Ledger;
use memory::fit::{communicator_bytes, communicators};
use memory::quick::{
    Extrapolated, Flow, Highest, KindWeights, Probes, Quick, Shards, StageTerms, Sum, in_flight_under,
};
use recipe::Mixer;
use replay::Unmodelled;
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
    /// The choices it is made of.
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
pub(crate) struct Mesh {
    pub pp: u64,
    microbatches: u64,
}

/// What a search still wants to know of.
pub struct Interest<'a> {
    /// Whether layouts that take at least so long a sequence are of interest.
    pub reaches: &'a (dyn Fn(f64) -> bool + Sync),
    /// Whether a layout that fits is.
    pub wants: &'a (dyn Fn(&Candidate) -> bool + Sync),
}

/// Prices the keys of one mode.
pub struct Pricer<'a> {
    pub(crate) space: &'a Space<'a>,
    mode: &'a ModeSpace,
    index: usize,
    memory: Memory<'a>,
    /// Bytes a rank may hold in its allocator before communicators.
    budget: i64,
    reserve: hardware::Reserve,
    has_experts: bool,
}

/// What sums the memory of a mode's layouts.
enum Memory<'a> {
    /// Megatron's, from probes that all ZeRO stages and pipelines of a key share.
    Probed(Probes<'a>),
    /// Another engine's, from short replays of its own ledger.
    Extrapolated(Extrapolated),
}

/// The same under one key and recompute policy.
enum Summing<'r> {
    Probed(Box<Quick>),
    Extrapolated(&'r Extrapolated),
}

impl<'a> Pricer<'a> {
    /// A pricer for one mode of a space.
    pub fn new(space: &'a Space<'a>, index: usize) -> Pricer<'a> {
        let mode = &space.modes[index];
        let device = &space.question.cluster.device;
        let reserve = device.outside().reserve;
        Pricer {
            space,
            mode,
            index,
            memory: match &mode.ledger {
                Ledger::Megatron(options) => Memory::Probed(Probes::new(&mode.recipe, options)),
                _ => Memory::Extrapolated(Extrapolated::new(&mode.recipe, &space.question.options)),
            },
            budget: device.visible_bytes() as i64 - (reserve.context_bytes + reserve.libraries_bytes) as i64,
            reserve,
            has_experts: mode.recipe.uses(Mixer::Moe),
        }
    }

    /// What kinds of layers weigh under a layout, whose state so many ranks share out.
    pub fn weights(&self, layout: &Layout, shards: &Shards) -> Result<KindWeights, Unmodelled> {
        match &self.memory {
            Memory::Probed(probes) => Ok(probes.quick(layout)?.weights(shards)),
            Memory::Extrapolated(extrapolated) => extrapolated.weights(layout),
        }
    }

    fn summing(&self, layout: &Layout) -> Result<Summing<'_>, Unmodelled> {
        match &self.memory {
            Memory::Probed(probes) => Ok(Summing::Probed(Box::new(probes.quick(layout)?))),
            Memory::Extrapolated(extrapolated) => Ok(Summing::Extrapolated(extrapolated)),
        }
    }

    /// Prices of a layer under a key.
    pub fn prices(&self, layout: &Layout, offload: Offload) -> Result<Prices, cost::Unpriced> {
        let share = self.space.question.offload.share(offload);
        let options = Options { offload: share, ..self.space.question.options };
        Prices::new(&self.mode.recipe, layout, self.space.question.cluster, &options)
    }

    fn meshes(&self, key: &Key) -> Vec<Mesh> {
        let meshes = self.mode.shapes.keys().filter_map(|&pp| {
            let dp = self.space.replicas(key, pp)?;
            let mesh = Mesh { pp, microbatches: self.space.microbatches(key, dp) };
            (self.mode.rules.mesh(key, pp, dp) == 0).then_some(mesh)
        });
        meshes.collect()
    }

    pub(crate) fn shapes(&self, mesh: Mesh) -> impl Iterator<Item = (usize, &'a Shape)> + '_ {
        let shapes = self.mode.shapes[&mesh.pp].iter().enumerate();
        shapes.filter(move |(_, shape)| self.mode.rules.order(mesh.pp, shape.order, mesh.microbatches) == 0)
    }

    /// Seconds a sequence takes at least, over all layouts of a key: recompute only adds to it.
    pub fn least(&self, key: &Key) -> f64 {
        let meshes = self.meshes(key);
        if meshes.is_empty() {
            return f64::INFINITY;
        }
        let mut layout = self.mode.template.clone();
        self.space.set_key(&mut layout, key);
        layout.recompute = self.mode.recompute[0].clone();
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
        let mut layout = self.mode.template.clone();
        self.space.set_key(&mut layout, key);
        let mut clock = Clock::default();
        for recompute in (0..self.mode.recompute.len()).filter(|policy| self.mode.rules.recompute(*policy) == 0) {
            layout.recompute = self.mode.recompute[recompute].clone();
            let read = self
                .prices(&layout, Offload::Device)
                .and_then(|mut prices| clock.read(self, key, &meshes, &mut prices, &mut layout));
            let probed = read.map_err(|e| e.to_string()).and_then(|()| {
                if !(interest.reaches)(clock.least()) {
                    return Ok(None);
                }
                Ok(Some(self.summing(&layout).map_err(|e| named_reason(&e))?))
            });
            match probed {
                Ok(Some(summing)) => {
                    let run = Run { pricer: self, key, recompute, summing: &summing, layout: &mut layout };
                    run.judge_all(&meshes, &clock, interest, &mut tally, &mut kept);
                }
                Ok(None) => tally.bounded += clock.seconds.len() as u64,
                Err(reason) => *tally.unpriced.entry(reason).or_default() += self.count(key, &meshes),
            }
        }
        (tally, kept)
    }

    /// Whether no rule refuses a point, whose degrees must divide the world.
    pub fn is_legal(&self, point: &Point) -> bool {
        let Some(dp) = self.space.replicas(&point.key, point.pp) else { return false };
        let microbatches = self.space.microbatches(&point.key, dp);
        let rules = &self.mode.rules;
        let order = self.space.shape(point).order;
        rules.mesh(&point.key, point.pp, dp)
            | rules.order(point.pp, order, microbatches)
            | rules.state(point.pp, point.key.ep, point.zero)
            | rules.recompute(point.recompute)
            == 0
    }

    /// Bytes left on the worst rank of a legal point, by the quick sum; none when it has none.
    pub fn headroom(&self, point: &Point) -> Option<i64> {
        let mut layout = self.space.layout(point);
        let shape = self.space.shape(point);
        let summing = self.summing(&layout).ok()?;
        let talking = communicators(&layout, self.has_experts).len() as u64;
        let budget = self.budget - communicator_bytes(&self.reserve, talking) as i64;
        let (key, recompute) = (&point.key, point.recompute);
        let run = Run { pricer: self, key, recompute, summing: &summing, layout: &mut layout };
        let (terms, mut sums) = (run.terms(shape), Vec::new());
        run.sum(shape, &terms, self.space.question.offload.share(point.offload), &mut sums).ok()?;
        Some(worst(&sums, budget).0)
    }

    /// Layouts of one recompute policy.
    fn count(&self, key: &Key, meshes: &[Mesh]) -> u64 {
        let states = |mesh: &Mesh| self.states(key, mesh.pp).count() as u64 * self.space.offload.len() as u64;
        meshes.iter().map(|mesh| self.shapes(*mesh).count() as u64 * states(mesh)).sum()
    }

    pub(crate) fn states(&self, key: &Key, pp: u64) -> impl Iterator<Item = ZeroStage> + '_ {
        let ep = key.ep;
        self.space.zero.iter().copied().filter(move |zero| self.mode.rules.state(pp, ep, *zero) == 0)
    }
}

/// One recompute policy of one key.
struct Run<'r, 'a> {
    pricer: &'r Pricer<'a>,
    key: &'r Key,
    recompute: usize,
    summing: &'r Summing<'r>,
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
        let mut sums: Vec<Sum> = Vec::new();
        for &mesh in meshes {
            for (index, shape) in pricer.shapes(mesh) {
                pricer.space.set_pipeline(self.layout, self.key, mesh.pp, shape.order);
                let talking = communicators(self.layout, pricer.has_experts).len() as u64;
                let budget = pricer.budget - communicator_bytes(&pricer.reserve, talking) as i64;
                let terms = self.terms(shape);
                for zero in pricer.states(self.key, mesh.pp) {
                    self.layout.zero = zero;
                    for &offload in &pricer.space.offload {
                        let point = Point {
                            mode: pricer.index,
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
                        let share = pricer.space.question.offload.share(offload);
                        if let Err(reason) = self.sum(shape, &terms, share, &mut sums) {
                            *tally.unpriced.entry(named_reason(&reason)).or_default() += 1;
                            continue;
                        }
                        let Some(headroom) = self.judge(point, shape, &sums, budget, tally) else { continue };
                        let complexity = complexity(&point, shape, &self.layout.recompute);
                        let candidate = Candidate { point, bound, headroom, complexity };
                        kept.extend(Some(candidate).filter(|candidate| (interest.wants)(candidate)));
                    }
                }
            }
        }
    }

    /// What distinct stages hold whatever ZeRO does, where that is known apart.
    fn terms(&self, shape: &Shape) -> Vec<StageTerms> {
        match self.summing {
            Summing::Probed(quick) => shape.stages.iter().map(|stage| quick.terms(&stage.shape)).collect(),
            Summing::Extrapolated(_) => Vec::new(),
        }
    }

    /// What distinct stages hold under the layout, with a share of optimizer state on the host.
    fn sum(&self, shape: &Shape, terms: &[StageTerms], share: f64, sums: &mut Vec<Sum>) -> Result<(), Unmodelled> {
        sums.clear();
        let layout = &*self.layout;
        match self.summing {
            Summing::Probed(quick) => {
                let shards = Shards::new(layout.zero, [layout.dense_shards(), layout.edp.get()]);
                let (degrees, count) = ([layout.pp.get(), layout.vpp.get()], layout.microbatches);
                sums.extend(shape.stages.iter().zip(terms).map(|(stage, terms)| {
                    let in_flight = in_flight_under(layout.schedule, degrees, count, stage.index);
                    let flow = Flow { in_flight, microbatches: count, chunks: degrees[1] };
                    quick.sum(terms, layout.zero, &shards, &flow).less_host(share)
                }));
            }
            Summing::Extrapolated(extrapolated) => {
                for stage in &shape.stages {
                    sums.push(extrapolated.stage(layout, &stage.shape, stage.index, share)?);
                }
            }
        }
        Ok(())
    }

    /// Bytes left on the worst rank, when they are enough.
    fn judge(&self, point: Point, shape: &Shape, sums: &[Sum], budget: i64, tally: &mut Tally) -> Option<i64> {
        let space = self.pricer.space;
        let (headroom, worst) = worst(sums, budget);
        let missing = (space.question.headroom.0 + space.question.caution.0) as i64 - headroom;
        tally.priced += 1;
        if missing <= 0 {
            tally.fit += 1;
            return Some(headroom);
        }
        tally.misfit[largest(&sums[worst]) as usize] += 1;
        tally.misfit_at[place(&shape.stages[worst], shape)] += 1;
        tally.nearer((missing, point));
        None
    }
}

/// Bytes left on the worst rank, and its stage among the distinct ones.
fn worst(sums: &[Sum], budget: i64) -> (i64, usize) {
    let (mut most, mut worst) = (0, 0);
    for (i, sum) in sums.iter().enumerate() {
        if sum.reserved() > most {
            (most, worst) = (sum.reserved(), i);
        }
    }
    (budget - most as i64, worst)
}

/// Why something has no price, in a line.
fn named_reason(reason: &Unmodelled) -> String {
    format!("{}: {}", reason.what, reason.why)
}

/// The largest line of a stage.
fn largest(sum: &Sum) -> MemoryLine {
    let point = match sum.highest {
        Highest::Layer | Highest::Embedding => MemoryLine::Layer,
        Highest::Loss => MemoryLine::Loss,
    };
    let lines = [
        (sum.state.weights, MemoryLine::Weights),
        (sum.state.gradients, MemoryLine::Gradients),
        (sum.state.adam + sum.state.muon, MemoryLine::Optimizer),
        (sum.kept, MemoryLine::Activations),
        (sum.above, point),
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
