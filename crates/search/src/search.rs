//! The search: keys in the order of their bounds, each priced whole; of what may fit only what a bound cannot rule
//! out is simulated, and replayed in the order of time once nothing that is left can be faster. The first that its
//! replay lets pass is the fastest there is. Batches have fixed sizes and are merged in order, so the answer does not
//! depend on how many threads there are.

use crate::answer::Left;
use crate::best::{Best, Scope, Simulated};
use crate::clock::simulated;
use crate::count::{Counts, count, legal_of};
use crate::cuts::Weights;
use crate::point::{Key, Offload, Order, Point};
use crate::predicted::{OF_A_STATE, check_cuts, check_layouts};
use crate::price::{Candidate, Interest, Pricer, Tally};
use crate::question::Question;
use crate::space::{ModeSpace, NO_LEDGER, Space};
use crate::verdicts::Verdicts;
use case::PerKind;
use diag::{Blame, Finding};
use layout::{Layout, LayoutRequest, Recompute, Schedule, ZeroStage};
use memory::estimate::Shards;
use rayon::prelude::*;
use replay::Unmodelled;

/// How many keys are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Those whose bound reaches the best few or the frontier.
    Bounded,
    /// All of them: every legal layout is priced.
    Priced,
    /// All of them, and every layout that fits is simulated.
    Everything,
}

/// What a search came to.
pub struct Found {
    /// The best few and the frontier of every mode, at the first of its spaces ([`ModeSpace::plain`]).
    pub best: Vec<Best>,
    /// Layouts, legal and not.
    pub counts: Counts,
    /// What became of the legal ones that were priced.
    pub tally: Tally,
    /// Simulated event by event.
    pub simulated: u64,
    /// What replays said of layouts.
    pub verdicts: Verdicts,
}

/// How far a search has come: keys done, of how many. A no ends it, with what was found so far.
pub type Watch<'a> = &'a (dyn Fn(u64, u64) -> bool + Sync);

/// Keys and candidates handled together; between batches bounds are tightened.
const BATCH: usize = 32;

/// Batches of keys that are put in order at once, by bounds that look at every cut.
const FLOORED: usize = 8;

/// Layouts handled together where each may take replays.
const DEAR_BATCH: usize = 8;

/// Of what a search may take, the share that short replays may; twice as much as long as nothing fits.
const PROBES_SHARE: u64 = 3;

/// How much faster than the fastest one known a layout must be to be replayed before its turn: as soon as something
/// passes, bounds leave out more.
const HASTE: f64 = 0.1;

/// Lays out a question's space, cut and ready to be searched with so much effort; refuses one that would
/// take more than its limit.
pub fn lay_out<'a>(question: Question<'a>, effort: Effort) -> Result<Space<'a>, Vec<Finding>> {
    let mut space = Space::new(question)?;
    check_cuts(&space)?;
    let free = free_of_pins(question.pinned);
    // Cuts that follow from what layers weigh are the same with an axis pinned and without, so that a narrower question
    // chooses among layouts that the wider one has too.
    let wide = if free == *question.pinned { None } else { Space::new(Question { pinned: &free, ..question }).ok() };
    for mode in 0..space.modes.len() {
        let Some(own) = weigh(&space, &space, mode).map_err(|finding| vec![finding])? else { continue };
        let of_all = wide.as_ref().and_then(|wide| weigh(&space, wide, mode).ok().flatten());
        let (weights, useful) = of_all.unwrap_or(own);
        space.modes[mode].keep_policies(&useful);
        space.cut(mode, &weights);
    }
    space.add_offered();
    if check_layouts(&space, effort).is_err() {
        space.leave_out_offered();
    }
    check_layouts(&space, effort)?;
    Ok(space)
}

/// Whether some layout is legal and has a price, read off the first degrees of each mode: nothing is searched.
pub fn has_price(question: Question) -> bool {
    let Ok(space) = Space::new(question) else { return false };
    (0..space.modes.len()).any(|mode| matches!(weigh(&space, &space, mode), Ok(Some(_))))
}

