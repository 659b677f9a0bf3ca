//! The search: keys in the order of their bounds, each priced whole, and of what fits only what a
//! bound cannot rule out is simulated. Batches have fixed sizes and are merged in order, so the
//! answer does not depend on how many threads there are.

use crate::best::{Best, Scope, Simulated};
use crate::clock::simulated;
use crate::count::{Counts, count, legal_of};
use crate::cuts::Weights;
use crate::point::{Key, Offload, Order, Point};
use crate::predicted::{OF_A_STATE, check_cuts, check_layouts};
use crate::price::{Candidate, Interest, Pricer, Tally, nearer};
use crate::question::Question;
use crate::space::{ModeSpace, NO_LEDGER, Space};
use case::PerKind;
use diag::{Blame, Finding};
use layout::{Layout, Recompute, Schedule, ZeroStage};
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
    /// The best few and the frontier of every mode, in the order of the space's modes.
    pub best: Vec<Best>,
    /// Layouts, legal and not.
    pub counts: Counts,
    /// What became of the legal ones that were priced.
    pub tally: Tally,
    /// Simulated event by event.
    pub simulated: u64,
}

/// How far a search has come: keys done, of how many. A no ends it, with what was found so far.
pub type Watch<'a> = &'a (dyn Fn(u64, u64) -> bool + Sync);

/// Keys and candidates handled together; between batches bounds are tightened.
const BATCH: usize = 32;

/// Layouts handled together where each may take replays.
const DEAR_BATCH: usize = 8;

/// Of what a search may take, the share that short replays may; twice as much as long as nothing fits, or
/// where a replay has refuted what did.
const PROBES_SHARE: u64 = 3;

/// Lays out a question's space, cut and ready to be searched with so much effort; refuses one that would
/// take more than its limit.
pub fn lay_out<'a>(question: Question<'a>, effort: Effort) -> Result<Space<'a>, Vec<Finding>> {
    let mut space = Space::new(question)?;
    check_cuts(&space)?;
    for mode in 0..space.modes.len() {
        let weighed = weigh(&space, mode).map_err(|finding| vec![finding])?;
        if let Some((weights, useful)) = weighed {
            space.modes[mode].keep_policies(&useful);
            space.cut(mode, &weights);
        }
    }
    check_layouts(&space, effort)?;
    Ok(space)
}

/// Whether some layout is legal and has a price, read off the first degrees of each mode: nothing is searched.
pub fn has_price(question: Question) -> bool {
    let Ok(space) = Space::new(question) else { return false };
    (0..space.modes.len()).any(|mode| matches!(weigh(&space, mode), Ok(Some(_))))
}

