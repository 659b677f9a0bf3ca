//! The search over pools of unlike devices: every number of stages that lie whole on a pool, every legal set of degrees
//! inside them, and for each the cut that makes the slowest stage fastest, each stage timed and filled by its own
//! devices. Stages hold one chunk: what interleaves is not looked at.

mod cut;

use crate::answer::LEAST_GAIN;
use crate::point::{Key, Offload, Order};
use crate::predicted::OF_A_STATE;
use crate::question::Question;
use crate::space::{ModeSpace, Space};
use case::{Case, Options, Pooled, Terms, stages_of};
use cost::{PooledPrices, Setting, Split, Step};
use cut::Weights;
use diag::{Blame, Finding};
use hardware::{Cluster, Way};
use layout::{Layout, Recompute, Schedule, StagePlan, ZeroStage};
use memory::estimate::{Estimate, StageShape};
use memory::fit::{PooledFit, Verdict, dispatch_bytes, outside};
use rayon::prelude::*;
use recipe::Mixer;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use units::Bytes;

/// A job over pools with everything that is shown of it.
pub struct PooledChoice {
    /// The job.
    pub job: Pooled,
    /// Its time.
    pub step: Step,
    /// Its memory, replayed.
    pub fit: PooledFit,
    /// Seconds of an activation from each pool to the next.
    pub between: Vec<f64>,
}

impl PooledChoice {
    /// Seconds a sequence, by which layouts of other batches compare.
    pub fn per_sequence(&self) -> f64 {
        self.step.seconds / self.job.first().layout.global_batch as f64
    }
}

/// What a search over pools came to.
pub struct PooledAnswer {
    /// The fastest that the replay confirms; none when nothing fits.
    pub best: Option<PooledChoice>,
    /// Of the best one's time, how much less something may take that was not looked at; nothing where it is proved that
    /// nothing does.
    pub unproved: f64,
    /// Whether the search came to its limit.
    pub is_cut_short: bool,
    /// Legal layouts over these pools.
    pub legal: u64,
    /// Of them, those whose memory was summed.
    pub priced: u64,
    /// Of those, the ones that have a cut that fits.
    pub fit: u64,
    /// Better by the sums, and refused by the replay.
    pub refuted: u64,
}

/// Layouts handled together; between batches bounds are tightened.
const BATCH: usize = 16;

/// How often the sums of a layout are asked to be more careful, when the replay refuses its cut.
const ROUNDS: usize = 3;

/// Of what a search may take, the share that replays may: pools are asked for in every order.
const SHARE: u64 = 4;

/// Replays beyond that share, as long as nothing passes.
const TRIES: usize = 4;

/// Keys whose prices are kept for the next layout of theirs.
const SPLITS: usize = 512;

/// What a cut of a layout takes: sums of stages until each has what it has room for.
const OF_A_CUT: u64 = 100_000;

/// One legal layout over the pools, before it is cut.
#[derive(Clone)]
struct Candidate {
    mode: usize,
    key: Key,
    order: Order,
    pp: u64,
    zero: ZeroStage,
    recompute: usize,
    offload: Offload,
    /// Seconds a sequence takes at least.
    bound: f64,
    /// Bytes that its replays found beyond the sums, and how often.
    caution: (u64, usize),
}

/// A layout that fits by the sums.
struct Timed {
    candidate: Candidate,
    layout: Layout,
    per_sequence: f64,
}

/// Everything a search over pools looks at.
struct Pools<'a> {
    space: Space<'a>,
    pools: &'a [Cluster],
    headroom: &'a [Bytes],
    /// By mode, then by pool.
    settings: Vec<Vec<Arc<Setting>>>,
    /// Where AdamW's state may live.
    offload: Vec<Offload>,
    /// By mode and key.
    known: Mutex<HashMap<(usize, Key), Arc<Splits>>>,
}

/// Prices of a key by pool, before it is said what is computed again.
type Splits = Vec<Split>;