/// Whether the state of some legal layout has room, however the depth is cut: no for many questions to which nothing
/// fits, before anything is weighed or cut.
pub fn may_fit(question: Question) -> bool {
    let Ok(space) = Space::new(question) else { return true };
    let pricers = pricers(&space);
    let holds = |mode: usize| space.modes[mode].keys.par_iter().any(|key| pricers[mode].may_hold(key));
    (0..space.modes.len()).any(holds)
}

/// What is asked of a job, without its degrees.
fn free_of_pins(pinned: &LayoutRequest) -> LayoutRequest {
    LayoutRequest {
        tp: None,
        sp: None,
        cp: None,
        pp: None,
        vpp: None,
        ep: None,
        etp: None,
        dp: None,
        zero: None,
        micro_batch: None,
        microbatches: None,
        schedule: None,
        recompute: None,
        boundaries: None,
        balance: None,
        ..pinned.clone()
    }
}

/// What layers weigh and which recompute policies save anything, read off the first legal degrees of another space that
/// can be priced; none where nothing is legal, and why where nothing has a price.
fn weigh(space: &Space, of: &Space, index: usize) -> Result<Option<(Weights, Vec<bool>)>, Finding> {
    let (mode, of_mode) = (&space.modes[index], &of.modes[index]);
    let pricer = Pricer::new(space, index);
    let is_legal = |key: &Key| {
        let dp = |pp: &u64| of.replicas(key, *pp).map(|dp| (*pp, dp));
        of_mode.orders.keys().filter_map(dp).any(|(pp, dp)| of_mode.rules.mesh(key, pp, dp) == 0)
    };
    let (mut refused, mut untimed) = (None, None);
    for key in of_mode.keys.iter().filter(|key| is_legal(key)).take(BATCH) {
        let layout = plain(of, of_mode, key);
        let ranks = (of.world / (key.tp * key.cp)).max(1);
        let shards = Shards::new(ZeroStage::One, [ranks, ranks]);
        let memory = match pricer.weights(&layout, &shards) {
            Ok(memory) => memory,
            Err(reason) => {
                refused = refused.or(Some(reason));
                continue;
            }
        };
        let prices = match pricer.prices(&layout, Offload::Device) {
            Ok(prices) => prices,
            Err(reason) => {
                untimed = untimed.or(Some(reason));
                continue;
            }
        };
        let weights = Weights::new(&mode.recipe, memory, prices, layout.clone());
        return Ok(Some((weights, useful(&pricer, mode, layout, &shards))));
    }
    match (refused, untimed) {
        // What has a memory price and no time says what is missing.
        (_, Some(reason)) => {
            Err(Finding::error("plan/unpriced", Blame::Environment, reason.what.clone(), reason.to_string()).hint(
                "`shardwright fit` prices the memory of one layout; docs/hardware.md says how to add what is missing",
            ))
        }
        (Some(reason), None) => Err(unpriced(&space.question, &reason)),
        (None, None) => Ok(None),
    }
}

/// A layout of one chunk a stage under a key, on the first number of stages that divides the world, with
/// the last ZeRO stage that is legal: every engine's ledger replays that one.
fn plain(space: &Space, mode: &ModeSpace, key: &Key) -> Layout {
    let mut layout = mode.template.clone();
    space.set_key(&mut layout, key);
    layout.recompute = mode.recompute[0].clone();
    let Some(&pp) = mode.orders.keys().find(|pp| space.replicas(key, **pp).is_some()) else { return layout };
    space.set_pipeline(&mut layout, key, pp, Order { schedule: Schedule::OneF1b, vpp: 1 });
    let zero = space.zero.iter().rev().find(|zero| mode.rules.state(pp, key.ep, **zero) == 0);
    layout.zero = zero.copied().unwrap_or(layout.zero);
    layout
}

/// A model that an engine's ledger does not replay.
fn unpriced(question: &Question, reason: &Unmodelled) -> Finding {
    let engine = question.pinned.engine.map_or("any engine", |engine| engine.name());
    let message = format!("no layout for {engine} has a price: {}: {}", reason.what, reason.why);
    let finding = Finding::error(NO_LEDGER, Blame::Engine, engine, message);
    finding.hint("`shardwright launch` writes a layout of yours down all the same; other engines may price it")
}

