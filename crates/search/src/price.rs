//! Memory and time of every legal layout that shares the degrees inside a layer. The probes of a
//! key are paid once; a layout is then a few sums, without allocation.

use crate::clock::Clock;
use crate::point::{Key, Offload, Order, Point};
use crate::shape::{Shape, Stage};
use crate::space::{ModeSpace, Space, degrees};
use case::Options;
use cost::{Prices, Setting, Split, Unpriced};
use layout::{Layout, Schedule, ZeroStage};
use memory::estimate::{Estimate, Estimator, Highest, KindWeights, Shards, StageShape, StageTerms, Sum};
use memory::fit::{communicator_bytes, communicators, dispatch_bytes};
use recipe::Mixer;
use replay::Unmodelled;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
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

/// A layout that may fit, with a time it cannot go below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The choices it is made of.
    pub point: Point,
    /// Seconds a sequence takes, at least.
    pub bound: f64,
    /// Bytes left on the worst rank by the sums.
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
    /// Legal, and not looked at: the search came to its limit before them.
    pub unseen: u64,
    /// Legal, and not priced, by the reason.
    pub unpriced: BTreeMap<String, u64>,
    /// The layouts that miss by least by the sums, and by how much, the nearest first.
    pub near: Vec<(i64, Point)>,
    /// Of those whose state alone is too much, the ones whose state misses by least.
    pub(crate) hopeless: Vec<(i64, Point)>,
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, other: &Tally) {
        self.priced += other.priced;
        self.fit += other.fit;
        self.bounded += other.bounded;
        self.unseen += other.unseen;
        self.misfit.iter_mut().zip(other.misfit).for_each(|(a, b)| *a += b);
        self.misfit_at.iter_mut().zip(other.misfit_at).for_each(|(a, b)| *a += b);
        for (reason, count) in &other.unpriced {
            *self.unpriced.entry(reason.clone()).or_default() += count;
        }
        other.near.iter().for_each(|(missing, point)| self.miss_by(*missing, *point));
        other.hopeless.iter().for_each(|(missing, point)| self.give_up(*missing, *point));
    }

    /// A layout whose state alone misses so many bytes.
    fn give_up(&mut self, missing: i64, point: Point) {
        // Of the same state the smallest microbatch comes first, and whatever is computed again most.
        let order =
            |(missing, point): &(i64, Point)| (*missing, point.key.micro_batch, Reverse(point.recompute), *point);
        keep_least(&mut self.hopeless, HOPELESS, (missing, point), order);
    }

    /// A layout that misses so many bytes by the sums.
    fn miss_by(&mut self, missing: i64, point: Point) {
        keep_least(&mut self.near, NEAR, (missing, point), |kept| *kept);
    }

    /// So many layouts that do not fit.
    fn miss(&mut self, (line, place): Misfit, count: u64) {
        self.priced += count;
        self.misfit[line as usize] += count;
        self.misfit_at[place] += count;
    }
}

/// Puts a layout into a sorted list that keeps the first few of an order.
fn keep_least<K: Ord>(
    list: &mut Vec<(i64, Point)>,
    most: usize,
    here: (i64, Point),
    order: impl Fn(&(i64, Point)) -> K,
) {
    let at = list.partition_point(|kept| order(kept) < order(&here));
    if at < most {
        list.insert(at, here);
        list.truncate(most);
    }
}

/// Layouts of too much state that are kept, for the nearest one to be looked for among.
const HOPELESS: usize = 256;

/// Layouts that miss by least by the sums which are kept, to be replayed where nothing fits.
pub(crate) const NEAR: usize = 8;

/// What is largest where a layout does not fit, and where its worst stage stands.
type Misfit = (MemoryLine, usize);

/// Stages that are legal for a key, with what is legal over them.
#[derive(Clone, Debug)]
pub(crate) struct Mesh {
    pub pp: u64,
    /// Which of the shapes there are for so many stages.
    shapes: Vec<usize>,
    pub states: Vec<ZeroStage>,
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
    estimator: &'a Estimator,
    setting: Result<Arc<Setting>, Unpriced>,
    /// Bytes a rank may hold in its allocator before communicators.
    budget: i64,
    reserve: hardware::Reserve,
    has_experts: bool,
    /// Whether nothing is left out for what the sums say it holds.
    trusts_no_sum: bool,
}