/// The fastest job over pools in this order. `question` has a world of the first pool's devices and is asked in the
/// text of the pools; `headroom` is what to leave free on each pool's.
pub fn over_pools(question: Question, pools: &[Cluster], headroom: &[Bytes]) -> Result<PooledAnswer, Vec<Finding>> {
    let one = |finding: Finding| vec![finding];
    refuse_order(&question).map_err(one)?;
    let space = Space::new(question)?;
    if space.modes.iter().any(|mode| mode.estimator.is_dear()) {
        let engine = question.pinned.engine.map_or("this engine", |engine| engine.name());
        let message =
            format!("{engine} is not searched over pools: what the stages of a cut hold is summed for megatron alone");
        let hint = "`fit` prices one layout of it over pools, with --pp and --boundaries, where it has a pipeline";
        return Err(one(Finding::error("pools/engine", Blame::Engine, engine, message).hint(hint)));
    }
    let options = Options { offload: question.offload.share(Offload::Device), ..question.options };
    let mut settings = Vec::new();
    for mode in &space.modes {
        let of = |pool: &Cluster| {
            let cluster = pool.of_world(space.world).unwrap_or_else(|| pool.clone());
            Setting::new(&mode.recipe, &mode.kinds, &cluster, &options)
        };
        let all: Result<Vec<_>, _> = pools.iter().map(of).collect();
        settings.push(all.map_err(|reason| {
            let finding = Finding::error("plan/unpriced", Blame::Environment, reason.what.clone(), reason.to_string());
            one(finding.hint("docs/hardware.md says how to add what is missing"))
        })?);
    }
    let has_host = pools.iter().all(|pool| pool.device.link(Way::Host).is_ok());
    let offload = if has_host { space.offload.clone() } else { vec![Offload::Device] };
    Pools { space, pools, headroom, settings, offload, known: Mutex::default() }.search()
}

/// Typed orders that are not looked at.
fn refuse_order(question: &Question) -> Result<(), Finding> {
    let pinned = question.pinned;
    let is_along = |schedule: &Schedule| matches!(schedule, Schedule::OneF1b | Schedule::GPipe | Schedule::ZbH1);
    if pinned.vpp.is_none_or(|vpp| vpp == 1) && pinned.schedule.as_ref().is_none_or(is_along) {
        return Ok(());
    }
    let message = "over pools a stage holds one chunk: several would each go through every pool";
    let hint = "leave --vpp out, and --schedule or take 1f1b; `fit` prices one layout that interleaves";
    Err(Finding::error("pools/schedule", Blame::Usage, "schedule", message).hint(hint))
}

