//! The answer: the simplest layout that cannot be told from the fastest, what stands one change away from it, and
//! how far it is proved that nothing is faster.

use crate::best::Simulated;
use crate::placement::placement;
use crate::point::{Key, Point};
use crate::price::Pricer;
use crate::search::{Found, seconds_of};
use crate::space::Space;
use crate::verdicts::Verdicts;
use case::Case;
use cost::{Apart, Class, Step, interval};
use diag::Finding;
use layout::Layout;
use memory::fit::{Fit, Verdict};
use rayon::prelude::*;
use std::sync::Arc;

/// A layout with everything that is shown of it.
pub struct Choice {
    /// Its choices among the space's.
    pub point: Point,
    /// The job.
    pub case: Case,
    /// Its time.
    pub step: Step,
    /// Its memory, replayed.
    pub fit: Fit,
    /// How much there is to get wrong.
    pub complexity: u32,
    /// Rules of placement it breaks.
    pub notes: Vec<Finding>,
}

impl Choice {
    /// Seconds a sequence, by which layouts of other batches compare.
    pub fn per_sequence(&self) -> f64 {
        self.step.seconds / self.case.layout.global_batch as f64
    }
}

/// A layout one change away from the best.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// The axis that changed.
    pub axis: &'static str,
    /// Which layout.
    pub point: Point,
    /// As it would be typed.
    pub layout: Layout,
    /// Seconds of a step.
    pub seconds: f64,
    /// Of the best one's time a sequence, less one.
    pub slower: f64,
    /// Bytes left on the worst rank.
    pub headroom: i64,
}

/// The best layout of one mode.
pub struct ModeAnswer {
    /// The first of the mode's spaces.
    pub mode: usize,
    /// The simplest layout that cannot be told from the fastest, then the one of most room; none when nothing fits.
    pub best: Option<Arc<Choice>>,
    /// The fastest layout, wherever its state is.
    pub fastest: Option<Arc<Choice>>,
    /// How much faster than the fastest something can be that was not looked at, of its time; nothing where it is proved
    /// that nothing is.
    pub unproved: f64,
    /// Others that cannot be told from the fastest: less simple, or of less room.
    pub equal: Vec<Arc<Choice>>,
    /// What two layouts must differ by to be told apart.
    pub apart: Apart,
}

/// What a search answers.
pub struct Answer {
    /// Every mode's best, the one to run first: the fastest that needs no module of the user's, unless a mode
    /// that gives up less of the model takes at most [`LEAST_GAIN`] longer.
    pub modes: Vec<ModeAnswer>,
    /// One change away from the best, the best of each axis first.
    pub neighbours: Vec<Neighbour>,
}

impl Answer {
    /// The layout to run; none when nothing fits.
    pub fn best(&self) -> Option<&Choice> {
        self.modes.first().and_then(|mode| mode.best.as_deref())
    }
}

/// Of a step's time, what a mode that gives up parts of the model must gain to be worth it, and so must state on the host.
pub const LEAST_GAIN: f64 = 0.05;

/// Whose memory is replayed beside the best layout's and its equals'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replays {
    /// Nobody's: neighbours have what the sums say.
    Best,
    /// That of the neighbours a screen shows.
    Around,
}

impl Replays {
    fn neighbours(self) -> usize {
        match self {
            Replays::Best => 0,
            Replays::Around => 3,
        }
    }
}

/// What replays may still take of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Operations, as [`work::Work`] counts them.
    pub operations: u64,
}

impl Left {
    /// All of a question's limit.
    pub fn of(space: &Space) -> Left {
        Left { operations: space.question.limit.operations }
    }

    /// The same less what short replays have taken.
    pub fn beside(self, pricers: &[Pricer]) -> u64 {
        self.operations.saturating_sub(pricers.iter().map(Pricer::walked).sum())
    }

    /// Takes what a job's replay is predicted to, if there is as much beside short replays.
    pub fn take(&mut self, space: &Space, pricers: &[Pricer], case: &Case) -> Result<u64, u64> {
        let takes = space.question.replay(case);
        if takes > self.beside(pricers) {
            return Err(takes);
        }
        self.operations = self.operations.saturating_sub(takes);
        Ok(takes)
    }
}

/// Chooses the best layout of every mode, and looks around the one to run, with what is left of the limit.
pub fn answer(space: &Space, pricers: &[Pricer], found: &mut Found, left: &mut Left, replays: Replays) -> Answer {
    let plain = (0..space.modes.len()).filter(|mode| space.modes[*mode].plain == *mode);
    let modes = plain.map(|mode| chosen(space, pricers, found, mode, left));
    let modes = ranked(space, modes.collect());
    let best = modes.first().and_then(|mode| mode.best.as_deref());
    let most = replays.neighbours();
    let around = |best| neighbours(space, pricers, &found.verdicts, best, left, most);
    let neighbours = best.map_or_else(Vec::new, around);
    Answer { modes, neighbours }
}

