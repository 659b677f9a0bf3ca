//! Where the time of a job went: useful steps, and what was lost, by kind. Every second of the job is on exactly one
//! line; what no line explains is a line of its own.

use crate::Receipt;
use evidence::{EventKind, Step};
use serde::Serialize;
use std::collections::BTreeMap;
use units::median;
use units::named;

named! {
    /// What time went to.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Spent {
        /// Steps that count, each at the job's usual pace.
        Useful = "useful steps",
        /// From the start of the processes to the first step, beside setup, compilation and loading.
        Start = "start",
        /// Model, data and process groups set up.
        Setup = "setup",
        /// Compilation, and what warm-up steps took beyond a usual one.
        Compile = "compile and warm-up",
        /// Checkpoints written.
        Saving = "checkpoints saved",
        /// Checkpoints read.
        Loading = "checkpoints loaded",
        /// Evaluation between steps.
        Evaluation = "evaluation",
        /// Steps whose work a failure threw away, and that ran again.
        Redone = "work redone",
        /// Between a failure and the next start.
        Down = "down after failures",
        /// What steps took beyond the usual pace: stragglers, waiting for data, retries.
        Slow = "slow steps",
        /// Steps whose update was left out.
        Skipped = "skipped steps",
        /// Nothing that was recorded says.
        Unexplained = "not explained",
    }
}

/// Where a job's time went.
#[derive(Clone, Debug, Serialize)]
pub struct Goodput {
    /// From the first thing that was recorded to the last.
    pub seconds: f64,
    /// Seconds by kind, all of them; they sum to `seconds`.
    pub spent: BTreeMap<&'static str, f64>,
    /// Share of the job that went into useful steps.
    pub useful: f64,
    /// A usual step: the median behind warm-up.
    pub step_seconds: Option<f64>,
    /// Attempts, each with its seconds by kind.
    pub attempts: Vec<Attempt>,
    /// Failures, however they were recorded.
    pub failures: usize,
    /// Between checkpoints, and what would have been better.
    pub interval: Option<Interval>,
    /// Times were missing, so that the whole is the sum of what was timed.
    pub is_partial: bool,
}

/// One start of the job.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    /// Starts before it.
    pub number: u64,
    /// Seconds by kind.
    pub spent: BTreeMap<&'static str, f64>,
}

/// How often checkpoints are written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Seconds between checkpoints, median; none of fewer than two.
    pub now: Option<f64>,
    /// Seconds that one takes, median.
    pub saving: f64,
    /// Seconds between failures, mean.
    pub between_failures: f64,
    /// The interval that loses least: √(2 · saving · between failures), J. W. Young, A first order approximation to
    /// the optimum checkpoint interval, Communications of the ACM 17(9), 1974.
    pub best: f64,
}

/// What was recorded of one start.
#[derive(Default)]
struct Stretch<'a> {
    steps: Vec<&'a Step>,
    events: Vec<&'a evidence::Event>,
}

impl Stretch<'_> {
    fn times(&self) -> impl Iterator<Item = f64> {
        // A step is written down at its end, an event with a length too.
        let steps = self.steps.iter().filter_map(|step| step.at).flat_map(|at| [Some(at), None]);
        let begun = self.steps.first().and_then(|step| Some(step.at? - step.seconds?));
        let events = self.events.iter().filter_map(|e| e.at);
        let lengths = self.events.iter().filter_map(|e| Some(e.at? - e.seconds?));
        steps.flatten().chain(begun).chain(events).chain(lengths).collect::<Vec<_>>().into_iter()
    }

    fn span(&self) -> Option<(f64, f64)> {
        let first = self.times().fold(f64::INFINITY, f64::min);
        let last = self.times().fold(f64::NEG_INFINITY, f64::max);
        (first <= last).then_some((first, last))
    }

    fn timed(&self, kind: EventKind) -> f64 {
        self.events.iter().filter(|e| e.kind == kind).filter_map(|e| e.seconds).sum()
    }
}

