//! nanotron. `src/nanotron/logging/base.py`, `LoggerWriter` (April 2026): `f"iteration: {step} / {total}"` and ` | ` and
//! `f"{tag}: {human_format(value)}"`: three significant digits (`{:.3g}`), K, M, B, T, P, E for thousands. Tags are those
//! of `trainer.py`, `train_step_logs`; `global_batch_size` counts tokens, `grad_norm` is before clipping. Memory:
//! `Memory usage: {:.2f}MiB. Peak allocated {:.2f}MiB. Peak reserved: {:.2f}MiB`, peaks since the last such line.

use super::log::{Figure, Log, Point, Rounded};
use super::text::{Line, MIB, around, behind, bytes_of, leading, moment, number};
use crate::MemoryKind::{Allocated, AllocatedPeak, ReservedPeak};
use crate::Step;

#[derive(Default)]
pub struct Reader;

pub fn looks_like(line: &Line) -> bool {
    line.has(b"iteration: ") && line.has(b" | consumed_tokens: ") || is_memory(line)
}

fn is_memory(line: &Line) -> bool {
    line.has(b"Memory usage: ") && line.has(b"MiB. Peak allocated")
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if is_memory(line) {
            memory(line, log);
        } else if looks_like(line) {
            step(line, log);
        } else {
            return false;
        }
        true
    }
}

fn step(line: &Line, log: &mut Log) {
    let rest = line.behind(b"iteration: ").unwrap_or_default();
    let Some(number) = leading(rest) else { return log.unread(line, "an iteration without a number") };
    let mut step = Step { number, at: moment(line.text), ..Step::default() };
    let mut is_whole = true;
    for (key, value) in rest.split(|b| *b == b'|').skip(1).filter_map(|segment| around(segment, b": ")) {
        let (key, value) = (key.trim_ascii(), value.trim_ascii());
        if key == b"eta" {
            continue;
        }
        let Some(value) = human(value) else {
            is_whole = false;
            continue;
        };
        let mut set = |into: &mut Option<f64>, name: &'static str, unit: f64| {
            *into = log.value(name, Figure { value: value / unit, digits: Some(3) });
        };
        match key {
            b"time_per_iteration_ms" => set(&mut step.seconds, "seconds", 1e3),
            b"tokens_per_sec" => set(&mut step.tokens_per_second, "tokens_per_second", 1.0),
            b"tokens_per_sec_per_gpu" => set(&mut step.device_tokens_per_second, "device_tokens_per_second", 1.0),
            b"lm_loss" => set(&mut step.loss, "loss", 1.0),
            b"grad_norm" => set(&mut step.grad_norm, "grad_norm", 1.0),
            b"lr" => set(&mut step.learning_rate, "learning_rate", 1.0),
            b"model_tflops_per_gpu" => set(&mut step.tflops, "tflops", 1.0),
            b"consumed_tokens" => {}
            _ if step.others.len() < 64 && key.len() < 80 => {
                step.others.insert(diag::quote::bytes(key, 80), value);
            }
            _ => {}
        }
    }
    if !is_whole || step.seconds.is_none() {
        log.unread(line, "an iteration of which not every figure can be read");
    }
    log.step(line, step);
}

/// `12.3K`: units of a thousand each.
fn human(text: &[u8]) -> Option<f64> {
    let power = match text.last()? {
        b'K' => 3,
        b'M' => 6,
        b'B' => 9,
        b'T' => 12,
        b'P' => 15,
        b'E' => 18,
        _ => return number(text),
    };
    Some(number(&text[..text.len() - 1])? * 10f64.powi(power))
}

fn memory(line: &Line, log: &mut Log) {
    let figure = |word: &[u8]| -> Option<Rounded> {
        let rest = line.behind(word)?;
        let (value, _) = around(rest.strip_prefix(b":").unwrap_or(rest), b"MiB")?;
        bytes_of(value, MIB)
    };
    let phase = behind(line.text, b"[After ").and_then(|rest| around(rest, b"]"));
    let phase = phase.map(|(name, _)| format!("after {}", diag::quote::bytes(name, 60)));
    for (word, kind) in
        [(&b"Memory usage"[..], Allocated), (b"Peak allocated", AllocatedPeak), (b"Peak reserved", ReservedPeak)]
    {
        match figure(word) {
            Some(held) => log.memory(line, line.rank, kind, held, Point { phase: phase.clone(), step: None }),
            None if kind == ReservedPeak && !line.has(b"Peak reserved") => {}
            None => log.unread(line, "a figure of memory that is no number"),
        }
    }
}