/// What layers weigh and which recompute policies save anything, read off the first legal degrees
/// that can be priced; none where nothing is legal, and why where nothing has a price.
fn weigh(space: &Space, index: usize) -> Result<Option<(Weights, Vec<bool>)>, Finding> {
    let mode = &space.modes[index];
    let pricer = Pricer::new(space, index);
    let is_legal = |key: &Key| {
        let dp = |pp: &u64| space.replicas(key, *pp).map(|dp| (*pp, dp));
        mode.orders.keys().filter_map(dp).any(|(pp, dp)| mode.rules.mesh(key, pp, dp) == 0)
    };
    let (mut refused, mut untimed) = (None, None);
    for key in mode.keys.iter().filter(|key| is_legal(key)).take(BATCH) {
        let layout = plain(space, mode, key);
        let ranks = (space.world / (key.tp * key.cp)).max(1);
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

/// Searches a space for the best layouts and the frontier.
pub fn search(space: &Space, pricers: &[Pricer], scope: Scope, effort: Effort, watch: Watch) -> Found {
    let mut found = Found {
        best: vec![Best::new(scope, space.question.cluster.device.visible_bytes()); space.modes.len()],
        counts: count(space),
        tally: Tally::default(),
        simulated: 0,
    };
    if pricers.iter().any(Pricer::is_dear) {
        one_by_one(space, pricers, effort, watch, &mut found);
    } else {
        key_by_key(space, pricers, effort, watch, &mut found);
    }
    // Of a layout whose state alone is too much the rest is only worth pricing where nothing else is as near.
    if let Some((missing, point)) = found.tally.hopeless
        && found.tally.nearest.is_none_or(|(other, _)| missing < other)
    {
        let policies = (0..space.modes[point.mode].recompute.len()).map(|recompute| Point { recompute, ..point });
        for point in policies.filter(|point| pricers[point.mode].is_legal(point)) {
            let (tally, _) = pricers[point.mode].price_one(0.0, point);
            found.tally.nearest = nearer(found.tally.nearest, tally.nearest);
        }
    }
    found.best.iter_mut().for_each(Best::sort);
    found
}

/// Prices all layouts of a key together: sums are cheap once its probes are there.
fn key_by_key(space: &Space, pricers: &[Pricer], effort: Effort, watch: Watch, found: &mut Found) {
    let keys = ordered_keys(space, pricers);
    let mut done = 0;
    for batch in keys.chunks(BATCH) {
        let (wanted, left): (Vec<_>, Vec<_>) =
            batch.iter().partition(|(bound, mode, _)| effort != Effort::Bounded || found.best[*mode].reaches(*bound));
        found.tally.bounded += left.iter().map(|(_, mode, key)| legal_of(space, &space.modes[*mode], key)).sum::<u64>();
        let price = |(_, mode, key): &(f64, usize, Key)| {
            let best = &found.best[*mode];
            let interest = Interest {
                reaches: &|bound| effort != Effort::Bounded || best.reaches(bound),
                wants: &|candidate| effort == Effort::Everything || best.wants(candidate),
            };
            pricers[*mode].price(key, &interest)
        };
        let priced: Vec<(Tally, Vec<Candidate>)> = wanted.par_iter().map(price).collect();
        let mut candidates = Vec::new();
        for (tally, kept) in priced {
            found.tally.add(&tally);
            candidates.extend(kept);
        }
        simulate(space, pricers, candidates, effort, found);
        done += batch.len() as u64;
        if !watch(done, keys.len() as u64) {
            break;
        }
    }
}

/// Prices layouts in the order of their bounds, where what each holds may take replays to say: most are
/// ruled out by what was found before them.
fn one_by_one(space: &Space, pricers: &[Pricer], effort: Effort, watch: Watch, found: &mut Found) {
    let bounds: Vec<(Tally, Vec<(f64, Point)>)> =
        all_keys(space).par_iter().map(|(mode, key)| pricers[*mode].bounds(key)).collect();
    let mut layouts = Vec::new();
    for (tally, list) in bounds {
        found.tally.add(&tally);
        layouts.extend(list);
    }
    layouts.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let allowed = space.question.limit.operations / PROBES_SHARE;
    let mut done = 0;
    for batch in layouts.chunks(DEAR_BATCH) {
        if done * OF_A_STATE > allowed {
            found.tally.unseen += layouts.len() as u64 - done;
            break;
        }
        // At the limit, what was replayed before still prices what it can: a search that is asked again with
        // more caution has most of it.
        let is_empty_handed = found.tally.fit == 0 || space.question.caution.0 > 0;
        let shares = if is_empty_handed { 2 } else { 1 };
        let is_at_limit = pricers.iter().map(Pricer::walked).sum::<u64>() > allowed.saturating_mul(shares);
        let is_wanted = |bound: f64, mode: usize| effort != Effort::Bounded || found.best[mode].reaches(bound);
        let (wanted, left): (Vec<_>, Vec<_>) = batch.iter().partition(|(bound, point)| is_wanted(*bound, point.mode));
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
        priced.iter().for_each(|(tally, _)| found.tally.add(tally));
        let fitting = priced.into_iter().filter_map(|(_, candidate)| candidate);
        simulate(space, pricers, fitting.collect(), effort, found);
        done += batch.len() as u64;
        if !watch(done, layouts.len() as u64) {
            break;
        }
    }
}

/// The keys of every mode.
fn all_keys(space: &Space) -> Vec<(usize, Key)> {
    let modes = space.modes.iter().enumerate();
    modes.flat_map(|(index, mode)| mode.keys.iter().map(move |key| (index, *key))).collect()
}

/// Keys that have a legal layout, the most promising first.
fn ordered_keys(space: &Space, pricers: &[Pricer]) -> Vec<(f64, usize, Key)> {
    let all = all_keys(space);
    let bounds = all.par_iter().map(|(mode, key)| (pricers[*mode].least(key), *mode, *key));
    let mut keys: Vec<_> = bounds.filter(|(bound, _, _)| bound.is_finite()).collect();
    keys.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    keys
}

/// Simulates candidates in the order of their bounds, until no bound is of interest.
fn simulate(space: &Space, pricers: &[Pricer], mut candidates: Vec<Candidate>, effort: Effort, found: &mut Found) {
    candidates.sort_by(|a, b| a.bound.total_cmp(&b.bound).then(a.point.cmp(&b.point)));
    for batch in candidates.chunks(BATCH) {
        let is_wanted =
            |candidate: &Candidate| effort == Effort::Everything || found.best[candidate.point.mode].wants(candidate);
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
        found.simulated += steps.iter().flatten().count() as u64;
        steps.into_iter().flatten().for_each(|simulated| found.best[simulated.point.mode].take(simulated));
    }
}

/// Seconds of a point's step, simulated.
pub(crate) fn seconds_of(space: &Space, pricer: &Pricer, point: &Point, layout: &Layout) -> Option<f64> {
    let prices = pricer.prices(layout, point.offload).ok()?;
    simulated(&prices, layout, space.shape(point), |_| true).ok()?
}