impl<'a> Pricer<'a> {
    /// A pricer for one mode of a space.
    pub fn new(space: &'a Space<'a>, index: usize) -> Pricer<'a> {
        let mode = &space.modes[index];
        let device = &space.question.cluster.device;
        let reserve = device.outside().reserve;
        let offload = space.question.offload.share(Offload::Device);
        let options = Options { offload, ..mode.options };
        Pricer {
            space,
            mode,
            index,
            estimator: &mode.estimator,
            setting: Setting::new(&mode.recipe, &mode.kinds, space.question.cluster, &options),
            budget: device.visible_bytes() as i64 - (reserve.context_bytes + reserve.libraries_bytes) as i64,
            reserve,
            has_experts: mode.recipe.uses(Mixer::Moe),
            trusts_no_sum: false,
        }
    }

    /// The same, which leaves all layouts to their replays: what a search must come to.
    pub fn trusting_no_sum(self) -> Pricer<'a> {
        Pricer { trusts_no_sum: true, ..self }
    }

    /// What kinds of layers weigh under a layout, whose state so many ranks share out.
    pub fn weights(&self, layout: &Layout, shards: &Shards) -> Result<KindWeights, Unmodelled> {
        self.estimator.weights(layout, shards)
    }

    /// Prices of a layer under the degrees of a layout.
    pub fn prices(&self, layout: &Layout, offload: Offload) -> Result<Prices, Unpriced> {
        Ok(self.split(layout)?.prices(&layout.recompute, self.space.question.offload.share(offload)))
    }

    fn split(&self, layout: &Layout) -> Result<Split, Unpriced> {
        self.setting.as_ref().map_err(Unpriced::clone)?.split(layout)
    }

    fn meshes(&self, key: &Key) -> Vec<Mesh> {
        let rules = &self.mode.rules;
        let meshes = self.mode.shapes.iter().filter_map(|(&pp, shapes)| {
            let dp = self.space.replicas(key, pp).filter(|dp| rules.mesh(key, pp, *dp) == 0)?;
            let microbatches = self.space.microbatches(key, dp);
            let is_legal = |shape: &usize| rules.order(pp, shapes[*shape].order, microbatches) == 0;
            let states = self.space.zero.iter().copied().filter(|zero| rules.state(pp, key.ep, *zero) == 0);
            Some(Mesh { pp, shapes: (0..shapes.len()).filter(is_legal).collect(), states: states.collect() })
        });
        meshes.collect()
    }

    pub(crate) fn shapes(&self, mesh: &Mesh) -> impl Iterator<Item = (usize, &'a Shape)> {
        let shapes = &self.mode.shapes[&mesh.pp];
        mesh.shapes.iter().map(move |index| (*index, &shapes[*index]))
    }

    /// Stages, replicas and microbatches; the order is set with each shape.
    pub(crate) fn set_mesh(&self, layout: &mut Layout, key: &Key, mesh: &Mesh) {
        self.space.set_pipeline(layout, key, mesh.pp, Order { schedule: Schedule::OneF1b, vpp: 1 });
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

    /// The same for less: no cut is looked at.
    pub fn floor(&self, key: &Key) -> f64 {
        let meshes = self.meshes(key);
        if meshes.is_empty() {
            return f64::INFINITY;
        }
        let mut layout = self.mode.template.clone();
        self.space.set_key(&mut layout, key);
        layout.recompute = self.mode.recompute[0].clone();
        let Ok(prices) = self.prices(&layout, Offload::Device) else { return 0.0 };
        let (mut clock, whole) = (Clock::default(), self.mode.kinds.count(0..self.mode.kinds.depth()));
        let floors = meshes.iter().map(|mesh| clock.floor(self, key, (mesh, &whole), &prices, &mut layout));
        floors.fold(f64::INFINITY, f64::min)
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
        let split = self.split(&layout);
        let share = self.space.question.offload.share(Offload::Device);
        let hopeless = self.hopeless(key, &meshes, &mut layout);
        let mut has_price = false;
        for recompute in (0..self.mode.recompute.len()).filter(|policy| self.mode.rules.recompute(*policy) == 0) {
            layout.recompute = self.mode.recompute[recompute].clone();
            // Whether layouts have a price is the same under all policies.
            let is_read = hopeless.is_some() && has_price;
            let read = split.as_ref().map_err(Unpriced::clone).and_then(|split| match is_read {
                true => Ok(()),
                false => clock.read(self, key, &meshes, &mut split.prices(&layout.recompute, share), &mut layout),
            });
            has_price = read.is_ok();
            if let (Ok(()), Some(all)) = (&read, &hopeless) {
                let policy = |(missing, point): &(i64, Point)| (*missing, Point { recompute, ..*point });
                tally.add(&Tally { hopeless: all.hopeless.iter().map(policy).collect(), ..all.clone() });
                continue;
            }
            let probed = read.map_err(|e| e.to_string()).and_then(|()| {
                if !(interest.reaches)(clock.least()) {
                    return Ok(None);
                }
                Ok(Some(self.estimator.under(&layout).map_err(|e| named_reason(&e))?))
            });
            match probed {
                Ok(Some(estimate)) => {
                    let run = Run { pricer: self, key, recompute, estimate: &estimate, layout: &mut layout };
                    run.judge_all(&meshes, &clock, interest, &mut tally, &mut kept);
                }
                Ok(None) => tally.bounded += clock.seconds.len() as u64,
                Err(reason) => *tally.unpriced.entry(reason).or_default() += self.count(&meshes),
            }
        }
        (tally, kept)
    }

    /// What becomes of the layouts of a key under one recompute policy, where state alone is too much for all.
    fn hopeless(&self, key: &Key, meshes: &[Mesh], layout: &mut Layout) -> Option<Tally> {
        let estimate = self.estimator.state(layout).filter(|_| !self.trusts_no_sum)?;
        let mut tally = Tally::default();
        let (mut terms, mut sums) = (Vec::new(), Vec::new());
        for mesh in meshes {
            self.set_mesh(layout, key, mesh);
            let budget = self.budget(layout);
            let mut schedules: Vec<Schedule> = Vec::new();
            for (index, shape) in self.shapes(mesh) {
                let schedule = shape.order.schedule;
                if schedules.contains(&schedule) {
                    continue;
                }
                schedules.push(schedule);
                let alike = self.shapes(mesh).filter(|(_, shape)| shape.order.schedule == schedule).count() as u64;
                degrees(layout, mesh.pp, shape.order);
                let run = Run { pricer: self, key, recompute: 0, estimate: &estimate, layout };
                run.terms(shape, &mut terms);
                let cut = self.point(key, 0, mesh.pp, (index, shape.order));
                for &zero in &mesh.states {
                    run.layout.zero = zero;
                    for &offload in self.space.offload_under(zero) {
                        run.sum(shape, &terms, self.space.question.offload.share(offload), &mut sums).ok()?;
                        let missing = run.least_missing(shape, &sums, budget);
                        if missing <= 0 {
                            return None;
                        }
                        tally.miss(misfit(shape, &sums, worst(&sums, budget).1), alike);
                        tally.give_up(missing, Point { zero, offload, ..cut });
                    }
                }
            }
        }
        Some(tally)
    }

    /// Whether the state of all stages together has room on one rank of each, under some legal layout of a key; yes where
    /// no estimate of it exists.
    pub fn may_hold(&self, key: &Key) -> bool {
        let shape = StageShape::new(&self.mode.kinds, 0..self.mode.kinds.depth(), true, true);
        let mut layout = self.mode.template.clone();
        self.space.set_key(&mut layout, key);
        let rules = &self.mode.rules;
        self.mode.orders.keys().any(|&pp| {
            if self.space.replicas(key, pp).is_none_or(|dp| rules.mesh(key, pp, dp) != 0) {
                return false;
            }
            self.space.set_pipeline(&mut layout, key, pp, Order { schedule: Schedule::OneF1b, vpp: 1 });
            let mut states = self.space.zero.iter().filter(|zero| rules.state(pp, key.ep, **zero) == 0);
            states.any(|&zero| {
                layout.zero = zero;
                let Some(estimate) = self.estimator.state(&layout) else { return true };
                let (terms, room) = (estimate.terms(&shape), self.room(&layout));
                self.space.offload_under(zero).iter().any(|&offload| {
                    let share = self.space.question.offload.share(offload);
                    let sum = estimate.sum(&layout, 0, &shape, &terms, share);
                    sum.map_or(true, |sum| over_stages(sum.state.total(), pp) <= room)
                })
            })
        })
    }

    /// Bytes that a rank's allocator may hold with what is to be left free.
    fn room(&self, layout: &Layout) -> i64 {
        self.budget(layout) - self.space.question.headroom.0 as i64
    }

    /// Whether what a layout holds may take replays of its own to say.
    pub fn is_dear(&self) -> bool {
        self.estimator.is_dear()
    }

    /// Operations that short replays took so far, for this search and those before it.
    pub fn walked(&self) -> u64 {
        self.estimator.walked()
    }

    /// Every layout of a key that has a price, with the seconds a sequence takes at least; those that have
    /// none are counted by the reason.
    pub fn bounds(&self, key: &Key) -> (Tally, Vec<(f64, Point)>) {
        let (mut tally, mut found) = (Tally::default(), Vec::new());
        let meshes = self.meshes(key);
        let mut layout = self.mode.template.clone();
        self.space.set_key(&mut layout, key);
        let mut clock = Clock::default();
        let split = self.split(&layout);
        let share = self.space.question.offload.share(Offload::Device);
        for recompute in (0..self.mode.recompute.len()).filter(|policy| self.mode.rules.recompute(*policy) == 0) {
            layout.recompute = self.mode.recompute[recompute].clone();
            let read = split.as_ref().map_err(Unpriced::clone).and_then(|split| {
                clock.read(self, key, &meshes, &mut split.prices(&layout.recompute, share), &mut layout)
            });
            if let Err(reason) = read {
                *tally.unpriced.entry(reason.to_string()).or_default() += self.count(&meshes);
                continue;
            }
            for (point, bound) in self.points(key, &meshes, recompute).into_iter().zip(&clock.seconds) {
                degrees(&mut layout, point.pp, point.order);
                layout.zero = point.zero;
                let refused = self.estimator.refuse(&layout).err().map(|reason| named_reason(&reason));
                match self.unmet(&layout).or(refused) {
                    None => found.push((*bound, point)),
                    Some(reason) => *tally.unpriced.entry(reason).or_default() += 1,
                }
            }
        }
        (tally, found)
    }

    /// The layouts of a key and policy in the order of the clock.
    fn points(&self, key: &Key, meshes: &[Mesh], recompute: usize) -> Vec<Point> {
        let mut points = Vec::new();
        for mesh in meshes {
            for (shape, Shape { order, .. }) in self.shapes(mesh) {
                let cut = self.point(key, recompute, mesh.pp, (shape, *order));
                for &zero in &mesh.states {
                    points.extend(self.space.offload_under(zero).iter().map(|&offload| Point { zero, offload, ..cut }));
                }
            }
        }
        points
    }

    /// A layout of one of a mesh's shapes, its state whole and on the device.
    fn point(&self, key: &Key, recompute: usize, pp: u64, (shape, order): (usize, Order)) -> Point {
        let (zero, offload) = (ZeroStage::Zero, Offload::Device);
        Point { mode: self.index, key: *key, pp, order, shape, zero, recompute, offload }
    }

    /// What becomes of a layout whose state alone is too much; none where the rest has to be priced.
    pub fn too_large(&self, point: &Point) -> Option<Tally> {
        let (mut layout, shape) = (self.space.layout(point), self.space.shape(point));
        let (estimate, budget) = (self.estimator.state(&layout)?, self.budget(&layout));
        let run = self.run_of(point, &estimate, &mut layout);
        let (mut terms, mut sums) = (Vec::new(), Vec::new());
        let share = self.space.question.offload.share(point.offload);
        run.terms(shape, &mut terms);
        run.sum(shape, &terms, share, &mut sums).ok()?;
        let mut tally = Tally::default();
        if run.judge(*point, shape, &sums, budget, &mut tally).is_some() {
            return None;
        }
        for (missing, point) in std::mem::take(&mut tally.near) {
            tally.give_up(missing, point);
        }
        // What has no price is named, however large.
        let is_replayed =
            |stage: &Stage| self.estimator.refuse_stage(&layout, stage.index, &stage.shape, share).is_ok();
        shape.stages.iter().all(is_replayed).then_some(tally)
    }

    /// Whether pricing a layout takes no short replay that is not done.
    pub fn is_known(&self, point: &Point) -> bool {
        let (layout, shape) = (self.space.layout(point), self.space.shape(point));
        let share = self.space.question.offload.share(point.offload);
        shape.stages.iter().all(|stage| self.estimator.is_known(&layout, stage.index, &stage.shape, share))
    }

    /// Prices one layout; it is handed back where it fits.
    pub fn price_one(&self, bound: f64, point: Point) -> (Tally, Option<Candidate>) {
        let mut tally = Tally::default();
        let (mut layout, shape) = (self.space.layout(&point), self.space.shape(&point));
        let budget = self.budget(&layout);
        let sums = self.estimator.under(&layout).and_then(|estimate| {
            let run = self.run_of(&point, &estimate, &mut layout);
            let (mut terms, mut sums) = (Vec::new(), Vec::new());
            run.terms(shape, &mut terms);
            run.sum(shape, &terms, self.space.question.offload.share(point.offload), &mut sums)?;
            Ok(run.judge(point, shape, &sums, budget, &mut tally))
        });
        let headroom = sums.unwrap_or_else(|reason| {
            *tally.unpriced.entry(named_reason(&reason)).or_default() += 1;
            None
        });
        let complexity = self.space.complexity(&point);
        (tally, headroom.map(|headroom| Candidate { point, bound, headroom, complexity }))
    }

    fn run_of<'r>(&'r self, point: &'r Point, estimate: &'r Estimate<'r>, layout: &'r mut Layout) -> Run<'r, 'a> {
        Run { pricer: self, key: &point.key, recompute: point.recompute, estimate, layout }
    }

    /// What the engine asks of the job's options under a layout and does not get.
    fn unmet(&self, layout: &Layout) -> Option<String> {
        let unmet = case::unmet(&self.mode.recipe, layout, &self.mode.options, Some(self.space.question.cluster));
        unmet.into_iter().next().map(|finding| format!("{}: {}", finding.rule, finding.message))
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
            && self.unmet(&self.space.layout(point)).is_none()
    }

    /// Bytes left on the worst rank of a legal point by the sums, and that rank's stage; none when nothing prices it.
    pub fn headroom(&self, point: &Point) -> Option<(i64, usize)> {
        let mut layout = self.space.layout(point);
        let shape = self.space.shape(point);
        let estimate = self.estimator.under(&layout).ok()?;
        let budget = self.budget(&layout);
        let run = self.run_of(point, &estimate, &mut layout);
        let (mut terms, mut sums) = (Vec::new(), Vec::new());
        run.terms(shape, &mut terms);
        run.sum(shape, &terms, self.space.question.offload.share(point.offload), &mut sums).ok()?;
        let (headroom, worst) = worst(&sums, budget);
        Some((headroom, shape.stages[worst].index as usize))
    }

    /// Bytes a rank of a layout may hold in its allocator.
    fn budget(&self, layout: &Layout) -> i64 {
        let talking = communicators(layout, self.has_experts).len() as u64;
        let dispatch = dispatch_bytes(&self.mode.recipe, layout, &self.mode.options);
        self.budget - (communicator_bytes(&self.reserve, talking) + dispatch) as i64
    }

    /// Layouts of one recompute policy.
    fn count(&self, meshes: &[Mesh]) -> u64 {
        let of = |mesh: &Mesh| mesh.shapes.len() * self.space.states(&mesh.states);
        meshes.iter().map(|mesh| of(mesh) as u64).sum()
    }
}

