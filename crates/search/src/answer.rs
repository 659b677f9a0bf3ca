//! The answer: the best layout whose memory the exact replay confirms, what stands one change away
//! from it, and the frontier.

use crate::best::Simulated;
use crate::placement::placement;
use crate::point::{Key, Point};
use crate::price::Pricer;
use crate::search::{Found, step_of};
use crate::space::Space;
use cost::Step;
use diag::Finding;
use layout::{Layout, StagePlan};
use memory::fit::{Fit, FitRequest, OffloadRequest, Verdict};
use rayon::prelude::*;

/// A layout with everything that is shown of it.
pub struct Choice {
    /// The choices it is made of.
    pub point: Point,
    /// As it would be typed.
    pub layout: Layout,
    /// Its stages.
    pub stages: StagePlan,
    /// Share of AdamW's state on the host.
    pub offload: f64,
    /// Its time.
    pub step: Step,
    /// Its memory, replayed.
    pub fit: Fit,
    /// How much there is to get wrong.
    pub complexity: u32,
    /// Rules of placement it breaks.
    pub notes: Vec<Finding>,
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

/// A layout that the quick sum let pass and the replay did not.
#[derive(Clone, Debug)]
pub struct Unseated {
    /// As it would be typed.
    pub layout: Layout,
    /// Why.
    pub why: String,
    /// Bytes the replay misses, where it came so far.
    pub missing: u64,
}

/// What a search answers.
pub struct Answer {
    /// The best layout; none when nothing fits.
    pub best: Option<Choice>,
    /// Better by the sums, and refused by the replay.
    pub unseated: Vec<Unseated>,
    /// One change away, the best of each axis first.
    pub neighbours: Vec<Neighbour>,
}

/// Neighbours whose memory is replayed: those a screen shows, and one in case it is refused.
const REPLAYED: usize = 4;

/// Confirms the best layout, and looks around it.
pub fn answer(space: &Space, pricers: &[Pricer], found: &Found) -> Answer {
    let mut unseated = Vec::new();
    let mut best = None;
    for simulated in &found.best.top {
        match confirm(space, pricers, simulated) {
            Ok(choice) => {
                best = Some(choice);
                break;
            }
            Err(refused) => {
                let Refused { why, missing } = refused;
                unseated.push(Unseated { layout: space.layout(&simulated.point), why, missing });
            }
        }
    }
    let neighbours = best.as_ref().map_or_else(Vec::new, |best| neighbours(space, pricers, best));
    Answer { best, unseated, neighbours }
}

/// Why a replay does not let a layout pass.
pub struct Refused {
    /// In words.
    pub why: String,
    /// Bytes missing, where it came so far.
    pub missing: u64,
}

impl Refused {
    fn new(why: impl Into<String>) -> Refused {
        Refused { why: why.into(), missing: 0 }
    }
}

/// Everything about a layout, or why the replay does not let it pass.
pub fn confirm(space: &Space, pricers: &[Pricer], simulated: &Simulated) -> Result<Choice, Refused> {
    let point = simulated.point;
    let layout = space.layout(&point);
    let recipe = &space.realms[point.realm].recipe;
    let stages = StagePlan::new(recipe, &layout, None).map_err(|finding| Refused::new(finding.message))?;
    let fit = replay(space, &point, &layout, &stages)?;
    let step = step_of(space, &pricers[point.realm], &point, &layout).map_err(|e| Refused::new(e.to_string()))?;
    Ok(Choice {
        notes: placement(&layout, space.question.cluster),
        offload: space.question.offload.share(point.offload),
        complexity: simulated.complexity,
        point,
        layout,
        stages,
        step,
        fit,
    })
}

/// The exact replay of a layout, or by how much it does not fit.
fn replay(space: &Space, point: &Point, layout: &Layout, stages: &StagePlan) -> Result<Fit, Refused> {
    let recipe = &space.realms[point.realm].recipe;
    let share = space.question.offload.share(point.offload);
    let ledger = (space.question.ledger)(recipe, layout).and_then(|ledger| ledger.on_host(share));
    let ledger = ledger.map_err(|e| Refused::new(format!("{}: {}", e.what, e.why)))?;
    let request = FitRequest {
        recipe,
        layout,
        stages,
        device: &space.question.cluster.device,
        ledger: &ledger,
        offload: OffloadRequest::of(&ledger, share, 0.0),
        headroom: space.question.headroom,
    };
    let fit = Fit::price(&request).map_err(|e| Refused::new(format!("{}: {}", e.what, e.why)))?;
    if fit.verdict == Verdict::Fits {
        return Ok(fit);
    }
    let missing = (space.question.headroom.0 as i64 - fit.worst().headroom).unsigned_abs();
    let (bytes, stage) = (units::Bytes(missing), fit.worst().stage);
    let why = format!("the replay holds {bytes} more on stage {stage} than fits with the headroom asked for");
    Err(Refused { why, missing })
}

/// The best layout on each axis that differs from the best in that axis alone.
fn neighbours(space: &Space, pricers: &[Pricer], best: &Choice) -> Vec<Neighbour> {
    let base = best.step.seconds / best.layout.global_batch as f64;
    let pricer = &pricers[best.point.realm];
    let legal: Vec<(&'static str, Point)> =
        around(space, &best.point).into_iter().filter(|(_, point)| pricer.is_legal(point)).collect();
    let mut found: Vec<Neighbour> = legal
        .par_iter()
        .filter_map(|(axis, point)| {
            let headroom = pricer.headroom(point)?;
            if headroom < space.question.headroom.0 as i64 {
                return None;
            }
            let layout = space.layout(point);
            let seconds = step_of(space, pricer, point, &layout).ok()?.seconds;
            let slower = seconds / layout.global_batch as f64 / base - 1.0;
            Some(Neighbour { axis, point: *point, layout, seconds, slower, headroom })
        })
        .collect();
    found.sort_by(|a, b| a.slower.total_cmp(&b.slower).then(a.point.cmp(&b.point)));
    let mut kept: Vec<Neighbour> = Vec::new();
    for neighbour in found {
        if !kept.iter().any(|other| other.axis == neighbour.axis) {
            kept.push(neighbour);
        }
    }
    let rest = kept.split_off(kept.len().min(REPLAYED));
    let replayed = kept.into_par_iter().filter_map(|neighbour| {
        let recipe = &space.realms[neighbour.point.realm].recipe;
        let stages = StagePlan::new(recipe, &neighbour.layout, None).ok()?;
        let fit = replay(space, &neighbour.point, &neighbour.layout, &stages).ok()?;
        Some(Neighbour { headroom: fit.worst().headroom, ..neighbour })
    });
    replayed.collect::<Vec<_>>().into_iter().chain(rest).collect()
}

/// Points that differ in one axis; what must follow follows.
fn around(space: &Space, best: &Point) -> Vec<(&'static str, Point)> {
    let realm = &space.realms[best.realm];
    let mut points = Vec::new();
    for key in &realm.keys {
        if let Some(axis) = changed(&best.key, key) {
            points.push((axis, Point { key: *key, ..*best }));
        }
    }
    let here = space.shape(best);
    for (&pp, shapes) in &realm.shapes {
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
    points.extend((0..realm.recompute.len()).map(|recompute| ("recompute", Point { recompute, ..*best })));
    points.extend(space.offload.iter().map(|offload| ("offload", Point { offload: *offload, ..*best })));
    points.retain(|(_, point)| point != best);
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
