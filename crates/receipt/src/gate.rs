//! Whether a run may replace another: every figure against what it may lose. For people's CI.

use crate::Receipt;
use crate::compare::{Comparison, Parted, Sameness, compare};
use diag::{Blame, Finding};
use evidence::EventKind;
use serde::Serialize;
use units::named;

named! {
    /// How alike losses must be.
    pub enum Alike {
        /// Every step prints the same.
        Exact = "exact",
        /// No further apart than another order of accumulation explains.
        Order = "order",
        /// Late means of several runs cannot be told apart.
        Statistical = "statistical",
        /// Losses are not judged.
        Any = "any",
    }
}

/// What a run may lose. Megatron's own functional tests allow 5% of time and of memory; a plan predicted to a
/// thousandth can be held closer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Thresholds {
    /// Share of seconds a step that may be added.
    pub time: f64,
    /// Share of peak memory that may be added.
    pub memory: f64,
    /// How alike losses must be.
    #[serde(serialize_with = "by_name")]
    pub loss: Alike,
}

fn by_name<S: serde::Serializer>(alike: &Alike, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(alike.name())
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { time: 0.05, memory: 0.005, loss: Alike::Order }
    }
}

/// How one figure came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Passed {
    /// Within what is allowed.
    Yes,
    /// A regression.
    No,
    /// Neither side recorded it, or it may not be compared.
    NotJudged,
}

/// One figure of a gate.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The figure.
    pub figure: String,
    /// Of the baseline, as printed.
    pub old: String,
    /// Of the candidate.
    pub new: String,
    /// Relative change.
    pub change: Option<f64>,
    /// What is allowed, as printed.
    pub allowed: String,
    /// How it came out.
    pub passed: Passed,
}

/// A gate's answer.
#[derive(Clone, Debug, Serialize)]
pub struct Gate {
    /// Figures.
    pub rows: Vec<Row>,
    /// The comparison they come from.
    pub comparison: Comparison,
}

impl Gate {
    /// Figures that got worse.
    pub fn regressions(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.passed == Passed::No)
    }
}

/// Judges a candidate against a baseline. Refuses what is unlike, and what leaves nothing to judge.
pub fn gate(baseline: &[Receipt], candidate: &[Receipt], thresholds: Thresholds) -> Result<Gate, Vec<Finding>> {
    let comparison = compare(baseline, candidate)?;
    let refused = &comparison.refused;
    let mut why: Vec<&String> = refused.throughput.iter().chain(&refused.memory).collect();
    why.dedup();
    if let Some(first) = why.first() {
        let message = format!("the runs are unlike, and nothing is judged: {first}");
        let hint = "`shardwright receipt compare` lists what differs, layer by layer";
        return Err(vec![Finding::error("receipt/unlike", Blame::Usage, "gate", message).hint(hint)]);
    }
    let mut rows = vec![time(&comparison, baseline, candidate, thresholds.time)];
    rows.extend(memory(&comparison, baseline, candidate, thresholds.memory));
    rows.push(loss(&comparison, baseline, candidate, thresholds.loss));
    rows.extend(events(baseline, candidate));
    if rows.iter().all(|row| row.passed == Passed::NotJudged) {
        let message = "neither side recorded a figure that the other has too, so there is nothing to judge";
        return Err(vec![Finding::error("receipt/nothing-to-judge", Blame::Usage, "gate", message)]);
    }
    Ok(Gate { rows, comparison })
}

