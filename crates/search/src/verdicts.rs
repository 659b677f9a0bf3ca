//! What replays said of layouts, each asked once: whichever may be the fastest is replayed before anything slower, until
//! one passes.

use crate::answer::{Choice, Left, Refused, confirm, illegal, too_long};
use crate::best::{Best, Simulated};
use crate::point::{Key, Offload, Point};
use crate::price::Pricer;
use crate::space::Space;
use case::Case;
use layout::{Schedule, ZeroStage};
use memory::fit::{most_headroom_of_stage, work_of_stage};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Layouts whose worst stages are replayed at once.
const AT_ONCE: usize = 4;

/// Layouts that are replayed one after the other, the fastest first; of more, those with room to spare come before.
const MANY: usize = 16;

/// Of what an answer may take, the share that looking for the fastest may: two in three.
const SHARE: [u64; 2] = [2, 3];

/// Groups of layouts of which one each is replayed before all others, where many may be faster.
const GROUPS: usize = 24;

/// Layouts that are tried beyond that share, each with more room by the sums than those before it were refuted with.
const TRIES: usize = 16;

/// Of what a device has, the part that a layout has to spare by the sums so that it is expected to pass.
const SURE: i64 = 20;

/// A stage by itself: the layout but for its cut, and the layers of its chunks.
type Alone = (Point, usize, Vec<Range<usize>>);

/// A layout with the stage that is replayed before the others, and the operations that is predicted to take.
type Started = (Asked, Option<(usize, Alone, u64)>);

/// Layouts whose stages are told apart by the same things: all but the cut and the chunks of a stage.
type Class = (usize, Key, u64, Schedule, usize, Offload);

fn class(point: &Point) -> Class {
    (point.mode, point.key, point.pp, point.order.schedule, point.recompute, point.offload)
}

/// Layouts whose stages hold about the same share of what they hold in all.
type Pipeline = (usize, u64, Schedule, u64);

fn pipeline(point: &Point) -> Pipeline {
    (point.mode, point.pp, point.order.schedule, point.order.vpp)
}

/// What is known of layouts.
#[derive(Default)]
pub struct Verdicts {
    known: HashMap<Point, Result<Arc<Choice>, Refused>>,
    /// Bytes left at most on stages that were replayed alone.
    stages: HashMap<Alone, i64>,
    /// The stage that a layout of a class was last refuted by, and one of the same pipeline under other degrees.
    refuters: HashMap<Class, usize>,
    refuters_alike: HashMap<Pipeline, usize>,
    /// Operations that were taken.
    taken: u64,
    /// Bytes that the sums overlooked at most, of stages that hold one chunk and of those that hold several: what lies
    /// between blocks of chunks no sum tells.
    overlooked: [i64; 2],
    /// Those that the sums let pass and the replay did not, in the order in which they were asked.
    refuted: Vec<(Simulated, Refused)>,
}

/// A layout that is asked, as far as it has come.
enum Asked {
    Known,
    Case(Box<Case>),
    Refused(Refused),
    /// It takes more than is left.
    Unaffordable(Refused),
}

impl Verdicts {
    /// Layouts that a replay refused, with the bytes they miss at least.
    pub(crate) fn misses(&self) -> impl Iterator<Item = (i64, Point)> {
        let missing = |(point, verdict): (&Point, &Result<Arc<Choice>, Refused>)| {
            let missing = verdict.as_ref().err().map_or(0, |refused| refused.missing);
            (missing > 0).then_some((missing as i64, *point))
        };
        self.known.iter().filter_map(missing)
    }

    /// Bytes that a layout's replay left on the tightest rank, where it was replayed; none of one that it refused.
    pub(crate) fn headroom(&self, point: &Point) -> Option<Option<i64>> {
        let verdict = self.known.get(point)?;
        Some(verdict.as_ref().ok().map(|choice| choice.fit.tightest().headroom))
    }

    /// Layouts of a mode that the sums let pass and the replay did not.
    pub fn refuted<'s>(&'s self, space: &'s Space, mode: usize) -> impl Iterator<Item = &'s (Simulated, Refused)> {
        self.refuted.iter().filter(move |(one, _)| space.modes[one.point.mode].plain == mode)
    }

    /// Whether a layout has so much to spare by the sums that its replay is expected to let it pass.
    pub fn is_sure(&self, space: &Space, one: &Simulated) -> bool {
        let spare = one.headroom - space.question.headroom.0 as i64;
        let share = space.question.cluster.device.visible_bytes() as i64 / SURE;
        spare >= share + self.overlooked[chunks(one)]
    }