impl Pools<'_> {
    fn search(&self) -> Result<PooledAnswer, Vec<Finding>> {
        let mut all: Vec<Candidate> = Vec::new();
        for (index, mode) in self.space.modes.iter().enumerate() {
            let found: Vec<Vec<Candidate>> =
                mode.keys.par_iter().map(|key| self.candidates(index, mode, key)).collect();
            all.extend(found.into_iter().flatten());
        }
        all.sort_by(|a, b| a.bound.total_cmp(&b.bound).then((a.mode, a.pp, a.key).cmp(&(b.mode, b.pp, b.key))));
        let mut queue = Queue { pools: self, all: &all, next: 0, timed: Vec::new(), left: self.allowed() };
        let none = PooledAnswer {
            best: None,
            unproved: 0.0,
            is_cut_short: false,
            legal: all.len() as u64,
            priced: 0,
            fit: 0,
            refuted: 0,
        };
        queue.run(none)
    }

    fn allowed(&self) -> u64 {
        self.space.question.limit.operations / SHARE
    }

    /// Legal layouts of a key, with what each takes at least.
    fn candidates(&self, index: usize, mode: &ModeSpace, key: &Key) -> Vec<Candidate> {
        let mut found = Vec::new();
        let meshes = self.meshes(mode, key);
        if meshes.is_empty() {
            return found;
        }
        let Ok(splits) = self.splits(index, key, &self.layout(mode, key, meshes[0].0, meshes[0].1, &mode.recompute[0]))
        else {
            return found;
        };
        for recompute in (0..mode.recompute.len()).filter(|policy| mode.rules.recompute(*policy) == 0) {
            for &(pp, order) in &meshes {
                let layout = self.layout(mode, key, pp, order, &mode.recompute[recompute]);
                let weights = Weights::new(mode, &self.prices(&splits, &layout, Offload::Device), pp as usize);
                let starts =
                    self.typed_cut().unwrap_or_else(|| weights.cut(|_, _| mode.recipe.depth()).unwrap_or_default());
                if starts.len() != pp as usize {
                    continue;
                }
                let bound = weights.slowest(&starts) * layout.microbatches as f64 / layout.global_batch as f64;
                for &zero in self.space.zero.iter().filter(|zero| mode.rules.state(pp, key.ep, **zero) == 0) {
                    let offloads =
                        self.space.offload_under(zero).iter().filter(|offload| self.offload.contains(offload));
                    found.extend(offloads.map(|&offload| Candidate {
                        mode: index,
                        key: *key,
                        order,
                        pp,
                        zero,
                        recompute,
                        offload,
                        bound,
                        caution: (0, 0),
                    }));
                }
            }
        }
        found
    }

    /// Numbers of stages that lie whole on the pools and are legal, each in the order that is looked at.
    fn meshes(&self, mode: &ModeSpace, key: &Key) -> Vec<(u64, Order)> {
        let (space, sizes) = (&self.space, self.pools.iter().map(Cluster::devices).collect::<Vec<_>>());
        let mut found = Vec::new();
        for (&pp, orders) in &mode.orders {
            let is_whole = pp > 1 && space.world.is_multiple_of(pp) && stages_of(&sizes, space.world / pp).is_some();
            let legal = |dp: &u64| mode.rules.mesh(key, pp, *dp) == 0;
            let Some(dp) = space.replicas(key, pp).filter(|dp| is_whole && legal(dp)) else { continue };
            if mode.recipe.depth() < pp as usize {
                continue;
            }
            let is_asked = |order: &&Order| {
                let typed = space.question.pinned.schedule;
                order.vpp == 1 && order.schedule == typed.unwrap_or(Schedule::OneF1b)
            };
            let microbatches = space.microbatches(key, dp);
            let is_legal = |order: &&Order| mode.rules.order(pp, **order, microbatches) == 0;
            found.extend(orders.iter().filter(is_asked).find(is_legal).map(|order| (pp, *order)));
        }
        found
    }

    fn typed_cut(&self) -> Option<Vec<usize>> {
        let typed = self.space.question.pinned.boundaries.as_ref()?;
        Some(std::iter::once(0).chain(typed.iter().map(|start| *start as usize)).collect())
    }

    fn layout(&self, mode: &ModeSpace, key: &Key, pp: u64, order: Order, recompute: &Recompute) -> Layout {
        let mut layout = mode.template.clone();
        self.space.set_key(&mut layout, key);
        self.space.set_pipeline(&mut layout, key, pp, order);
        layout.recompute = recompute.clone();
        layout
    }

    /// Operations of a key's layers on every pool's devices, whatever is computed again: once for layouts of the key that follow.
    fn splits(&self, mode: usize, key: &Key, layout: &Layout) -> Result<Arc<Splits>, cost::Unpriced> {
        if let Some(known) = self.known.lock().unwrap_or_else(|e| e.into_inner()).get(&(mode, *key)) {
            return Ok(known.clone());
        }
        let splits = self.settings[mode].iter().map(|setting| setting.split(layout)).collect::<Result<Splits, _>>()?;
        let splits = Arc::new(splits);
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        if known.len() >= SPLITS {
            known.clear();
        }
        known.insert((mode, *key), splits.clone());
        Ok(splits)
    }

    fn prices(&self, splits: &[Split], layout: &Layout, offload: Offload) -> PooledPrices {
        let share = self.space.question.offload.share(offload);
        let prices = splits.iter().map(|split| split.prices(&layout.recompute, share));
        PooledPrices::new(prices.collect(), self.pool_of(layout))
    }

    fn pool_of(&self, layout: &Layout) -> Vec<usize> {
        let each = layout.world / layout.pp.get();
        let counts = self.pools.iter().map(|pool| (pool.devices() / each) as usize);
        counts.enumerate().flat_map(|(pool, count)| vec![pool; count]).collect()
    }

    /// A candidate cut so that its slowest stage is fastest among cuts that fit, and simulated; and the operations of it.
    fn cut(&self, candidate: &Candidate) -> (Option<Timed>, u64) {
        let layout = self.layout_of(candidate);
        match self.holds_too_much(&self.space.modes[candidate.mode], &layout, candidate.offload) {
            true => (None, OF_A_STATE),
            false => (self.timed(candidate, layout), OF_A_CUT),
        }
    }

    fn layout_of(&self, candidate: &Candidate) -> Layout {
        let mode = &self.space.modes[candidate.mode];
        let policy = &mode.recompute[candidate.recompute];
        let mut layout = self.layout(mode, &candidate.key, candidate.pp, candidate.order, policy);
        layout.zero = candidate.zero;
        layout
    }

    fn timed(&self, candidate: &Candidate, mut layout: Layout) -> Option<Timed> {
        let mode = &self.space.modes[candidate.mode];
        let prices =
            self.prices(&self.splits(candidate.mode, &candidate.key, &layout).ok()?, &layout, candidate.offload);
        let estimate = mode.estimator.under(&layout).ok()?;
        let room = Room::new(self, mode, &layout, estimate, candidate);
        let starts = room.cut(&Weights::new(mode, &prices, candidate.pp as usize), self.typed_cut())?;
        layout.boundaries = Some(starts.iter().skip(1).map(|start| *start as u64).collect());
        let plan = StagePlan::new(&mode.recipe, &layout, None).ok()?;
        let seconds = prices.seconds(&layout, &plan).ok()?;
        Some(Timed { per_sequence: seconds / layout.global_batch as f64, layout, candidate: candidate.clone() })
    }

    /// Whether the state of all stages together is more than one rank of each has room for, however the depth is cut.
    fn holds_too_much(&self, mode: &ModeSpace, layout: &Layout, offload: Offload) -> bool {
        let Some(estimate) = mode.estimator.state(layout) else { return false };
        let shape = StageShape::new(&mode.kinds, 0..mode.recipe.depth(), true, true);
        let share = self.space.question.offload.share(offload);
        let Ok(sum) = estimate.sum(layout, 0, &shape, &estimate.terms(&shape), share) else { return false };
        let room: u64 =
            self.pool_of(layout).iter().map(|pool| self.most(mode, layout, *pool)).fold(0, u64::saturating_add);
        sum.state.total() > room
    }

    /// Bytes that a rank on a pool may hold in its allocator.
    fn most(&self, mode: &ModeSpace, layout: &Layout, pool: usize) -> u64 {
        let (device, space) = (&self.pools[pool].device, &self.space);
        let dispatch = dispatch_bytes(&mode.recipe, layout, &space.question.options);
        let besides: u64 = outside(device, layout, space.has_experts, dispatch).iter().map(|held| held.bytes).sum();
        device.visible_bytes().saturating_sub(besides.saturating_add(self.headroom[pool].0))
    }

    /// The job of a layout on every pool's devices, priced exactly.
    fn replayed(&self, timed: &Timed) -> Result<PooledChoice, Vec<Finding>> {
        let candidate = &timed.candidate;
        let (question, mode) = (&self.space.question, &self.space.modes[candidate.mode]);
        let share = question.offload.share(candidate.offload);
        let asked = question.asked.pinned_to(&timed.layout, mode.recipe.uses(Mixer::Moe), share);
        let world = self.space.world;
        let build =
            |pool: &Cluster| Case::build(asked.clone(), question.recipe.clone(), pool.of_world(world), Terms::RUN);
        let cases = self.pools.iter().map(build).collect::<Result<Vec<_>, _>>()?;
        let job = Pooled::of(self.pools.to_vec(), cases).map_err(|finding| vec![finding])?;
        let none = |what: &str, why: String| vec![Finding::error("plan/unpriced", Blame::Engine, what, why)];
        let fit = PooledFit::price(&job, self.headroom).map_err(|e| none(&e.what, e.to_string()))?;
        let step = cost::pooled_step(&job).map_err(|e| none(&e.what, e.to_string()))?;
        let splits =
            self.splits(candidate.mode, &candidate.key, &timed.layout).map_err(|e| none(&e.what, e.to_string()))?;
        let prices = self.prices(&splits, &timed.layout, candidate.offload);
        let between = (1..self.pools.len()).map(|pool| prices.between(&timed.layout, [pool - 1, pool])).collect();
        Ok(PooledChoice { job, step, fit, between })
    }
}