fn percent(share: f64) -> String {
    let text = format!("{:.3}", share * 100.0);
    format!("+{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A figure that one side lacks: a regression where the baseline had it.
fn lacking(figure: &str, old: bool, new: bool) -> Row {
    let said = |has: bool| if has { "recorded" } else { "not recorded" }.to_string();
    let passed = if old && !new { Passed::No } else { Passed::NotJudged };
    Row { figure: figure.to_string(), old: said(old), new: said(new), change: None, allowed: String::new(), passed }
}

fn time(comparison: &Comparison, old: &[Receipt], new: &[Receipt], allowed: f64) -> Row {
    let has = |side: &[Receipt]| side.iter().any(|receipt| receipt.evidence.step_seconds().is_some());
    let Some(speed) = &comparison.speed else { return lacking("seconds a step", has(old), has(new)) };
    let row = |figure: &str, a: String, b: String, lost: f64, change: f64| Row {
        figure: figure.to_string(),
        old: a,
        new: b,
        change: Some(change),
        allowed: percent(allowed),
        passed: if lost > allowed { Passed::No } else { Passed::Yes },
    };
    match (speed.change, speed.tokens_per_second) {
        (Some(change), _) => {
            let seconds = |s: f64| format!("{s:.4} s");
            row("seconds a step", seconds(speed.old.median), seconds(speed.new.median), change, change)
        }
        (None, Some((a, b))) => row("tokens a second", format!("{a:.0}"), format!("{b:.0}"), a / b - 1.0, b / a - 1.0),
        (None, None) => lacking("seconds a step", false, false),
    }
}

fn memory(comparison: &Comparison, old: &[Receipt], new: &[Receipt], allowed: f64) -> Vec<Row> {
    let has = |side: &[Receipt]| side.iter().any(|receipt| !receipt.evidence.memory.is_empty());
    if comparison.memory.is_empty() {
        return vec![lacking("peak memory", has(old), has(new))];
    }
    let gib = |bytes: u64| format!("{:.3} GiB", bytes as f64 / (1u64 << 30) as f64);
    let row = |change: &crate::compare::MemoryChange| {
        // What both logs round to cannot be held against the candidate.
        let room = allowed * change.old as f64 + 2.0 * change.resolution as f64;
        let worse = change.new as f64 - change.old as f64 > room;
        Row {
            figure: format!("{}, {}", kind_name(change.kind), change.class),
            old: gib(change.old),
            new: gib(change.new),
            change: Some(change.change()),
            allowed: percent(allowed),
            passed: if worse { Passed::No } else { Passed::Yes },
        }
    };
    comparison.memory.iter().map(row).collect()
}

/// A kind of memory, as printed.
pub fn kind_name(kind: evidence::MemoryKind) -> &'static str {
    use evidence::MemoryKind::*;
    match kind {
        Allocated => "allocated",
        AllocatedPeak => "peak allocated",
        Reserved => "reserved",
        ReservedPeak => "peak reserved",
        DeviceUsed => "device used",
        DeviceUsedPeak => "peak device used",
        HostUsed => "host used",
    }
}

fn loss(comparison: &Comparison, old: &[Receipt], new: &[Receipt], alike: Alike) -> Row {
    let has = |side: &[Receipt]| side.iter().any(|r| r.evidence.steps.iter().any(|step| step.loss.is_some()));
    let allowed = alike.name().to_string();
    let Some(losses) = &comparison.losses else {
        let row = lacking("loss", has(old), has(new));
        return match comparison.refused.loss.first() {
            Some(why) => Row { new: format!("not compared: {why}"), passed: Passed::NotJudged, ..row },
            None => row,
        };
    };
    let holds = match (&losses.same, alike) {
        (_, Alike::Any) => None,
        (Sameness::Bits | Sameness::Printed { .. }, _) => Some(true),
        (_, Alike::Exact) => Some(false),
        (Sameness::Order, _) => Some(true),
        (_, Alike::Order) => Some(false),
        (Sameness::Statistically, Alike::Statistical) => Some(true),
        // One run a side says nothing of noise: what cannot be shown is not passed.
        (Sameness::Different | Sameness::Undecided, Alike::Statistical) => Some(false),
    };
    let words = match losses.parted {
        Some(Parted { step, old, new, .. }) => (format!("{old:.6} at step {step}"), format!("{new:.6}")),
        None => (format!("{} steps", losses.steps), format!("apart by {:.1e}", losses.largest)),
    };
    let passed = holds.map_or(Passed::NotJudged, |holds| if holds { Passed::Yes } else { Passed::No });
    Row { figure: "loss".to_string(), old: words.0, new: words.1, change: None, allowed, passed }
}

/// How often something happened to a run.
type Count<'a> = &'a dyn Fn(&Receipt) -> usize;

/// What went wrong more often than before: out of memory, retries, failures, steps without a number.
fn events(old: &[Receipt], new: &[Receipt]) -> Vec<Row> {
    let count = |side: &[Receipt], of: Count| side.iter().map(of).max().unwrap_or(0);
    let of_kind = |kind: EventKind| {
        move |receipt: &Receipt| receipt.evidence.events.iter().filter(|event| event.kind == kind).count()
    };
    let nan = |receipt: &Receipt| {
        receipt.evidence.steps.iter().filter(|step| step.nan || step.loss.is_some_and(|loss| !loss.is_finite())).count()
    };
    let (oom, retries) = (of_kind(EventKind::OutOfMemory), of_kind(EventKind::AllocationRetry));
    let failures = of_kind(EventKind::Failure);
    let kinds: [(&str, Count); 4] = [
        ("out of memory", &oom),
        ("allocation retries", &retries),
        ("failures", &failures),
        ("steps without a number", &nan),
    ];
    let row = |(figure, of): (&str, Count)| {
        let (a, b) = (count(old, of), count(new, of));
        (a + b > 0).then(|| Row {
            figure: figure.to_string(),
            old: a.to_string(),
            new: b.to_string(),
            change: None,
            allowed: "no more".to_string(),
            passed: if b > a { Passed::No } else { Passed::Yes },
        })
    };
    kinds.into_iter().filter_map(row).collect()
}