    /// Replays layouts of a mode that may be faster than the fastest one known, until one passes or none that takes
    /// at most so long is left.
    pub fn settle(&mut self, space: &Space, pricers: &[Pricer], best: &mut Best, left: &mut Left, most: f64) {
        self.improve(space, pricers, best, left, most);
        loop {
            let faster = best.faster(most);
            if faster.is_empty() {
                return;
            }
            if self.taken > space.question.limit.operations / SHARE[1] * SHARE[0] {
                return self.settle_for_less(space, pricers, best, left, most);
            }
            self.try_some(space, pricers, best, left, &faster[..faster.len().min(AT_ONCE)]);
        }
    }

    /// Where many may be faster, replays one of each group that has room to spare, the fastest first: whichever passes
    /// leaves fewer. What refutes one of a group often refutes the rest, which come in their turn.
    fn improve(&mut self, space: &Space, pricers: &[Pricer], best: &mut Best, left: &mut Left, most: f64) {
        let asked = space.question.headroom.0 as i64;
        let mut tried: HashSet<(Class, ZeroStage)> = HashSet::new();
        for part in [2, 4, 8] {
            while tried.len() < GROUPS {
                let faster = best.faster(most);
                if faster.len() <= MANY {
                    return;
                }
                let group = |one: &Simulated| (class(&one.point), one.point.zero);
                let has_room = |one: &&Simulated| (one.headroom - asked) * part >= self.overlooked[chunks(one)];
                let fresh = faster.iter().filter(has_room).filter(|one| tried.insert(group(one)));
                let some: Vec<Simulated> = fresh.take(AT_ONCE).copied().collect();
                if some.is_empty() {
                    break;
                }
                self.try_some(space, pricers, best, left, &some);
            }
        }
    }

    /// Replays a few, the fastest first, until one passes.
    fn try_some(&mut self, space: &Space, pricers: &[Pricer], best: &mut Best, left: &mut Left, some: &[Simulated]) {
        let asked = self.ask(space, pricers, some, left);
        for (one, asked) in some.iter().zip(asked) {
            if self.judge(space, pricers, best, one, asked, left) {
                break;
            }
        }
    }

    /// The same with nothing to spare: those that have most room by the sums for their time.
    fn settle_for_less(&mut self, space: &Space, pricers: &[Pricer], best: &mut Best, left: &mut Left, most: f64) {
        let (asked, mut caution) = (space.question.headroom.0 as i64, 0);
        for _ in 0..TRIES {
            if best.fastest.is_some() {
                break;
            }
            let faster = best.faster(most);
            let roomiest = faster.iter().max_by_key(|one| one.headroom);
            let Some(one) = faster.iter().find(|one| one.headroom >= asked + caution).or(roomiest) else { break };
            let case = self.ask(space, pricers, &[*one], left).pop();
            if case.is_some_and(|case| self.judge(space, pricers, best, one, case, left)) {
                break;
            }
            let missing = match self.known.get(&one.point) {
                Some(Err(refused)) => refused.missing as i64,
                _ => 0,
            };
            caution = caution.max(one.headroom - asked + missing) + 1;
        }
        best.faster(most).iter().for_each(|one| best.skip(one));
    }

    /// The jobs of layouts whose worst stages are not refuted by themselves.
    fn ask(&mut self, space: &Space, pricers: &[Pricer], batch: &[Simulated], left: &mut Left) -> Vec<Asked> {
        let mut started: Vec<Started> = Vec::new();
        for one in batch {
            started.push(match (self.known.contains_key(&one.point), space.case(&one.point)) {
                (true, _) => (Asked::Known, None),
                (false, Err(findings)) => (Asked::Refused(illegal(&findings)), None),
                (false, Ok(case)) => {
                    let is_whole = self.is_sure(space, one);
                    let worst = || pricers[one.point.mode].headroom(&one.point).map(|(_, stage)| stage);
                    let of_class = self.refuters.get(&class(&one.point));
                    let refuter = of_class.or_else(|| self.refuters_alike.get(&pipeline(&one.point)));
                    let stage = refuter.copied().or_else(worst);
                    match stage.filter(|_| !is_whole) {
                        None => (Asked::Case(Box::new(case)), None),
                        Some(stage) => {
                            let alone = alone(&one.point, &case, stage);
                            let takes = match self.stages.contains_key(&alone) {
                                true => 0,
                                false => work_of_stage(&case, stage).map_or(0, |work| work.operations),
                            };
                            match self.take(takes, pricers, left) {
                                Ok(()) => (Asked::Case(Box::new(case)), Some((stage, alone, takes))),
                                Err(refused) => (Asked::Unaffordable(refused), None),
                            }
                        }
                    }
                }
            });
        }
        let (known, margin) = (&self.stages, space.question.margin());
        let replay = |(case, alone): &Started| match (case, alone) {
            (Asked::Case(case), Some((stage, alone, _))) => {
                let replay = || most_headroom_of_stage(&margin.hardest(case), *stage, margin.headroom);
                Some(known.get(alone).map_or_else(replay, |headroom| Ok((*headroom, 0))))
            }
            _ => None,
        };
        let replayed: Vec<_> = started.par_iter().map(replay).collect();
        let wanted = margin.headroom.0 as i64;
        let judged = started.into_iter().zip(replayed).map(|((asked, alone), headroom)| match (alone, headroom) {
            (Some((stage, alone, predicted)), Some(Ok((headroom, took)))) => {
                self.give_back(predicted, took, left);
                self.stages.insert(alone, headroom);
                if headroom >= wanted { asked } else { Asked::Refused(Refused::stage(stage, wanted - headroom)) }
            }
            (_, Some(Err(reason))) => Asked::Refused(Refused::new(format!("{}: {}", reason.what, reason.why))),
            _ => asked,
        });
        judged.collect()
    }

