//! The search over pools of unlike devices: every number of stages that lie whole on a pool, every legal set of degrees
//! inside them, and for each the cut that makes the slowest stage fastest, each stage timed and filled by its own
//! devices. Stages hold one chunk: what interleaves is not looked at.

mod cut;

use crate::point::{Key, Order};
use crate::question::{OffloadChoice, Question};
use crate::space::{ModeSpace, Space};
use case::{Case, Options, Pooled, Terms, stages_of};
use cost::{PooledPrices, Prices, Setting, Step};
use cut::Weights;
use diag::{Blame, Finding};
use hardware::Cluster;
use layout::{Layout, Recompute, Schedule, StagePlan, ZeroStage};
use memory::estimate::{Estimate, StageShape};
use memory::fit::{PooledFit, Verdict, dispatch_bytes, outside};
use rayon::prelude::*;
use recipe::Mixer;
use std::collections::HashMap;
use std::sync::Arc;
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
    /// Legal layouts over these pools.
    pub legal: u64,
    /// Of them, those whose memory was summed.
    pub priced: u64,
    /// Of those, the ones that have a cut that fits.
    pub fit: u64,
    /// Better by the sums, and refused by the replay.
    pub refuted: u64,
}

/// Layouts kept in case the replay refuses the first.
const KEPT: usize = 6;

/// Layouts handled together; between batches bounds are tightened.
const BATCH: usize = 16;

/// How often the sums are asked to be more careful, when the replay refuses all that were kept.
const ROUNDS: usize = 3;

/// One legal layout over the pools, before it is cut.
#[derive(Clone)]
struct Candidate {
    mode: usize,
    key: Key,
    order: Order,
    pp: u64,
    zero: ZeroStage,
    recompute: usize,
    /// Seconds a sequence takes at least.
    bound: f64,
}

/// A layout that fits by the sums.
struct Timed {
    layout: Layout,
    mode: usize,
    per_sequence: f64,
}

/// Everything a search over pools looks at.
struct Pools<'a> {
    space: Space<'a>,
    pools: &'a [Cluster],
    headroom: &'a [Bytes],
    /// By mode, then by pool.
    settings: Vec<Vec<Arc<Setting>>>,
}

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
    let options = Options { offload: share(&question), ..question.options };
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
    Pools { space, pools, headroom, settings }.search()
}

