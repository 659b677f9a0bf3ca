//! Replays of a job's stages: what they take of this machine, and those that another pricing has made.

use super::{Pricing, RankClass};
use case::Case;
use layout::{Layout, StagePlan};
use ledger::{Ledger, RankJob};
use recipe::Recipe;
use replay::record::Recorder;
use replay::{Replay, Unmodelled};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
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

impl Replays {
    /// Replays every stage, on as many threads as there are; twins once.
    pub fn new(pricing: Pricing) -> Result<Replays, Unmodelled> {
        let case = pricing.case;
        let twins = twins(&case.stages);
        let own: Vec<usize> = (0..twins.len()).filter(|&stage| twins[stage] == stage).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(own.len());
        let next = AtomicUsize::new(0);
        let take = || own.get(next.fetch_add(1, Ordering::Relaxed)).copied();
        let replay = |stage| (stage, pricing.ledger.replay(&first_rank(case, stage)));
        let mut replayed: Vec<(usize, Result<Replay, Unmodelled>)> = std::thread::scope(|scope| {
            let work = || std::iter::from_fn(take).map(replay).collect::<Vec<_>>();
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        // The first stage that cannot be replayed says why.
        replayed.sort_by_key(|(stage, _)| *stage);
        let replays = replayed.into_iter().map(|(stage, replay)| Ok((stage, replay?))).collect::<Result<_, _>>()?;
        Ok(Replays {
            ledger: pricing.ledger.clone(),
            recipe: case.recipe.clone(),
            layout: case.layout.clone(),
            stages: case.stages.clone(),
            replays,
            twins,
        })
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

/// Bytes left on the ranks of one stage at most: its first step is replayed, and nothing else of the job. What moves to
/// the host is what stood at the highest point, which takes all steps to tell.
pub fn most_headroom_of_stage(case: &Case, stage: usize) -> Result<i64, Unmodelled> {
    left_on(case, stage, &shortest(case)?)
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

fn shortest(case: &Case) -> Result<Ledger, Unmodelled> {
    let ledger = Ledger::of_case(case)?;
    let moves = case.options.offload > 0.0 || case.options.offload_activations > 0.0;
    Ok(if moves { ledger } else { ledger.brief() })
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
