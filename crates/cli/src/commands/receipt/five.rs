//! A run in five lines: how it ended, time, memory and loss against what was promised, and its receipt.

use super::percent;
use crate::commands::plan::text::seconds;
use ::receipt::{Beside, Outcome, Prediction};
use evidence::MemoryKind;
use units::{Bytes, exact};

/// The first four; the receipt's own is the caller's.
pub fn lines(outcome: &Outcome, said: Option<&Prediction>) -> String {
    [ended(outcome), time(outcome, said), memory(outcome), loss(outcome)].map(|line| line + "\n").concat()
}

fn number(count: u64, word: &str) -> String {
    format!("{} {word}{}", exact(count), if count == 1 { "" } else { "s" })
}

fn ended(outcome: &Outcome) -> String {
    let state = outcome.state.clone().unwrap_or_else(|| "nobody says how it ended".to_string());
    let mut words = vec![format!("\x1b[1m{}\x1b[0m", diag::quote::terminal(&state)), number(outcome.steps, "step")];
    if outcome.attempts > 1 {
        words.push(number(outcome.attempts, "attempt"));
    }
    for (count, word) in [(outcome.skipped, "skipped"), (outcome.nan, "with NaN")] {
        if count > 0 {
            words.push(format!("{} {word}", exact(count)));
        }
    }
    if outcome.out_of_memory > 0 {
        words.push("\x1b[1;31mout of memory\x1b[0m".to_string());
    }
    words.join(", ")
}

fn time(outcome: &Outcome, said: Option<&Prediction>) -> String {
    let promised = match said.and_then(|said| said.step.as_ref()) {
        None => "nothing promised".to_string(),
        Some(step) => match (step.low, step.high) {
            (Some(low), Some(high)) => {
                format!("{} promised, {} to {} in 8 of 10", seconds(step.seconds), seconds(low), seconds(high))
            }
            _ => format!("{} promised", seconds(step.seconds)),
        },
    };
    match (outcome.step_seconds, outcome.time_error()) {
        (Some(took), Some(error)) => format!("a step took {} ({}; {promised})", seconds(took), percent(error)),
        (Some(took), None) => format!("a step took {} ({promised})", seconds(took)),
        (None, _) => format!("no step was timed behind the warm-up ({promised})"),
    }
}

/// What a kind of memory is called in a sentence.
pub fn called(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Allocated => "allocated",
        MemoryKind::AllocatedPeak => "allocated at most",
        MemoryKind::Reserved => "reserved",
        MemoryKind::ReservedPeak => "reserved at most",
        MemoryKind::DeviceUsed => "used on the device",
        MemoryKind::DeviceUsedPeak => "used on the device at most",
        MemoryKind::HostUsed => "held on the host",
    }
}

fn memory(outcome: &Outcome) -> String {
    let one = |beside: &Beside| {
        let rank = beside.rank.map_or(String::new(), |rank| format!(" on rank {rank}"));
        let promised = match (beside.promised, beside.error()) {
            (Some(promised), Some(error)) => format!("{}; {} promised", percent(error), Bytes(promised)),
            _ => "nothing promised".to_string(),
        };
        format!("{} {}{rank} ({promised})", called(beside.kind), Bytes(beside.measured))
    };
    match outcome.memory.as_slice() {
        [] => "no log says how much memory was held".to_string(),
        all => all.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

fn loss(outcome: &Outcome) -> String {
    match (outcome.first_loss, outcome.last_loss) {
        (Some((first, from)), Some((last, to))) if first != last => {
            format!("loss {} at step {first}, {} at step {last}", figure(from), figure(to))
        }
        (Some((step, loss)), _) => format!("loss {} at step {step}", figure(loss)),
        _ => "no log says the loss".to_string(),
    }
}

/// A figure in as many digits as a reader compares.
pub fn figure(value: f64) -> String {
    match value.abs() {
        a if !value.is_finite() || a == 0.0 => format!("{value}"),
        a if (1e-3..1e6).contains(&a) => format!("{value:.4}"),
        _ => format!("{value:.3e}"),
    }
}
