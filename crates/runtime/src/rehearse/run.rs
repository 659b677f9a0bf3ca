//! Runs a rehearsal: on one rank first, whose tensors all ranks are then compared with.

use super::compare::Wholes;
use super::outcome::{Expected, Outcome, RankOutcome, endings, join};
use super::{Ask, JUDGED_STEPS, Number, Prepared};
use crate::live::Meter;
use crate::real::Real;
use crate::report::{self, Subject};
use crate::stats::{Stats, norms, watched};
use crate::train::Trainer;
use comm::{Call, Comm, Group, Result, threads};
use diag::{Blame, Finding};
use layout::OwnershipTable;
use std::time::Instant;

/// Runs a prepared rehearsal. `watch` is told of every step done, on one rank and then on all.
pub fn rehearse(
    ask: &Ask,
    prepared: &Prepared,
    watch: &(dyn Fn(u64) + Sync),
) -> std::result::Result<Outcome, Vec<Finding>> {
    rehearse_over(ask, prepared, Over::Threads, watch)
}

/// The same where this process is one of the ranks and `comm` connects it to the others. A failure
/// between ranks is an error here, since whoever started the processes knows how each of them ended.
pub fn rehearse_between(
    ask: &Ask,
    prepared: &Prepared,
    comm: &Comm,
    watch: &(dyn Fn(u64) + Sync),
) -> std::result::Result<Outcome, Vec<Finding>> {
    rehearse_over(ask, prepared, Over::Processes(comm), watch)
}

/// How ranks are run.
#[derive(Clone, Copy)]
enum Over<'a> {
    Threads,
    Processes(&'a Comm),
}

fn rehearse_over(
    ask: &Ask,
    prepared: &Prepared,
    over: Over,
    watch: &(dyn Fn(u64) + Sync),
) -> std::result::Result<Outcome, Vec<Finding>> {
    match ask.number {
        Number::F32 => run::<f32>(ask, prepared, over, watch),
        Number::F64 => run::<f64>(ask, prepared, over, watch),
    }
}

/// Results of the run on one rank.
struct Reference {
    gradients: Wholes,
    weights: Wholes,
    losses: Vec<f64>,
    load: Vec<Vec<u64>>,
    /// What [`crate::stats`] counted, step after step.
    counted: Vec<f64>,
    seconds: f64,
}

fn run<R: Real>(
    ask: &Ask,
    prepared: &Prepared,
    over: Over,
    watch: &(dyn Fn(u64) + Sync),
) -> std::result::Result<Outcome, Vec<Finding>> {
    let table = OwnershipTable::new(&prepared.recipe, &prepared.layout)?;
    let paths: Vec<String> = table.rows.iter().map(|row| row.tensor.path.clone()).collect();
    let reference = reference::<R>(ask, prepared, watch).map_err(|f| vec![f])?;
    let since = Instant::now();
    let body = |comm: &Comm| rank::<R>(ask, prepared, &paths, &reference, comm, watch);
    let results = match over {
        Over::Threads => threads::run(prepared.layout.world as usize, ask.deadline, body),
        Over::Processes(comm) => processes(comm, body).map_err(|f| vec![f])?,
    };
    let seconds = since.elapsed().as_secs_f64();
    if matches!(over, Over::Processes(comm) if comm.rank() > 0) {
        return Ok(Outcome::Elsewhere);
    }
    let failed: Vec<_> = results.iter().enumerate().map(|(rank, r)| (rank, r.as_ref().err().cloned())).collect();
    let endings = endings(&failed);
    // What the runtime cannot run is refused by every rank before its first call: that is a refusal, not
    // a run that ended.
    if let [ending] = &endings[..]
        && ending.finding.blame == Blame::Engine
    {
        return Err(vec![ending.finding.clone()]);
    }
    if !endings.is_empty() {
        return Ok(Outcome::Ended(endings, seconds));
    }
    let ranks: Vec<RankOutcome> = results.into_iter().flatten().collect();
    let (recipe, layout) = (&prepared.recipe, &prepared.layout);
    let of = Subject { recipe, layout, table: &table, bytes_each: R::BYTES };
    let moved: Vec<_> = ranks.iter().map(|r| (r.moved.as_slice(), &r.routing)).collect();
    let held: Vec<_> = ranks.iter().map(|r| r.held.clone()).collect();
    let traffic = report::traffic(&of, &moved).map_err(|f| vec![f])?;
    let memory = report::memory(&of, &held).map_err(|f| vec![f])?;
    let phases = report::phases(&of, &held).map_err(|f| vec![f])?;
    let names = if ask.stats { watched(recipe, &table) } else { Vec::new() };
    let counted: Vec<&[f64]> = ranks.iter().map(|rank| rank.counted.as_slice()).collect();
    let norms = (norms(&names, &[&reference.counted]), norms(&names, &counted));
    let Reference { losses, load, seconds: alone, .. } = reference;
    let expected = Expected { losses, seconds: alone, load, traffic, memory, phases, paths, norms, number: ask.number };
    Ok(Outcome::Ran(Box::new(join(&ranks, expected, seconds))))
}

