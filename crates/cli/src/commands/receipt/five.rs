//! A run in five lines: how it ended, time, memory and loss against what was promised, and its receipt. What failed first is
//! one more.

use super::percent;
use crate::commands::plan::text::seconds;
use ::receipt::{Beside, Kind, Outcome, Prediction};
use evidence::MemoryKind;
use units::{Bytes, exact};

/// The first four; the receipt's own is the caller's.
pub fn lines(kind: Kind, outcome: &Outcome, said: Option<&Prediction>) -> String {
    let last = match kind {
        Kind::Probe => "losses mean nothing where other ranks are stood in for".to_string(),
        _ => loss(outcome),
    };
    let rest = [time(outcome, said), memory(outcome), last].map(|line| line + "\n").concat();
    ended(kind, outcome) + "\n" + &cause(outcome) + &rest
}

/// What failed first and what to do, of a run that did not finish.
fn cause(outcome: &Outcome) -> String {
    let Some(cause) = &outcome.cause else { return String::new() };
    let rank = cause.rank.map_or(String::new(), |rank| format!("rank {rank}: "));
    let hint = cause.hint.as_ref().map_or(String::new(), |hint| format!("  hint: {}\n", diag::quote::sentence(hint)));
    format!("  \x1b[31mfirst: {rank}{}\x1b[0m\n{hint}", diag::quote::sentence(&cause.words))
}

fn number(count: u64, word: &str) -> String {
    format!("{} {word}{}", exact(count), if count == 1 { "" } else { "s" })
}

fn ended(kind: Kind, outcome: &Outcome) -> String {
    let state = outcome.state.clone().unwrap_or_else(|| "nobody says how it ended".to_string());
    let mut words = vec![format!("\x1b[1m{}\x1b[0m", diag::quote::terminal(&state)), number(outcome.steps, "step")];
    if outcome.attempts > 1 {
        words.push(number(outcome.attempts, "attempt"));
    }
    for (count, word) in [(outcome.skipped, "skipped"), (outcome.nan, "with NaN")] {
        if count > 0 && kind != Kind::Probe {
            words.push(format!("{} {word}", exact(count)));
        }
    }
    if outcome.out_of_memory > 0 {
        words.push("\x1b[1;31mout of memory\x1b[0m".to_string());
    }
    words.join(", ")
}

fn time(outcome: &Outcome, said: Option<&Prediction>) -> String {
    let Some(step) = said.and_then(|said| said.step.as_ref()) else {
        return match outcome.step_seconds {
            Some(took) => format!("a step took {} (nothing promised)", seconds(took)),
            None => "no step was timed behind the warm-up (nothing promised)".to_string(),
        };
    };
    let promised = seconds(step.seconds);
    let range = match (step.low, step.high) {
        (Some(low), Some(high)) => format!(", {} to {} in 8 of 10", seconds(low), seconds(high)),
        _ => String::new(),
    };
    match (outcome.step_seconds, outcome.time_error()) {
        (Some(took), Some(error)) => {
            format!("a step took {} ({promised} promised, {}{range})", seconds(took), percent(error))
        }
        _ => format!("no step was timed behind the warm-up ({promised} promised)"),
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
    let one = |(at, beside): (usize, &Beside)| {
        let off = match (beside.promised, beside.error()) {
            (Some(promised), Some(error)) if at == 0 => format!("{} promised, {}", Bytes(promised), percent(error)),
            (_, Some(error)) => percent(error),
            _ => "nothing promised".to_string(),
        };
        format!("{} {} ({off})", called(beside.kind).trim_end_matches(" at most"), Bytes(beside.measured))
    };
    match outcome.memory.get(..outcome.memory.len().min(2)) {
        Some([]) | None => "no log says how much memory was held".to_string(),
        Some(all) => format!("peak {}", all.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")),
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