/// Which policies save something that no policy of fewer modules saves.
fn useful(pricer: &Pricer, mode: &ModeSpace, mut layout: Layout, shards: &Shards) -> Vec<bool> {
    let mut saved: Vec<Option<PerKind<u64>>> = Vec::new();
    for policy in &mode.recompute {
        layout.recompute = policy.clone();
        saved.push(pricer.weights(&layout, shards).ok().map(|weights| weights.saved));
    }
    let within = |one: &Recompute, other: &Recompute| match (one, other) {
        (Recompute::None, other) => *other != Recompute::None,
        (Recompute::Selective(few), Recompute::Selective(many)) => {
            few.len() < many.len() && few.iter().all(|module| many.contains(module))
        }
        _ => false,
    };
    let saves_no_more = |i: usize, j: usize| match (&saved[i], &saved[j]) {
        (Some(one), Some(other)) => one.iter().zip(other.iter()).all(|(a, b)| a <= b),
        _ => false,
    };
    let count = mode.recompute.len();
    (0..count)
        .map(|j| !(0..count).any(|i| within(&mode.recompute[i], &mode.recompute[j]) && saves_no_more(i, j)))
        .collect()
}

/// One pricer a mode, which share their probes with whoever asks next.
pub fn pricers<'a>(space: &'a Space<'a>) -> Vec<Pricer<'a>> {
    (0..space.modes.len()).map(|mode| Pricer::new(space, mode)).collect()
}

/// Prices every legal layout and neither simulates nor replays one: how fast pricing is. Nothing where a price takes
/// replays.
pub fn price_all(space: &Space, pricers: &[Pricer]) -> Tally {
    let interest = Interest { reaches: &|_| true, wants: &|_| false };
    let cheap: Vec<_> = all_keys(space).into_iter().filter(|(mode, _)| !pricers[*mode].is_dear()).collect();
    let tallies: Vec<Tally> = cheap.par_iter().map(|(mode, key)| pricers[*mode].price(key, &interest).0).collect();
    tallies.iter().fold(Tally::default(), |mut all, tally| {
        all.add(tally);
        all
    })
}

/// Searches a space for the best layouts and the frontier.
pub fn search(
    space: &Space,
    pricers: &[Pricer],
    (scope, effort): (Scope, Effort),
    left: &mut Left,
    watch: Watch,
) -> Found {
    let question = &space.question;
    let best = Best::new(scope, question.cluster.device.visible_bytes(), question.headroom.0);
    let found = Found {
        best: vec![best; space.modes.len()],
        counts: count(space),
        tally: Tally::default(),
        simulated: 0,
        verdicts: Verdicts::default(),
    };
    let mut search = Search { space, pricers, effort, found, left };
    if pricers.iter().any(Pricer::is_dear) {
        search.one_by_one(watch);
    } else {
        search.key_by_key(watch);
    }
    search.settle(f64::INFINITY);
    search.found.best.iter_mut().for_each(Best::sort);
    search.found
}

/// A search on its way.
struct Search<'s, 'a> {
    space: &'s Space<'a>,
    pricers: &'s [Pricer<'a>],
    effort: Effort,
    found: Found,
    left: &'s mut Left,
}

impl Search<'_, '_> {
    /// Prices all layouts of a key together: sums are cheap once its probes are there.
    fn key_by_key(&mut self, watch: Watch) {
        let (space, pricers) = (self.space, self.pricers);
        let keys = ordered_keys(all_keys(space), |(mode, key)| pricers[*mode].floor(key));
        let all = keys.len() as u64;
        for (at, some) in keys.chunks(BATCH * FLOORED).enumerate() {
            let behind = keys.get((at + 1) * BATCH * FLOORED).map_or(f64::INFINITY, |(floor, ..)| *floor);
            let some = some.iter().filter(|(floor, mode, key)| self.reaches(*floor, *mode, key));
            let some = some.map(|(_, mode, key)| (*mode, *key)).collect();
            let bounded = ordered_keys(some, |(mode, key)| pricers[*mode].least(key));
            for batch in bounded.chunks(BATCH) {
                // Whatever comes from here on takes at least so long.
                self.settle(batch[0].0.min(behind));
                self.price(batch);
            }
            self.settle(behind);
            if !watch(all.min(((at + 1) * BATCH * FLOORED) as u64), all) {
                break;
            }
        }
    }

