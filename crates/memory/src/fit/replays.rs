//! Replays of a job's stages: what they take of this machine, and those that another pricing has made.

use super::{Pricing, RankClass, dispatch_bytes, reserve};
use case::Case;
use layout::{Layout, StagePlan};
use ledger::{Ledger, RankJob, State, Within};
use rayon::prelude::*;
use recipe::{Mixer, Recipe};
use replay::record::Recorder;
use replay::{Replay, Unmodelled};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use units::Bytes;
use work::Work;

/// Every stage of a job replayed. Nothing but what stands here decides a replay, so that whoever prices
/// the same again under other terms (state on the host) takes these.
#[derive(Clone, Debug)]
pub(super) struct Replays {
    ledger: Ledger,
    recipe: Recipe,
    layout: Layout,
    stages: StagePlan,
    /// By stage that is no other's twin.
    replays: BTreeMap<usize, Replay>,
    twins: Vec<usize>,
}

/// A stage that holds more than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The first such stage.
    pub stage: usize,
    /// Bytes by which it is over, at least: its replay ends where it is known to be.
    pub missing: u64,
    /// Operations of this machine that it took to say so.
    pub operations: u64,
}

impl Replays {
    /// Replays every stage, on as many threads as there are; twins once.
    pub fn new(pricing: Pricing) -> Result<Replays, Unmodelled> {
        // Without a bound nothing is over it.
        Replays::within(pricing, None)?.map_err(|over| Unmodelled::new("this job", format!("{over:?}")))
    }

    /// The same until a stage is known to hold more than a device shows less `wanted`. Stages are begun in order, and all
    /// before the first that does are done, so that threads do not decide which one it is.
    pub fn within(pricing: Pricing, wanted: Option<Bytes>) -> Result<Result<Replays, Over>, Unmodelled> {
        let case = pricing.case;
        let twins = twins(&case.stages);
        let own: Vec<usize> = (0..twins.len()).filter(|&stage| twins[stage] == stage).collect();
        let threads = rayon::current_num_threads().min(own.len());
        let next = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        let take = || {
            let stage = || own.get(next.fetch_add(1, Ordering::Relaxed)).copied();
            if is_over.load(Ordering::Relaxed) { None } else { stage() }
        };
        let replay = |stage| {
            let tried = match wanted {
                Some(wanted) => try_stage(pricing, pricing.ledger, stage, wanted),
                None => pricing.ledger.replay(&first_rank(case, stage)).map(Tried::Whole),
            };
            is_over.fetch_or(matches!(tried, Ok(Tried::Over { .. })), Ordering::Relaxed);
            (stage, tried)
        };
        let work = |_| std::iter::from_fn(take).map(replay).collect::<Vec<_>>();
        let mut replayed: Vec<(usize, Result<Tried, Unmodelled>)> =
            (0..threads).into_par_iter().flat_map_iter(work).collect();
        // The first stage that cannot be replayed says why.
        replayed.sort_by_key(|(stage, _)| *stage);
        let (mut replays, mut walked) = (BTreeMap::new(), 0u64);
        for (stage, tried) in replayed {
            match tried? {
                Tried::Whole(replay) => {
                    walked = walked.saturating_add(pricing.ledger.work_of_walked(replay.operations));
                    replays.insert(stage, replay);
                }
                Tried::Over { missing, operations } => {
                    return Ok(Err(Over { stage, missing, operations: walked.saturating_add(operations) }));
                }
            }
        }
        Ok(Ok(Replays {
            ledger: pricing.ledger.clone(),
            recipe: case.recipe.clone(),
            layout: case.layout.clone(),
            stages: case.stages.clone(),
            replays,
            twins,
        }))
    }

    /// Operations of this machine that they took.
    pub fn operations(&self) -> u64 {
        let each = self.replays.values().map(|replay| self.ledger.work_of_walked(replay.operations));
        each.fold(0, u64::saturating_add)
    }

    /// Whether they are what replaying this would give.
    pub fn are_of(&self, pricing: Pricing) -> bool {
        let case = pricing.case;
        self.ledger == *pricing.ledger
            && self.layout == case.layout
            && self.stages == case.stages
            && self.recipe == case.recipe
    }

    /// The stage that stands for this one, and its first rank's replay.
    pub fn of(&self, stage: usize) -> (usize, &Replay) {
        let twin = self.twins[stage];
        (twin, &self.replays[&twin])
    }
}

/// The first rank of a stage, which stands for the rest.
fn first_rank(case: &Case, stage: usize) -> RankJob<'_> {
    let num_ranks = case.layout.world / case.layout.pp.get();
    let rank = stage as u64 * num_ranks;
    RankJob { recipe: &case.recipe, layout: &case.layout, stages: &case.stages, rank }
}

/// A replay that was written down.
pub struct Recorded {
    /// What the allocator did.
    pub recorder: Recorder,
    /// What it came to.
    pub replay: Replay,
    /// Whether microbatches that repeat were not walked.
    pub leaves_out: bool,
}