/// Layouts in the order of their times, those that are not cut yet in that of their bounds.
struct Queue<'a> {
    pools: &'a Pools<'a>,
    all: &'a [Candidate],
    /// The first that was not cut.
    next: usize,
    /// Cut and simulated, the fastest last.
    timed: Vec<Timed>,
    /// Operations that may still be taken.
    left: u64,
}

impl Queue<'_> {
    /// Replays the fastest as long as nothing that is left can be faster, until one passes; where that one's state is on
    /// the host, until one passes that keeps it on the device and takes not much longer.
    fn run(&mut self, mut answer: PooledAnswer) -> Result<PooledAnswer, Vec<Finding>> {
        let (mut refused, mut beyond) = (None, 0);
        // The least of what was left out, and of what may be shown in place of a layout whose state is on the host.
        let (mut unseen, mut most) = (f64::INFINITY, f64::INFINITY);
        loop {
            let least = self.all.get(self.next).map_or(f64::INFINITY, |candidate| candidate.bound);
            let is_spent = self.left == 0;
            let is_known = self.timed.last().is_some_and(|first| first.per_sequence <= least) || least > most;
            if !is_known && self.next < self.all.len() && !is_spent {
                self.cut_some(&mut answer);
                continue;
            }
            if is_spent && !answer.is_cut_short {
                answer.is_cut_short = self.next < self.all.len() || !self.timed.is_empty();
                unseen = least;
            }
            let Some(first) = self.timed.pop().filter(|first| first.per_sequence <= most) else { break };
            if answer.best.is_some() && (is_spent || first.candidate.offload == Offload::Host) {
                continue;
            }
            if is_spent {
                beyond += 1;
                if beyond > TRIES {
                    break;
                }
            }
            let choice = match self.pools.replayed(&first) {
                Ok(choice) => choice,
                Err(findings) => {
                    refused = refused.or(Some(findings));
                    continue;
                }
            };
            self.left = self.left.saturating_sub(choice.fit.operations());
            if choice.fit.verdict == Verdict::Fits {
                let time = choice.per_sequence();
                if answer.best.is_none() {
                    answer.unproved = (1.0 - unseen / time).max(0.0);
                    most = time * (1.0 + LEAST_GAIN);
                }
                answer.best = Some(choice);
                if first.candidate.offload == Offload::Device {
                    break;
                }
                continue;
            }
            answer.refuted += 1;
            self.cut_again(first.candidate, &choice);
        }
        // What the engine refuses of every layout is said; what only does not fit is not.
        refused.filter(|_| answer.refuted == 0 && answer.best.is_none()).map_or(Ok(answer), Err)
    }

    /// Cuts and simulates the next few.
    fn cut_some(&mut self, answer: &mut PooledAnswer) {
        let batch = &self.all[self.next..self.all.len().min(self.next + BATCH)];
        self.next += batch.len();
        let pools = self.pools;
        let cut: Vec<(Option<Timed>, u64)> = batch.par_iter().map(|candidate| pools.cut(candidate)).collect();
        answer.priced += batch.len() as u64;
        for (timed, took) in cut {
            self.left = self.left.saturating_sub(took);
            if let Some(timed) = timed {
                answer.fit += 1;
                self.insert(timed);
            }
        }
    }

    /// Cuts a layout again that its replay refused, with so much more care.
    fn cut_again(&mut self, candidate: Candidate, choice: &PooledChoice) {
        let stages = choice.fit.classes.iter().zip(&choice.job.pool_of);
        let missed = stages.map(|(class, pool)| self.pools.headroom[*pool].0 as i64 - class.headroom);
        let missing = missed.max().unwrap_or(0).max(0) as u64;
        let (bytes, rounds) = candidate.caution;
        if missing == 0 || rounds == ROUNDS {
            return;
        }
        let careful = Candidate { caution: (bytes + missing, rounds + 1), ..candidate };
        if let (Some(timed), _) = self.pools.cut(&careful) {
            self.insert(timed);
        }
    }

    fn insert(&mut self, timed: Timed) {
        let at = self.timed.partition_point(|other| other.per_sequence > timed.per_sequence);
        self.timed.insert(at, timed);
    }
}