    /// Replays a job that was asked whole. Whether it passes.
    fn judge(
        &mut self,
        space: &Space,
        pricers: &[Pricer],
        best: &mut Best,
        one: &Simulated,
        asked: Asked,
        left: &mut Left,
    ) -> bool {
        let verdict = match asked {
            Asked::Known => None,
            Asked::Refused(refused) => Some(Err(refused)),
            Asked::Unaffordable(refused) => return self.skip(best, one, refused),
            Asked::Case(case) => {
                let takes = space.question.replay(&case);
                if let Err(refused) = self.take(takes, pricers, left) {
                    return self.skip(best, one, refused);
                }
                let (verdict, took) = confirm(space, one, *case);
                self.give_back(takes, took, left);
                Some(verdict.map(Arc::new))
            }
        };
        if let Some(verdict) = verdict {
            if let Some(missing) =
                verdict.as_ref().err().map(|refused| refused.missing as i64).filter(|bytes| *bytes > 0)
            {
                let overlooked = one.headroom - space.question.headroom.0 as i64 + missing;
                let most = &mut self.overlooked[chunks(one)];
                *most = overlooked.max(*most);
            }
            if let Some(stage) = verdict.as_ref().err().and_then(|refused| refused.stage) {
                self.refuters.insert(class(&one.point), stage);
                self.refuters_alike.insert(pipeline(&one.point), stage);
            }
            if let (Err(refused), true) = (&verdict, best.is_likely(one)) {
                self.refuted.push((*one, refused.clone()));
            }
            self.known.insert(one.point, verdict);
        }
        match &self.known[&one.point] {
            Ok(choice) => best.pass(one, choice.fit.tightest().headroom),
            Err(_) => best.refute(one),
        }
        self.known[&one.point].is_ok()
    }

    /// Leaves out one whose replay takes more than is left.
    fn skip(&mut self, best: &mut Best, one: &Simulated, refused: Refused) -> bool {
        if best.is_likely(one) {
            self.refuted.push((*one, refused));
        }
        best.skip(one);
        false
    }

    /// Gives back what a replay was predicted to take and did not.
    fn give_back(&mut self, predicted: u64, took: u64, left: &mut Left) {
        let unused = predicted.saturating_sub(took);
        left.operations = left.operations.saturating_add(unused);
        self.taken = self.taken.saturating_sub(unused);
    }

    fn take(&mut self, takes: u64, pricers: &[Pricer], left: &mut Left) -> Result<(), Refused> {
        if takes > left.beside(pricers) {
            return Err(too_long(takes, left, pricers));
        }
        left.operations = left.operations.saturating_sub(takes);
        self.taken = self.taken.saturating_add(takes);
        Ok(())
    }

    /// A layout of a mode replayed whole, or what was known of it; none where that takes more than is left, or it
    /// does not pass.
    pub fn passed(
        &mut self,
        space: &Space,
        pricers: &[Pricer],
        best: &mut Best,
        one: &Simulated,
        left: &mut Left,
    ) -> Option<Arc<Choice>> {
        if !self.known.contains_key(&one.point) {
            let asked = self.ask(space, pricers, std::slice::from_ref(one), left).pop()?;
            self.judge(space, pricers, best, one, asked, left);
        }
        self.known.get(&one.point)?.as_ref().ok().cloned()
    }
}

/// Whether a layout's stages hold several chunks.
fn chunks(one: &Simulated) -> usize {
    usize::from(one.point.order.vpp > 1)
}

/// What the replay of a stage depends on.
fn alone(point: &Point, case: &Case, stage: usize) -> Alone {
    let chunks = case.stages.by_stage[stage].iter().map(|chunk| case.stages.chunks[*chunk].layers.clone());
    (Point { shape: 0, ..*point }, stage, chunks.collect())
}