/// The share of AdamW's state on the host.
fn share(question: &Question) -> f64 {
    match question.offload {
        OffloadChoice::Pinned(share) => share,
        OffloadChoice::Free => 0.0,
    }
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
        let mut answer = PooledAnswer { best: None, legal: all.len() as u64, priced: 0, fit: 0, refuted: 0 };
        let (mut caution, mut refused) = (0, None);
        for _ in 0..ROUNDS {
            let kept = self.fastest(&all, caution, &mut answer);
            let mut missing = 0;
            for timed in &kept {
                let choice = match self.replayed(timed) {
                    Ok(choice) => choice,
                    Err(findings) => {
                        refused = refused.or(Some(findings));
                        continue;
                    }
                };
                if choice.fit.verdict == Verdict::Fits {
                    answer.best = Some(choice);
                    return Ok(answer);
                }
                let worst = choice.fit.worst();
                let wanted = self.headroom[choice.job.pool_of[worst.stage]].0 as i64;
                missing = missing.max(wanted - worst.headroom);
                answer.refuted += 1;
            }
            if missing <= 0 {
                break;
            }
            caution += missing as u64;
        }
        // What the engine refuses of every layout is said; what only does not fit is not.
        refused.filter(|_| answer.refuted == 0).map_or(Ok(answer), Err)
    }

    /// Legal layouts of a key, with what each takes at least.
    fn candidates(&self, index: usize, mode: &ModeSpace, key: &Key) -> Vec<Candidate> {
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
            let Some(&order) = orders.iter().filter(is_asked).find(is_legal) else { continue };
            for recompute in (0..mode.recompute.len()).filter(|policy| mode.rules.recompute(*policy) == 0) {
                let layout = self.layout(mode, key, pp, order, &mode.recompute[recompute]);
                let Ok(prices) = self.prices(index, &layout) else { continue };
                let weights = Weights::new(mode, &prices, pp as usize);
                let starts =
                    self.typed_cut().unwrap_or_else(|| weights.cut(|_, _| mode.recipe.depth()).unwrap_or_default());
                if starts.len() != pp as usize {
                    continue;
                }
                let bound = weights.slowest(&starts) * layout.microbatches as f64 / layout.global_batch as f64;
                let states = space.zero.iter().filter(|zero| mode.rules.state(pp, key.ep, **zero) == 0);
                found.extend(states.map(|&zero| Candidate {
                    mode: index,
                    key: *key,
                    order,
                    pp,
                    zero,
                    recompute,
                    bound,
                }));
            }
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

    fn prices(&self, mode: usize, layout: &Layout) -> Result<PooledPrices, cost::Unpriced> {
        let share = share(&self.space.question);
        let of = |setting: &Arc<Setting>| Ok(setting.split(layout)?.prices(&layout.recompute, share));
        let prices: Vec<Prices> = self.settings[mode].iter().map(of).collect::<Result<_, cost::Unpriced>>()?;
        Ok(PooledPrices::new(prices, self.pool_of(layout)))
    }

    fn pool_of(&self, layout: &Layout) -> Vec<usize> {
        let each = layout.world / layout.pp.get();
        let counts = self.pools.iter().map(|pool| (pool.devices() / each) as usize);
        counts.enumerate().flat_map(|(pool, count)| vec![pool; count]).collect()
    }

    /// The few that are fastest of those that fit by the sums, with so many bytes to spare.
    fn fastest(&self, all: &[Candidate], caution: u64, answer: &mut PooledAnswer) -> Vec<Timed> {
        let mut kept: Vec<Timed> = Vec::new();
        for batch in all.chunks(BATCH) {
            let least = kept.get(KEPT - 1).map_or(f64::INFINITY, |timed| timed.per_sequence);
            if batch[0].bound >= least {
                break;
            }
            answer.priced += batch.len() as u64;
            let timed: Vec<Timed> = batch.par_iter().filter_map(|candidate| self.timed(candidate, caution)).collect();
            answer.fit += timed.len() as u64;
            kept.extend(timed);
            kept.sort_by(|a, b| a.per_sequence.total_cmp(&b.per_sequence));
            kept.truncate(KEPT);
        }
        kept
    }

    /// A candidate cut so that its slowest stage is fastest among cuts that fit, and simulated.
    fn timed(&self, candidate: &Candidate, caution: u64) -> Option<Timed> {
        let mode = &self.space.modes[candidate.mode];
        let policy = &mode.recompute[candidate.recompute];
        let mut layout = self.layout(mode, &candidate.key, candidate.pp, candidate.order, policy);
        layout.zero = candidate.zero;
        let prices = self.prices(candidate.mode, &layout).ok()?;
        let estimate = mode.estimator.under(&layout).ok()?;
        let room = Room { pools: self, mode, layout: &layout, estimate, caution, known: HashMap::new() };
        let starts = room.cut(&Weights::new(mode, &prices, candidate.pp as usize), self.typed_cut())?;
        layout.boundaries = Some(starts.iter().skip(1).map(|start| *start as u64).collect());
        let plan = StagePlan::new(&mode.recipe, &layout, None).ok()?;
        let seconds = prices.seconds(&layout, &plan).ok()?;
        Some(Timed { per_sequence: seconds / layout.global_batch as f64, layout, mode: candidate.mode })
    }

    /// The job of a layout on every pool's devices, priced exactly.
    fn replayed(&self, timed: &Timed) -> Result<PooledChoice, Vec<Finding>> {
        let (question, mode) = (&self.space.question, &self.space.modes[timed.mode]);
        let share = share(question);
        let asked = question.asked.pinned_to(&timed.layout, mode.recipe.uses(Mixer::Moe), share);
        let world = self.space.world;
        let build =
            |pool: &Cluster| Case::build(asked.clone(), question.recipe.clone(), pool.of_world(world), Terms::RUN);
        let cases = self.pools.iter().map(build).collect::<Result<Vec<_>, _>>()?;
        let job = Pooled::of(self.pools.to_vec(), cases).map_err(|finding| vec![finding])?;
        let none = |what: &str, why: String| vec![Finding::error("plan/unpriced", Blame::Engine, what, why)];
        let fit = PooledFit::price(&job, self.headroom).map_err(|e| none(&e.what, e.to_string()))?;
        let step = cost::pooled_step(&job).map_err(|e| none(&e.what, e.to_string()))?;
        let prices = self.prices(timed.mode, &timed.layout).map_err(|e| none(&e.what, e.to_string()))?;
        let between = (1..self.pools.len()).map(|pool| prices.between(&timed.layout, [pool - 1, pool])).collect();
        Ok(PooledChoice { job, step, fit, between })
    }
}

/// How many layers stages have room for.
struct Room<'a> {
    pools: &'a Pools<'a>,
    mode: &'a ModeSpace,
    layout: &'a Layout,
    estimate: Estimate<'a>,
    caution: u64,
    /// By stage and first layer.
    known: HashMap<(usize, usize), usize>,
}

impl Room<'_> {
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
        let share = share(&self.pools.space.question);
        let Ok(sum) = self.estimate.sum(layout, stage as u64, &shape, &terms, share) else { return false };
        let pool = self.pools.pool_of(layout)[stage];
        let device = &self.pools.pools[pool].device;
        let space = &self.pools.space;
        let dispatch = dispatch_bytes(&self.mode.recipe, layout, &space.question.options);
        let besides: u64 = outside(device, layout, space.has_experts, dispatch).iter().map(|held| held.bytes).sum();
        let held = sum.reserved().saturating_add(besides).saturating_add(self.pools.headroom[pool].0);
        held.saturating_add(self.caution) <= device.visible_bytes()
    }
}