    /// Whether a key that takes at least so long is looked at; counts its layouts where it is not.
    fn reaches(&mut self, least: f64, mode: usize, key: &Key) -> bool {
        let reaches = self.effort != Effort::Bounded || self.found.best[self.space.modes[mode].plain].reaches(least);
        if !reaches {
            self.found.tally.bounded += legal_of(self.space, &self.space.modes[mode], key);
        }
        reaches
    }

    /// Prices keys, and simulates what may fit.
    fn price(&mut self, batch: &[(f64, usize, Key)]) {
        let (space, pricers, effort) = (self.space, self.pricers, self.effort);
        let wanted: Vec<_> = batch.iter().filter(|(bound, mode, key)| self.reaches(*bound, *mode, key)).collect();
        let found = &self.found;
        let price = |(_, mode, key): &&(f64, usize, Key)| {
            let best = &found.best[space.modes[*mode].plain];
            let interest = Interest {
                reaches: &|bound| effort != Effort::Bounded || best.reaches(bound),
                wants: &|candidate| effort == Effort::Everything || best.wants(candidate),
            };
            pricers[*mode].price(key, &interest)
        };
        let priced: Vec<(Tally, Vec<Candidate>)> = wanted.par_iter().map(price).collect();
        let mut candidates = Vec::new();
        for (tally, kept) in priced {
            self.found.tally.add(&tally);
            candidates.extend(kept);
        }
        self.simulate(candidates);
    }

    /// Prices layouts in the order of their bounds, where what each holds may take replays to say: most are
    /// ruled out by what was found before them.
    fn one_by_one(&mut self, watch: Watch) {
        let (space, pricers, effort) = (self.space, self.pricers, self.effort);
        let bounds: Vec<(Tally, Vec<(f64, Point)>)> =
            all_keys(space).par_iter().map(|(mode, key)| pricers[*mode].bounds(key)).collect();
        let mut layouts = Vec::new();
        for (tally, list) in bounds {
            self.found.tally.add(&tally);
            layouts.extend(list);
        }
        layouts.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let allowed = space.question.limit.operations / PROBES_SHARE;
        let mut done = 0;
        for batch in layouts.chunks(DEAR_BATCH) {
            self.settle(batch[0].0);
            let found = &mut self.found;
            if done * OF_A_STATE > allowed {
                found.tally.unseen += layouts.len() as u64 - done;
                found.best.iter_mut().for_each(|best| best.unseen(batch[0].0));
                break;
            }
            // At the limit, what was replayed before still prices what it can.
            let shares = if found.tally.fit == 0 { 2 } else { 1 };
            let is_at_limit = pricers.iter().map(Pricer::walked).sum::<u64>() > allowed.saturating_mul(shares);
            let plain = |mode: usize| space.modes[mode].plain;
            let is_wanted =
                |bound: f64, mode: usize| effort != Effort::Bounded || found.best[plain(mode)].reaches(bound);
            let (wanted, left): (Vec<_>, Vec<_>) =
                batch.iter().partition(|(bound, point)| is_wanted(*bound, point.mode));
            found.tally.bounded += left.len() as u64;
            let price = |(bound, point): &&(f64, Point)| {
                let pricer = &pricers[point.mode];
                if let Some(tally) = pricer.too_large(point) {
                    return (tally, None);
                }
                if is_at_limit && !pricer.is_known(point) {
                    return (Tally { unseen: 1, ..Tally::default() }, None);
                }
                pricer.price_one(*bound, *point)
            };
            let priced: Vec<(Tally, Option<Candidate>)> = wanted.par_iter().map(price).collect();
            for ((tally, _), (bound, point)) in priced.iter().zip(&wanted) {
                found.tally.add(tally);
                if tally.unseen > 0 {
                    found.best[plain(point.mode)].unseen(*bound);
                }
            }
            let fitting = priced.into_iter().filter_map(|(_, candidate)| candidate);
            self.simulate(fitting.collect());
            done += batch.len() as u64;
            if !watch(done, layouts.len() as u64) {
                break;
            }
        }
    }

