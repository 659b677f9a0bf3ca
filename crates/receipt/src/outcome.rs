//! What became of a run, beside what was promised of it: the figures a reader asks for first.

use crate::record::{Kind, Prediction, Receipt};
use evidence::{Cause, EventKind, Evidence, Memory, MemoryKind, Step};
use serde::Serialize;
use std::collections::BTreeSet;

/// A run in a few figures. What nobody wrote down is `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// How it ended, in the source's words.
    pub state: Option<String>,
    /// What failed first, where it did not finish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Starts, the first among them.
    pub attempts: u64,
    /// Steps, each counted once however often it was run or written down.
    pub steps: u64,
    /// The highest number a step had.
    pub last_step: Option<u64>,
    /// Updates that were left out.
    pub skipped: u64,
    /// Steps whose loss or gradient was no number.
    pub nan: u64,
    /// Times that memory ran out.
    pub out_of_memory: u64,
    /// Median seconds of a step behind the warm-up.
    pub step_seconds: Option<f64>,
    /// What a step was promised to take.
    pub promised_seconds: Option<f64>,
    /// Peaks, allocated before reserved.
    pub memory: Vec<Beside>,
    /// The first step's number and loss.
    pub first_loss: Option<(u64, f64)>,
    /// The last one's.
    pub last_loss: Option<(u64, f64)>,
}

/// A figure of memory beside what was promised for its rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// What it counts.
    pub kind: MemoryKind,
    /// Whose it is; none where the source does not say.
    pub rank: Option<u64>,
    /// Bytes.
    pub measured: u64,
    /// What was promised for that rank; for the fullest where the rank is not known.
    pub promised: Option<u64>,
    /// What the source rounds to, either way.
    pub resolution: u64,
}

impl Beside {
    /// How much more was measured than promised, as a share of what was promised.
    pub fn error(&self) -> Option<f64> {
        let promised = self.promised.filter(|bytes| *bytes > 0)?;
        Some(self.measured as f64 / promised as f64 - 1.0)
    }
}

impl Outcome {
    /// Of a receipt.
    pub fn of(receipt: &Receipt) -> Outcome {
        let (run, said) = (&receipt.evidence, receipt.prediction.as_ref());
        let steps: BTreeSet<u64> = run.steps.iter().map(|step| step.number).collect();
        let attempts = run.steps.iter().map(|s| s.attempt).chain(run.events.iter().map(|e| e.attempt)).max();
        let loss = |step: &Step| step.loss.map(|loss| (step.number, loss));
        let count = |kind| run.events.iter().filter(|event| event.kind == kind).count() as u64;
        let times = |is: fn(&Step) -> bool| run.steps.iter().filter(|step| is(step)).count() as u64;
        let state = state(run);
        let is_over = state.as_deref().is_some_and(|state| state.starts_with("finished"));
        let (state, cause) = match stepless(receipt).filter(|_| is_over && steps.is_empty()) {
            Some(cause) => (Some("failed, without a step".to_string()), Some(cause)),
            None => (state, if is_over { None } else { evidence::cause(run) }),
        };
        Outcome {
            cause,
            state,
            attempts: attempts.map_or(0, |last| last.saturating_add(1)),
            steps: steps.len() as u64,
            last_step: steps.last().copied(),
            skipped: times(|step| step.skipped),
            nan: times(|step| step.nan),
            out_of_memory: count(EventKind::OutOfMemory),
            step_seconds: run.step_seconds(),
            promised_seconds: said.and_then(|said| said.step.as_ref()).map(|step| step.seconds),
            memory: [MemoryKind::AllocatedPeak, MemoryKind::ReservedPeak, MemoryKind::DeviceUsedPeak]
                .into_iter()
                .filter_map(|kind| run.most(kind, None))
                .map(|most| beside(most, said))
                .collect(),
            first_loss: run.steps.iter().find_map(loss),
            last_loss: run.steps.iter().rev().find_map(loss),
        }
    }

    /// How much longer a step took than promised, as a share of that.
    pub fn time_error(&self) -> Option<f64> {
        Some(self.step_seconds? / self.promised_seconds.filter(|seconds| *seconds > 0.0)? - 1.0)
    }
}

fn beside(memory: &Memory, said: Option<&Prediction>) -> Beside {
    Beside {
        kind: memory.kind,
        rank: memory.rank,
        measured: memory.bytes,
        promised: said.and_then(|said| promised(said, memory.kind, memory.rank)),
        resolution: memory.resolution,
    }
}

/// What a rank was promised to hold at most; the fullest where the rank is not known.
pub fn promised(said: &Prediction, kind: MemoryKind, rank: Option<u64>) -> Option<u64> {
    let of = said.ranks.iter().filter(|class| rank.is_none_or(|r| class.first_rank <= r && r <= class.last_rank));
    let bytes = of.map(|class| match kind {
        MemoryKind::Allocated | MemoryKind::AllocatedPeak => class.allocated_peak,
        MemoryKind::Reserved | MemoryKind::ReservedPeak => class.reserved_peak,
        MemoryKind::DeviceUsed | MemoryKind::DeviceUsedPeak => class.reserved_peak.saturating_add(class.outside),
        MemoryKind::HostUsed => class.host,
    });
    bytes.max()
}

/// Engines whose program prints steps that are read.
const PRINT_STEPS: [&str; 4] = ["fsdp2", "megatron", "torchtitan", "xla-spmd"];

/// What is said of a launch whose program ended well and took no step.
fn stepless(receipt: &Receipt) -> Option<Cause> {
    let engine = receipt.identity.engine.as_deref().filter(|engine| PRINT_STEPS.contains(engine));
    let is_launched = receipt.kind == Kind::Run && receipt.identity.launch_id.is_some() && engine.is_some();
    let end = receipt.evidence.events.iter().rfind(|event| event.kind == EventKind::End)?;
    let hint =
        "read the end of the log; where a checkpoint is already at the last step, the policy's run.steps goes further";
    is_launched.then(|| Cause {
        words: "the program ended by itself, and its log has no step".to_string(),
        rank: None,
        hint: Some(hint.to_string()),
        source: end.source,
        line: end.line,
    })
}

/// How the last attempt ended: the node it went wrong on speaks for all.
fn state(run: &Evidence) -> Option<String> {
    let last = run.events.iter().map(|event| event.attempt).max()?;
    let of_last = |kind| run.events.iter().filter(move |event| event.kind == kind && event.attempt == last);
    let ends: Vec<&str> = of_last(EventKind::End).map(|event| event.detail.as_str()).collect();
    let spoken = ends.iter().find(|detail| !detail.starts_with("finished")).or(ends.first());
    match spoken {
        Some(detail) => Some(detail.to_string()),
        None => of_last(EventKind::Start).next().map(|_| "running, or killed outright".to_string()),
    }
}