/// Layouts that are replayed to find the simplest one among equals.
const EQUALS: usize = 8;

/// Of what a search may take, the share that their replays may.
const EQUALS_SHARE: u64 = 10;

/// The part of a step that two layouts differ in most, with its seconds in each: what to measure to tell them apart.
pub fn decides(one: &Step, other: &Step) -> Option<(&'static str, f64, f64)> {
    let of =
        |step: &Step, name: &str| step.parts.iter().find(|line| line.name == name).map_or(0.0, |line| line.seconds);
    let names = one.parts.iter().chain(&other.parts).map(|line| line.name);
    let pairs = names.map(|name| (name, of(one, name), of(other, name)));
    pairs.max_by(|a, b| (a.1 - a.2).abs().total_cmp(&(b.1 - b.2).abs()))
}

fn chosen(space: &Space, pricers: &[Pricer], found: &mut Found, mode: usize, left: &mut Left) -> ModeAnswer {
    let (kept, verdicts) = (&mut found.best[mode], &mut found.verdicts);
    let none =
        ModeAnswer { mode, best: None, fastest: None, unproved: 0.0, equal: Vec::new(), apart: Apart::default() };
    let Some(first) = kept.fastest else { return none };
    let Some(fastest) = verdicts.passed(space, pricers, kept, &first, left) else { return none };
    let apart = interval::apart(&Class::of(&fastest.case));
    // No published run shows what state on the host takes: it has to gain more than [`LEAST_GAIN`].
    let here = kept.fastest_here.filter(|here| kept.in_its_place().is_some_and(|most| here.per_sequence <= most));
    let here = here.and_then(|one| Some((one, verdicts.passed(space, pricers, kept, &one, left)?)));
    let (first, fastest_here) = here.unwrap_or((first, fastest.clone()));
    let most = first.per_sequence * (1.0 + apart.share);
    let is_like = |one: &&Simulated| one.per_sequence <= most && one.point.offload <= first.point.offload;
    let mut equal: Vec<Simulated> = kept.band.iter().filter(is_like).copied().collect();
    equal.sort_by(|a, b| {
        let room = |one: &Simulated| kept.room(one.headroom);
        let chunks = a.point.order.vpp.cmp(&b.point.order.vpp);
        a.complexity.cmp(&b.complexity).then(room(b).cmp(&room(a))).then(chunks).then(a.order(b))
    });
    let mut passed = vec![fastest_here];
    let allowed = left.operations.saturating_sub(space.question.limit.operations / EQUALS_SHARE);
    for simulated in equal.iter().filter(|one| one.point != first.point).take(EQUALS) {
        // The first few are the simplest; what stands behind them is shown beside the best.
        let simplest = passed.iter().map(|choice| choice.complexity).min().unwrap_or(0);
        let is_enough = simulated.complexity > simplest && passed.len() > SHOWN;
        if is_enough || left.operations < allowed {
            break;
        }
        passed.extend(verdicts.passed(space, pricers, kept, simulated, left));
    }
    // The replay's headroom is not the sums'.
    passed.sort_by(|a, b| {
        let room = |choice: &Choice| kept.room(choice.fit.tightest().headroom);
        let chunks = a.point.order.vpp.cmp(&b.point.order.vpp);
        let time = a.per_sequence().total_cmp(&b.per_sequence());
        a.complexity.cmp(&b.complexity).then(room(b).cmp(&room(a))).then(chunks).then(time)
    });
    // What was left at the limit may have passed since.
    let first = kept.fastest.unwrap_or(first);
    let unproved = (first.per_sequence / kept.seen - 1.0).max(0.0);
    let fastest = verdicts.passed(space, pricers, kept, &first, left).unwrap_or(fastest);
    let mut passed = passed.into_iter();
    ModeAnswer { mode, best: passed.next(), fastest: Some(fastest), unproved, equal: passed.collect(), apart }
}

/// Equals that are shown beside the best.
const SHOWN: usize = 2;