/// Runs everything on one rank.
fn reference<R: Real>(ask: &Ask, prepared: &Prepared, watch: &(dyn Fn(u64) + Sync)) -> Result<Reference> {
    let since = Instant::now();
    let comm = threads::alone();
    let layout = &prepared.one;
    let mut trainer = prepared.start.trainer::<R>(ask, prepared, layout, &comm)?;
    let batch = |step| prepared.start.batch(ask, prepared, layout, step);
    let (_, gradients) = trainer.gradients(&batch(0))?;
    let gradients = Wholes::new(trainer.shelf(), &gradients);
    let (mut losses, mut weights, mut counted) = (Vec::new(), None, Vec::new());
    watch_norms(ask, prepared, &mut trainer)?;
    for step in 0..ask.steps {
        losses.push(trainer.step(&batch(step))?.loss);
        counted.append(&mut trainer.watched());
        watch(step);
        if step + 1 == ask.steps.min(JUDGED_STEPS) {
            let now = trainer.weights()?;
            weights = Some(Wholes::new(trainer.shelf(), &now));
        }
    }
    let weights = weights.unwrap_or_else(|| Wholes::new::<R>(trainer.shelf(), &[]));
    Ok(Reference { gradients, weights, losses, load: trainer.load(), counted, seconds: since.elapsed().as_secs_f64() })
}

/// Has a trainer count norms, if they were asked for. Names are those of the split run, on one rank too.
fn watch_norms<R: Real>(ask: &Ask, prepared: &Prepared, trainer: &mut Trainer<R>) -> Result<()> {
    if ask.stats {
        let table = OwnershipTable::new(&prepared.recipe, &prepared.layout).map_err(|mut f| f.remove(0))?;
        trainer.watch(Stats::new(&watched(&prepared.recipe, &table)));
    }
    Ok(())
}

/// Runs the same steps as one of the ranks.
fn rank<R: Real>(
    ask: &Ask,
    prepared: &Prepared,
    paths: &[String],
    reference: &Reference,
    comm: &Comm,
    watch: &(dyn Fn(u64) + Sync),
) -> Result<RankOutcome> {
    let layout = &prepared.layout;
    let _meter = Meter::start(comm);
    let mut trainer = prepared.start.trainer::<R>(ask, prepared, layout, comm)?;
    ask.inject.iter().for_each(|inject| inject.begin(comm));
    let batch = |step| prepared.start.batch(ask, prepared, layout, step);
    let (_, gradients) = trainer.gradients(&batch(0))?;
    let mut out = RankOutcome {
        gradients: reference.gradients.differences(paths, trainer.shelf(), &gradients),
        ..RankOutcome::default()
    };
    drop(gradients);
    comm.traffic().clear();
    watch_norms(ask, prepared, &mut trainer)?;
    for step in 0..ask.steps {
        ask.inject.iter().for_each(|inject| inject.strike(comm, step, ask.deadline));
        let report = trainer.step(&batch(step))?;
        if step == 0 {
            out.moved = report::moved(&comm.traffic().all());
            out.routing = trainer.last().routing.clone();
        }
        // Reported is the step in which microbatches kept the most.
        if step == 0 || trainer.last().saved() > out.held.saved() {
            out.held = trainer.last().clone();
        }
        out.losses.push(report.loss);
        out.counted.append(&mut trainer.watched());
        if comm.rank() == 0 {
            watch(ask.steps + step);
        }
        if step + 1 == ask.steps.min(JUDGED_STEPS) {
            let weights = trainer.weights()?;
            out.weights = reference.weights.differences(paths, trainer.shelf(), &weights);
        }
    }
    prepared.start.save(ask, prepared, &trainer)?;
    Ok(out)
}

type Results = Vec<Result<RankOutcome>>;

/// Every process computes the same reference run, and all get everyone's results.
fn processes(comm: &Comm, body: impl Fn(&Comm) -> Result<RankOutcome>) -> Result<Results> {
    let mine = body(comm)?.encode();
    let call = Call::new("world", "what ranks came to");
    let (all, counts) = comm.all_gather_uneven(&Group::new(0..comm.world()), call, mine)?;
    let mut rest = all.as_slice();
    let mut ranks = Vec::with_capacity(comm.world());
    for count in counts {
        let (part, others) = rest.split_at(count);
        ranks.push(Ok(RankOutcome::decode(part)));
        rest = others;
    }
    Ok(ranks)
}