    /// Simulates candidates in the order of their bounds, until no bound is of interest.
    fn simulate(&mut self, mut candidates: Vec<Candidate>) {
        let (space, pricers, effort) = (self.space, self.pricers, self.effort);
        candidates.sort_by(|a, b| a.bound.total_cmp(&b.bound).then(a.point.cmp(&b.point)));
        for batch in candidates.chunks(BATCH) {
            let found = &self.found;
            let is_wanted = |candidate: &Candidate| {
                effort == Effort::Everything || found.best[space.modes[candidate.point.mode].plain].wants(candidate)
            };
            let wanted: Vec<&Candidate> = batch.iter().filter(|candidate| is_wanted(candidate)).collect();
            let steps: Vec<Option<Simulated>> = wanted
                .par_iter()
                .map(|candidate| {
                    let point = candidate.point;
                    let layout = space.layout(&point);
                    let prices = pricers[point.mode].prices(&layout, point.offload).ok()?;
                    let sequences = layout.global_batch as f64;
                    let wants = |seconds: f64| {
                        let bound = (seconds / sequences).max(candidate.bound);
                        is_wanted(&Candidate { bound, ..**candidate })
                    };
                    Some(Simulated {
                        point,
                        per_sequence: simulated(&prices, &layout, space.shape(&point), wants).ok()?? / sequences,
                        headroom: candidate.headroom,
                        complexity: candidate.complexity,
                    })
                })
                .collect();
            let found = &mut self.found;
            found.simulated += steps.iter().flatten().count() as u64;
            for simulated in steps.into_iter().flatten() {
                found.best[space.modes[simulated.point.mode].plain].take(simulated);
            }
            self.hasten();
        }
    }

    /// Replays the fastest of a mode that has room to spare by the sums, where it is much faster than the fastest one
    /// known.
    fn hasten(&mut self) {
        let (space, pricers) = (self.space, self.pricers);
        let verdicts = &mut self.found.verdicts;
        for best in &mut self.found.best {
            let known = best.fastest.map_or(f64::INFINITY, |fastest| fastest.per_sequence);
            let with_room = best.band.iter().filter(|one| verdicts.is_sure(space, one));
            let first = with_room.min_by(|a, b| a.order(b)).copied();
            if let Some(first) = first.filter(|first| first.per_sequence * (1.0 + HASTE) < known) {
                verdicts.passed(space, pricers, best, &first, self.left);
            }
        }
    }

    /// Replays what may be the fastest of what takes at most so long a sequence, where nothing else can be as fast.
    fn settle(&mut self, most: f64) {
        for best in &mut self.found.best {
            self.found.verdicts.settle(self.space, self.pricers, best, self.left, most);
        }
    }
}

/// The keys of every mode.
fn all_keys(space: &Space) -> Vec<(usize, Key)> {
    let modes = space.modes.iter().enumerate();
    modes.flat_map(|(index, mode)| mode.keys.iter().map(move |key| (index, *key))).collect()
}

/// Keys that have a legal layout in the order of what they take at least.
fn ordered_keys(keys: Vec<(usize, Key)>, least: impl Fn(&(usize, Key)) -> f64 + Sync) -> Vec<(f64, usize, Key)> {
    let bounds = keys.par_iter().map(|key| (least(key), key.0, key.1));
    let mut keys: Vec<_> = bounds.filter(|(bound, _, _)| bound.is_finite()).collect();
    keys.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    keys
}

/// Seconds of a point's step, simulated.
pub(crate) fn seconds_of(space: &Space, pricer: &Pricer, point: &Point, layout: &Layout) -> Option<f64> {
    let prices = pricer.prices(layout, point.offload).ok()?;
    simulated(&prices, layout, space.shape(point), |_| true).ok()?
}