/// Those that start before those that need a module of the user's. Fastest first, and in front of all the one that gives
/// up least within [`LEAST_GAIN`] of the fastest.
fn ranked(space: &Space, mut modes: Vec<ModeAnswer>) -> Vec<ModeAnswer> {
    let each = |mode: &ModeAnswer| mode.best.as_deref().map_or(f64::INFINITY, Choice::per_sequence);
    let starts = |mode: &ModeAnswer| space.modes[mode.mode].brought().next().is_none();
    let fits = |mode: &ModeAnswer| each(mode).is_finite();
    modes.sort_by(|a, b| (fits(b), starts(b)).cmp(&(fits(a), starts(a))).then(each(a).total_cmp(&each(b))));
    let Some(least) = modes.first().map(each).filter(|least| least.is_finite()) else { return modes };
    let given_up = |mode: &ModeAnswer| space.modes[mode.mode].given_up().count();
    let first_starts = modes.first().is_some_and(starts);
    let within = (0..modes.len()).filter(|&i| each(&modes[i]) <= least * (1.0 + LEAST_GAIN));
    let within = within.filter(|&i| starts(&modes[i]) == first_starts);
    if let Some(chosen) = within.min_by_key(|&i| given_up(&modes[i])) {
        let chosen = modes.remove(chosen);
        modes.insert(0, chosen);
    }
    modes
}

/// Why a replay does not let a layout pass.
#[derive(Clone, Debug)]
pub struct Refused {
    /// For a person to read.
    pub why: String,
    /// Bytes missing at least, where it came so far.
    pub missing: u64,
    /// The stage that they are missing on.
    pub stage: Option<usize>,
}

impl Refused {
    pub(crate) fn new(why: impl Into<String>) -> Refused {
        Refused { why: why.into(), missing: 0, stage: None }
    }

    /// A stage that holds so many bytes more than fits.
    pub(crate) fn stage(stage: usize, missing: i64) -> Refused {
        let missing = missing.unsigned_abs();
        let bytes = units::Bytes(missing);
        let why =
            format!("the replay holds at least {bytes} more on stage {stage} than fits with the headroom asked for");
        Refused { why, missing, stage: Some(stage) }
    }
}

/// A layout that a rule refuses after all.
pub(crate) fn illegal(findings: &[Finding]) -> Refused {
    Refused::new(findings.first().map_or("it is not legal", |finding| finding.message.as_str()))
}

/// A replay that takes more than is left.
pub(crate) fn too_long(takes: u64, left: &Left, pricers: &[Pricer]) -> Refused {
    let (takes, left) = (units::count(takes), units::count(left.beside(pricers)));
    Refused::new(format!("its replay takes about {takes} operations, and {left} are left of --work-limit"))
}

/// Everything about a layout, or why the replay does not let it pass; and the operations of its replay.
pub(crate) fn confirm(space: &Space, simulated: &Simulated, case: Case) -> (Result<Choice, Refused>, u64) {
    let (fit, took) = replay(space, &case);
    let chosen = |fit: Fit| {
        let step = cost::step(&case).map_err(|e| Refused::new(e.to_string()))?;
        let notes = placement(&case.layout, space.question.cluster);
        Ok(Choice { notes, complexity: simulated.complexity, point: simulated.point, case, step, fit })
    };
    (fit.and_then(chosen), took)
}

/// The exact replay of a job, or by how much it does not fit at least; and the operations it took.
fn replay(space: &Space, case: &Case) -> (Result<Fit, Refused>, u64) {
    match Fit::price_within(case, space.question.margin()) {
        Err(e) => (Err(Refused::new(format!("{}: {}", e.what, e.why))), u64::MAX),
        Ok(Err(over)) => (Err(Refused::stage(over.stage, over.missing as i64)), over.operations),
        Ok(Ok(fit)) => {
            let took = fit.operations();
            (judged(space, fit), took)
        }
    }
}

fn judged(space: &Space, fit: Fit) -> Result<Fit, Refused> {
    if fit.verdict == Verdict::Fits {
        return Ok(fit);
    }
    if fit.host.is_over() {
        let needs = units::Bytes(fit.host.node_bytes);
        return Err(Refused::new(format!("a node's host would keep {needs}, more than it has")));
    }
    let tightest = fit.tightest();
    Err(Refused::stage(tightest.stage, space.question.headroom.0 as i64 - tightest.headroom))
}