/// Layouts of one key, policy and number of stages among which only the cut and its chunks differ.
type Hopeless = (Schedule, ZeroStage, Offload);

/// One recompute policy of one key.
struct Run<'r, 'a> {
    pricer: &'r Pricer<'a>,
    key: &'r Key,
    recompute: usize,
    estimate: &'r Estimate<'r>,
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
        let (mut terms, mut sums): (Vec<StageTerms>, Vec<Sum>) = (Vec::new(), Vec::new());
        for mesh in meshes {
            pricer.set_mesh(self.layout, self.key, mesh);
            let budget = pricer.budget(self.layout);
            let mut hopeless: Vec<(Hopeless, Misfit, i64)> = Vec::new();
            for (index, shape) in pricer.shapes(mesh) {
                degrees(self.layout, mesh.pp, shape.order);
                terms.clear();
                let cut = pricer.point(self.key, self.recompute, mesh.pp, (index, shape.order));
                for &zero in &mesh.states {
                    self.layout.zero = zero;
                    let offloads = pricer.space.offload_under(zero);
                    if let Some(why) = pricer.unmet(self.layout) {
                        *tally.unpriced.entry(why).or_default() += offloads.len() as u64;
                        next += offloads.len();
                        continue;
                    }
                    for &offload in offloads {
                        let class = (shape.order.schedule, zero, offload);
                        let point = Point { zero, offload, ..cut };
                        if let Some((_, why, missing)) = hopeless.iter().find(|(known, ..)| *known == class) {
                            tally.miss(*why, 1);
                            tally.give_up(*missing, point);
                            next += 1;
                            continue;
                        }
                        if terms.is_empty() {
                            self.terms(shape, &mut terms);
                        }
                        let bound = clock.seconds[next];
                        next += 1;
                        let share = pricer.space.question.offload.share(offload);
                        if let Err(reason) = self.sum(shape, &terms, share, &mut sums) {
                            *tally.unpriced.entry(named_reason(&reason)).or_default() += 1;
                            continue;
                        }
                        let Some(headroom) = self.judge(point, shape, &sums, budget, tally) else {
                            let missing = self.least_missing(shape, &sums, budget);
                            if missing > 0 {
                                hopeless.push((class, misfit(shape, &sums, worst(&sums, budget).1), missing));
                            }
                            continue;
                        };
                        let complexity = pricer.space.complexity(&point);
                        let candidate = Candidate { point, bound, headroom, complexity };
                        kept.extend(Some(candidate).filter(|candidate| (interest.wants)(candidate)));
                    }
                }
            }
        }
    }

    /// Bytes that even an equal share of all stages' state is over what a rank has: above none, no cut of the depth
    /// fits.
    fn least_missing(&self, shape: &Shape, sums: &[Sum], budget: i64) -> i64 {
        let state: u64 = shape.stage_of.iter().map(|kind| sums[*kind].state.total()).sum();
        let share = over_stages(state, shape.stage_of.len() as u64);
        share - (budget - self.pricer.space.question.headroom.0 as i64)
    }

    /// What distinct stages hold whatever ZeRO does.
    fn terms(&self, shape: &Shape, terms: &mut Vec<StageTerms>) {
        terms.clear();
        terms.extend(shape.stages.iter().map(|stage| self.estimate.terms(&stage.shape)));
    }

    /// What distinct stages hold under the layout, with a share of optimizer state on the host.
    fn sum(&self, shape: &Shape, terms: &[StageTerms], share: f64, sums: &mut Vec<Sum>) -> Result<(), Unmodelled> {
        sums.clear();
        for (stage, terms) in shape.stages.iter().zip(terms) {
            sums.push(self.estimate.sum(self.layout, stage.index, &stage.shape, terms, share)?);
        }
        Ok(())
    }

    /// Bytes left on the worst rank by the sums; none where even what it holds at least is too much.
    fn judge(&self, point: Point, shape: &Shape, sums: &[Sum], budget: i64, tally: &mut Tally) -> Option<i64> {
        let asked = self.pricer.space.question.headroom.0 as i64;
        let (headroom, worst) = worst(sums, budget);
        if headroom >= asked {
            tally.priced += 1;
            tally.fit += 1;
            return Some(headroom);
        }
        tally.miss(misfit(shape, sums, worst), 1);
        tally.miss_by(asked - headroom, point);
        let least = sums.iter().map(|sum| sum.least(self.layout)).max().unwrap_or(0);
        (self.pricer.trusts_no_sum || budget - least as i64 >= asked).then_some(headroom)
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

/// An equal share of the state of all stages: some stage holds as much, however the depth is cut. Two in a hundred are
/// left to what differs between cuts, such as padding.
fn over_stages(state: u64, stages: u64) -> i64 {
    let share = (state / stages) as i64;
    share - share / 50
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

/// Why a layout does not fit whose worst stage is this one of the distinct ones.
fn misfit(shape: &Shape, sums: &[Sum], worst: usize) -> Misfit {
    (largest(&sums[worst]), place(&shape.stages[worst], shape))
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