/// Replays the first rank of a stage once more and writes down what its allocator does, the last `most` events.
pub fn record(case: &Case, stage: usize, most: usize) -> Result<Recorded, Unmodelled> {
    let ledger = Ledger::of_case(case)?;
    let (recorder, job) = (Recorder::new(most), first_rank(case, twins(&case.stages)[stage]));
    let replay = ledger.record(&job, recorder.clone())?;
    let leaves_out = ledger.is_cut_short(&job) || recorder.read().left_out > 0;
    Ok(Recorded { recorder, replay, leaves_out })
}

/// The first stage that holds what each holds: under DualPipe a stage and its mirror hold the same
/// chunks and run the same order.
pub(super) fn twins(stages: &StagePlan) -> Vec<usize> {
    let mut first: HashMap<&[usize], usize> = HashMap::new();
    let held = stages.by_stage.iter().enumerate();
    held.map(|(stage, chunks)| *first.entry(chunks.as_slice()).or_insert(stage)).collect()
}

/// What [`most_headroom_of_stage`] takes of this machine.
pub fn work_of_stage(case: &Case, stage: usize) -> Result<Work, Unmodelled> {
    let ledger = shortest(case)?;
    Ok(ledger.work(&first_rank(case, twins(&case.stages)[stage])))
}

/// Bytes left on the ranks of one stage: all steps are replayed.
pub(super) fn headroom_of_stage(case: &Case, stage: usize) -> Result<i64, Unmodelled> {
    left_on(case, stage, &Ledger::of_case(case)?)
}

/// What that takes of this machine.
pub(super) fn replay_of_stage(case: &Case, stage: usize) -> Result<Work, Unmodelled> {
    Ok(Ledger::of_case(case)?.work(&first_rank(case, twins(&case.stages)[stage])))
}

fn left_on(case: &Case, stage: usize, ledger: &Ledger) -> Result<i64, Unmodelled> {
    let twin = twins(&case.stages)[stage];
    let replay = ledger.replay(&first_rank(case, twin))?;
    Ok(RankClass::price(Pricing { case, ledger }, twin, &replay).headroom)
}

/// Bytes left on the ranks of one stage at most, and the operations it took to say so: its first two steps are replayed,
/// until less than `wanted` is left, and nothing else of the job. What moves to the host is what stood at the highest point, which
/// takes all steps to tell.
pub fn most_headroom_of_stage(case: &Case, stage: usize, wanted: Bytes) -> Result<(i64, u64), Unmodelled> {
    let ledger = shortest(case)?;
    let twin = twins(&case.stages)[stage];
    let pricing = Pricing { case, ledger: &ledger };
    Ok(match try_stage(pricing, &ledger, twin, wanted)? {
        Tried::Whole(replay) => {
            let took = ledger.work_of_walked(replay.operations);
            (RankClass::price(pricing, twin, &replay).headroom, took)
        }
        Tried::Over { missing, operations } => (wanted.0 as i64 - missing as i64, operations),
    })
}

/// What a replay of a stage came to.
enum Tried {
    Whole(Replay),
    /// It holds so many bytes more than it may, at least.
    Over {
        missing: u64,
        operations: u64,
    },
}

/// Replays the first rank of a stage, until it is known to leave less than `wanted`.
fn try_stage(pricing: Pricing, ledger: &Ledger, stage: usize, wanted: Bytes) -> Result<Tried, Unmodelled> {
    let (case, job) = (pricing.case, first_rank(pricing.case, stage));
    if matches!(ledger, Ledger::Shardwright(_)) {
        return Ok(Tried::Whole(ledger.replay(&job)?));
    }
    let device = &case.on().device;
    let dispatch = dispatch_bytes(&case.recipe, &case.layout, &case.options);
    let outside = reserve::outside(device, &case.layout, case.recipe.uses(Mixer::Moe), dispatch);
    let besides: u64 = outside.iter().map(|held| held.bytes).sum();
    let most = device.visible_bytes().saturating_sub(besides.saturating_add(wanted.0));
    let state = if moves(case) { State::OnHost } else { State::Here };
    let is_part = case.options.offload_activations > 0.0 || (moves(case) && case.options.offload < 1.0);
    if is_part {
        return Ok(Tried::Whole(ledger.replay(&job)?));
    }
    Ok(match ledger.replay_within(&job, most, state)? {
        Within::Whole(replay) => Tried::Whole(replay),
        Within::Over { missing, walked } => Tried::Over { missing, operations: ledger.work_of_walked(walked) },
    })
}

fn moves(case: &Case) -> bool {
    case.options.offload > 0.0 || case.options.offload_activations > 0.0
}

fn shortest(case: &Case) -> Result<Ledger, Unmodelled> {
    let ledger = Ledger::of_case(case)?;
    Ok(if moves(case) { ledger } else { ledger.brief() })
}

/// What pricing a job takes of this machine: its stages replayed, as many at once as there are threads.
pub fn work(case: &Case) -> Result<Work, Unmodelled> {
    let ledger = Ledger::of_case(case)?;
    let twins = twins(&case.stages);
    let own = (0..twins.len()).filter(|&stage| twins[stage] == stage);
    let each: Vec<Work> = own.map(|stage| ledger.work(&first_rank(case, stage))).collect();
    let operations = each.iter().map(|work| work.operations).fold(0, u64::saturating_add);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(each.len()) as u64;
    let bytes = each.iter().map(|work| work.bytes).max().unwrap_or(0).saturating_mul(threads);
    Ok(Work { bytes, operations })
}