/// The best layout on each axis that differs from the best in that axis alone.
fn neighbours(
    space: &Space,
    pricers: &[Pricer],
    verdicts: &Verdicts,
    best: &Choice,
    left: &mut Left,
    most: usize,
) -> Vec<Neighbour> {
    let base = best.per_sequence();
    let pricer = &pricers[best.point.mode];
    let legal: Vec<(&'static str, Point)> =
        around(space, &best.point).into_iter().filter(|(_, point)| pricers[point.mode].is_legal(point)).collect();
    let headroom_of = |point: &Point| pricers[point.mode].headroom(point).map(|(headroom, _)| headroom);
    let headroom_of = |point: &Point| headroom_of(point).filter(|left| *left >= space.question.headroom.0 as i64);
    let mut found: Vec<Neighbour> = legal
        .par_iter()
        .filter_map(|(axis, point)| {
            // Sums that take replays are asked for last, and of few.
            let headroom = if pricer.is_dear() { 0 } else { headroom_of(point)? };
            let layout = space.layout(point);
            let seconds = seconds_of(space, &pricers[point.mode], point, &layout)?;
            let slower = seconds / layout.global_batch as f64 / base - 1.0;
            Some(Neighbour { axis, point: *point, layout, seconds, slower, headroom })
        })
        .collect();
    found.sort_by(|a, b| a.slower.total_cmp(&b.slower).then(a.point.cmp(&b.point)));
    let mut kept: Vec<Neighbour> = Vec::new();
    for neighbour in found {
        if kept.iter().any(|other| other.axis == neighbour.axis) {
            continue;
        }
        let headroom = if pricer.is_dear() { headroom_of(&neighbour.point) } else { Some(neighbour.headroom) };
        kept.extend(headroom.map(|headroom| Neighbour { headroom, ..neighbour }));
    }
    let (mut replayed, mut summed): (Vec<Neighbour>, Vec<Neighbour>) = (Vec::new(), Vec::new());
    while replayed.len() < most && !kept.is_empty() {
        let rest = kept.split_off(kept.len().min(most - replayed.len()));
        // Those that the search has replayed need no job.
        let mut jobs: Vec<(Neighbour, Option<Case>)> = Vec::new();
        for neighbour in kept {
            if let Some(headroom) = verdicts.headroom(&neighbour.point) {
                jobs.extend(headroom.map(|headroom| (Neighbour { headroom, ..neighbour }, None)));
                continue;
            }
            match space.case(&neighbour.point) {
                Ok(case) if left.take(space, pricers, &case).is_ok() => jobs.push((neighbour, Some(case))),
                // Those whose replays take more than is left stand behind, with what the sums say.
                Ok(_) => summed.push(neighbour),
                Err(_) => {}
            }
        }
        let confirmed = jobs.into_par_iter().filter_map(|(neighbour, case)| {
            let Some(case) = case else { return Some(neighbour) };
            let fit = replay(space, &case).0.ok()?;
            Some(Neighbour { headroom: fit.tightest().headroom, ..neighbour })
        });
        replayed.extend(confirmed.collect::<Vec<_>>());
        kept = rest;
    }
    replayed.extend(kept);
    replayed.extend(summed);
    replayed
}

/// Points that differ in one axis; what must follow follows.
fn around(space: &Space, best: &Point) -> Vec<(&'static str, Point)> {
    let mode = &space.modes[best.mode];
    let mut points = Vec::new();
    for key in &mode.keys {
        if let Some(axis) = changed(&best.key, key) {
            points.push((axis, Point { key: *key, ..*best }));
        }
    }
    let here = space.shape(best);
    for (&pp, shapes) in mode.shapes.iter() {
        for (shape, other) in shapes.iter().enumerate() {
            let same_cut = other.cut.even == here.cut.even || other.cut.even == crate::Evenness::Layers;
            let same_order = other.order == here.order;
            let axis = match (pp == best.pp, same_order) {
                (true, true) => "cut",
                (true, false) if same_cut && other.order.schedule == here.order.schedule => "vpp",
                (true, false) if same_cut => "schedule",
                (false, _) if same_cut && (same_order || pp == 1 || best.pp == 1) => "pp",
                _ => continue,
            };
            if (pp, shape) != (best.pp, best.shape) {
                points.push((axis, Point { pp, shape, order: other.order, ..*best }));
            }
        }
    }
    points.extend(space.zero.iter().map(|zero| ("zero", Point { zero: *zero, ..*best })));
    points.extend((0..mode.recompute.len()).map(|recompute| ("recompute", Point { recompute, ..*best })));
    points.extend(space.offload.iter().map(|offload| ("offload", Point { offload: *offload, ..*best })));
    for (index, other) in space.modes.iter().enumerate().filter(|(_, other)| other.plain == mode.plain) {
        let policy = other.recompute.iter().position(|policy| *policy == mode.recompute[best.recompute]);
        points.extend(policy.map(|recompute| ("engine-args", Point { mode: index, recompute, ..*best })));
    }
    points.retain(|(_, point)| point != best && space.offload_under(point.zero).contains(&point.offload));
    points
}

/// The one axis in which two keys differ.
fn changed(one: &Key, other: &Key) -> Option<&'static str> {
    let follows = one.etp == one.tp && other.etp == other.tp;
    let differ = [
        ("tp", one.tp != other.tp),
        ("cp", one.cp != other.cp),
        ("ep", one.ep != other.ep),
        ("etp", one.etp != other.etp && !(follows && one.tp != other.tp)),
        ("mbs", one.micro_batch != other.micro_batch),
    ];
    let mut changed = differ.into_iter().filter(|(_, differs)| *differs);
    changed.next().filter(|_| changed.next().is_none()).map(|(axis, _)| axis)
}