/// How many layers stages have room for.
struct Room<'a> {
    mode: &'a ModeSpace,
    layout: &'a Layout,
    estimate: Estimate<'a>,
    /// Of AdamW's state, the share on the host.
    share: f64,
    /// Bytes that each stage may hold.
    most: Vec<u64>,
    /// By stage and first layer.
    known: HashMap<(usize, usize), usize>,
}

impl<'a> Room<'a> {
    fn new(
        pools: &'a Pools,
        mode: &'a ModeSpace,
        layout: &'a Layout,
        estimate: Estimate<'a>,
        candidate: &Candidate,
    ) -> Room<'a> {
        let most: Vec<u64> = (0..pools.pools.len()).map(|pool| pools.most(mode, layout, pool)).collect();
        let most = pools.pool_of(layout).iter().map(|pool| most[*pool].saturating_sub(candidate.caution.0)).collect();
        let share = pools.space.question.offload.share(candidate.offload);
        Room { mode, layout, estimate, share, most, known: HashMap::new() }
    }

    /// The best cut that fits, or the typed one where it does.
    fn cut(mut self, weights: &Weights, typed: Option<Vec<usize>>) -> Option<Vec<usize>> {
        let Some(starts) = typed else { return weights.cut(|stage, start| self.upto(stage, start)) };
        let end = |stage: usize| starts.get(stage + 1).copied().unwrap_or(weights.depth());
        (0..starts.len()).all(|stage| self.fits(stage, starts[stage], end(stage))).then_some(starts.clone())
    }

    /// The end of the most layers that a stage has room for from one on.
    fn upto(&mut self, stage: usize, start: usize) -> usize {
        if let Some(end) = self.known.get(&(stage, start)) {
            return *end;
        }
        let depth = self.mode.recipe.depth();
        // The last stage is asked for all that is left: it holds more where it ends the model.
        let mut end = start;
        while end < depth && self.fits(stage, start, end + 1) {
            end += 1;
        }
        self.known.insert((stage, start), end);
        end
    }

    fn fits(&self, stage: usize, start: usize, end: usize) -> bool {
        let layout = self.layout;
        let last = layout.pp.get() as usize - 1;
        let shape = StageShape::new(&self.mode.kinds, start..end, stage == 0, stage == last);
        let terms = self.estimate.terms(&shape);
        let Ok(sum) = self.estimate.sum(layout, stage as u64, &shape, &terms, self.share) else { return false };
        sum.reserved() <= self.most[stage]
    }
}