/// Adds up a job: receipts of its starts, in any order; one receipt may hold several attempts.
pub fn goodput(receipts: &[Receipt]) -> Option<Goodput> {
    let mut ordered: Vec<&Receipt> = receipts.iter().collect();
    ordered.sort_by(|a, b| a.recorded.cmp(&b.recorded));
    let stretches: Vec<Stretch> = ordered.iter().flat_map(|receipt| stretches(receipt)).collect();
    let all_steps = || stretches.iter().flat_map(|s| s.steps.iter().copied());
    let steady: Vec<f64> = all_steps().filter(|s| !s.warm_up && !s.skipped).filter_map(|s| s.seconds).collect();
    let usual = median(&steady).or_else(|| median(&all_steps().filter_map(|s| s.seconds).collect::<Vec<_>>()));
    let mut attempts = Vec::new();
    let (mut seconds, mut is_partial, mut last_end): (f64, bool, Option<f64>) = (0.0, false, None);
    for (number, stretch) in stretches.iter().enumerate() {
        // A step counts where no later start runs it again.
        let next = stretches[number + 1..].iter().filter_map(|s| s.steps.iter().map(|step| step.number).min()).min();
        let mut spent = of_stretch(stretch, usual.unwrap_or(0.0), next);
        let booked: f64 = spent.values().sum();
        match stretch.span() {
            Some((begin, end)) => {
                let down = last_end.map_or(0.0, |last| (begin - last).max(0.0));
                add(&mut spent, Spent::Down, down);
                let left = end - begin - booked;
                let before = start(stretch, begin).min(left.max(0.0));
                add(&mut spent, Spent::Start, before);
                // Events within steps are booked once, as themselves: a step that held them is not slow.
                if left < 0.0 {
                    let slow = spent.get(Spent::Slow.name()).copied().unwrap_or(0.0);
                    add(&mut spent, Spent::Slow, left.max(-slow));
                } else {
                    add(&mut spent, Spent::Unexplained, left - before);
                }
                last_end = Some(end);
            }
            None => is_partial = true,
        }
        seconds += spent.values().sum::<f64>();
        attempts.push(Attempt { number: number as u64, spent });
    }
    if seconds <= 0.0 {
        return None;
    }
    let mut spent: BTreeMap<&'static str, f64> = BTreeMap::new();
    for attempt in &attempts {
        attempt.spent.iter().for_each(|(kind, s)| *spent.entry(kind).or_default() += s);
    }
    let events = || stretches.iter().flat_map(|s| s.events.iter());
    let broken = |s: &&Stretch| s.events.iter().any(|e| matches!(e.kind, EventKind::Failure | EventKind::OutOfMemory));
    let failures = stretches.iter().filter(broken).count().max(stretches.len().saturating_sub(1));
    let saving: Vec<f64> =
        events().filter(|e| e.kind == EventKind::CheckpointSaved).filter_map(|e| e.seconds).collect();
    let interval = median(&saving).filter(|_| failures > 0).map(|saving| {
        let between_failures = seconds / failures as f64;
        Interval { now: between(&stretches), saving, between_failures, best: (2.0 * saving * between_failures).sqrt() }
    });
    Some(Goodput {
        useful: spent.get(Spent::Useful.name()).copied().unwrap_or(0.0) / seconds,
        seconds,
        spent,
        step_seconds: usual,
        attempts,
        failures,
        interval,
        is_partial,
    })
}

fn stretches(receipt: &Receipt) -> Vec<Stretch<'_>> {
    let mut by_attempt: BTreeMap<u64, Stretch> = BTreeMap::new();
    for step in &receipt.evidence.steps {
        by_attempt.entry(step.attempt).or_default().steps.push(step);
    }
    for event in &receipt.evidence.events {
        by_attempt.entry(event.attempt).or_default().events.push(event);
    }
    by_attempt.into_values().collect()
}

fn add(spent: &mut BTreeMap<&'static str, f64>, kind: Spent, seconds: f64) {
    if seconds != 0.0 {
        *spent.entry(kind.name()).or_default() += seconds;
    }
}

/// Seconds that steps and events account for.
fn of_stretch(stretch: &Stretch, usual: f64, next: Option<u64>) -> BTreeMap<&'static str, f64> {
    let mut spent = BTreeMap::new();
    for step in &stretch.steps {
        let Some(seconds) = step.seconds else { continue };
        if next.is_some_and(|next| step.number >= next) {
            add(&mut spent, Spent::Redone, seconds);
        } else if step.skipped {
            add(&mut spent, Spent::Skipped, seconds);
        } else {
            add(&mut spent, Spent::Useful, seconds.min(usual));
            let more = (seconds - usual).max(0.0);
            add(&mut spent, if step.warm_up { Spent::Compile } else { Spent::Slow }, more);
        }
    }
    let kinds = [
        (EventKind::Setup, Spent::Setup),
        (EventKind::Compile, Spent::Compile),
        (EventKind::CheckpointSaved, Spent::Saving),
        (EventKind::CheckpointLoaded, Spent::Loading),
        (EventKind::Evaluation, Spent::Evaluation),
    ];
    for (event, kind) in kinds {
        add(&mut spent, kind, stretch.timed(event));
    }
    spent
}

/// Seconds before the first step that no event explains.
fn start(stretch: &Stretch, begin: f64) -> f64 {
    let Some(first) = stretch.steps.first().and_then(|step| Some(step.at? - step.seconds?)) else { return 0.0 };
    let before = |e: &&&evidence::Event| e.at.is_some_and(|at| at <= first + 1e-9);
    let explained: f64 = stretch.events.iter().filter(before).filter_map(|e| e.seconds).sum();
    (first - begin - explained).max(0.0)
}

/// Median seconds between checkpoints of one start.
fn between(stretches: &[Stretch]) -> Option<f64> {
    let mut gaps = Vec::new();
    for stretch in stretches {
        let saved = stretch.events.iter().filter(|e| e.kind == EventKind::CheckpointSaved);
        let mut times: Vec<f64> = saved.filter_map(|e| e.at).collect();
        times.sort_by(f64::total_cmp);
        gaps.extend(times.windows(2).map(|pair| pair[1] - pair[0]));
    }
    median(&gaps)
}
