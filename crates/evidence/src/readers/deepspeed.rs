//! DeepSpeed. Each line begins as `deepspeed/utils/logging.py` says, `"[%(asctime)s] [%(levelname)s]
//! [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"`, and `[Rank {}] ` where one rank speaks for all (August 2026):
//! - `runtime/engine.py`: `f"step={step}, skipped={self.skipped_steps}, lr={lr}, mom={mom}"`, skipped since the start;
//! - `utils/timer.py`: `"epoch={}/micro_step={}/global_step={}, RunningAvgSamplesPerSec={}, CurrSamplesPerSec={}, \
//!   MemAllocated={}GB, MaxMemAllocated={}GB"`, samples of all devices, GB of 2^30 bytes in two decimals;
//! - `runtime/pipe/engine.py`: `f'steps: {} loss: {:0.4f} iter time (s): {:0.3f} samples/sec: {:0.3f}'`, from rank 0;
//! - `runtime/utils.py`, `see_memory_usage`: a message, then `"MA {} GB Max_MA {} GB CA {} GB Max_CA {} GB "`, of rank 0, of
//!   which `Max_CA` is rounded to whole GB, then `'CPU Virtual Memory:  used = {} GB, percent = {}%'`;
//! - `runtime/config.py`: `"  {} {} {}".format(arg, dots, value)` with dots up to 29.

use super::log::{Log, Point};
use super::text::{GIB, Line, around, behind, bytes_of, figure, leading, moment, number, token};
use crate::MemoryKind::{Allocated, AllocatedPeak, HostUsed, Reserved, ReservedPeak};
use crate::{Event, EventKind};

#[derive(Default)]
pub struct Reader {
    /// Steps that were skipped so far.
    skipped: u64,
    /// Samples of a step, as the configuration says.
    batch: Option<u64>,
    /// What stood on the line before: the name of a report of memory.
    before: String,
}

pub fn looks_like(line: &Line) -> bool {
    is_throughput(line) || is_pipeline(line) || is_usage(line) || is_progress(line) || is_configuration(line)
}

fn is_throughput(line: &Line) -> bool {
    line.has(b"/global_step=") && line.has(b"RunningAvgSamplesPerSec=")
}

fn is_pipeline(line: &Line) -> bool {
    line.text.starts_with(b"steps: ") && line.has(b"iter time (s): ")
}

fn is_progress(line: &Line) -> bool {
    line.has(b", skipped=") && line.has(b", lr=") && line.has(b"step=")
}

fn is_usage(line: &Line) -> bool {
    line.has(b" GB") && line.has(b"Max_MA ") && line.has(b"Max_CA ")
}

fn is_configuration(line: &Line) -> bool {
    line.has(b"[config.py:") && line.has(b":print] ")
}

/// What was said, behind the logger's own words.
fn message<'l>(line: &Line<'l>) -> &'l [u8] {
    let mut text = line.text;
    while let Some(inner) = text.strip_prefix(b"[") {
        let Some((_, rest)) = around(inner, b"] ") else { break };
        text = rest;
    }
    text
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        let is_read = self.read(line, log);
        self.before = if is_usage(line) { String::new() } else { diag::quote::bytes(message(line).trim_ascii(), 80) };
        is_read
    }

    fn read(&mut self, line: &Line, log: &mut Log) -> bool {
        if is_throughput(line) {
            self.throughput(line, log);
        } else if is_pipeline(line) {
            self.pipeline(line, log);
        } else if is_progress(line) {
            self.progress(line, log);
        } else if is_usage(line) {
            self.usage(line, log);
        } else if let Some(rest) = line.behind(b"CPU Virtual Memory:  used = ") {
            match bytes_of(token(rest), GIB) {
                Some(held) => log.memory(line, Some(0), HostUsed, held, Point::default()),
                None => log.unread(line, "a figure of memory that is no number"),
            }
        } else if line.has(b"Saving model checkpoint: ") {
            let event = log.event(EventKind::CheckpointSaved, line, message(line));
            log.push(Event { at: moment_of(line), step: log.last_step(), ..event });
        } else if line.has(b"] OVERFLOW! ") || line.has(b"OVERFLOW! Rank ") {
            // The line of progress that follows says so of its step.
        } else {
            return self.configuration(line, log);
        }
        true
    }

    fn throughput(&mut self, line: &Line, log: &mut Log) {
        let number = line.behind(b"/global_step=").and_then(leading);
        let rate = line.behind(b"CurrSamplesPerSec=").map(token).and_then(figure);
        let (Some(number), Some(rate)) = (number, rate) else {
            return log.unread(line, "a throughput without its step or its samples");
        };
        let seconds = self.batch.map(|batch| batch as f64 / rate.value).filter(|s| s.is_finite() && *s > 0.0);
        let step = log.step_of(line, number);
        step.at = moment_of(line);
        step.seconds = step.seconds.or(seconds);
        let samples = rate.value;
        if samples.is_finite() {
            step.others.insert("CurrSamplesPerSec".to_string(), samples);
        }
        let point = || Point { phase: None, step: Some(number) };
        for (word, kind) in [(&b" MemAllocated="[..], Allocated), (b"MaxMemAllocated=", AllocatedPeak)] {
            let held = line.behind(word).and_then(|rest| around(rest, b"GB")).and_then(|(gb, _)| gib(gb));
            match held {
                Some(held) => log.memory(line, rank_of(line), kind, held, point()),
                None => log.unread(line, "a throughput without its memory"),
            }
        }
    }

    fn pipeline(&mut self, line: &Line, log: &mut Log) {
        let step_number = line.behind(b"steps: ").and_then(leading);
        let loss = line.behind(b" loss: ").map(token).and_then(figure);
        let seconds = line.behind(b"iter time (s): ").map(token).and_then(figure);
        let rate = line.behind(b"samples/sec: ").map(token).and_then(number);
        let (Some(number), Some(loss), Some(seconds)) = (step_number, loss, seconds) else {
            return log.unread(line, "a step without its number, loss or time");
        };
        let (loss, seconds) = (log.value("loss", loss), log.value("seconds", seconds));
        let step = log.step_of(line, number);
        step.nan |= loss.is_some_and(|loss| !loss.is_finite());
        step.loss = loss.filter(|loss| loss.is_finite());
        step.seconds = seconds.filter(|s| s.is_finite());
        let samples = rate.zip(seconds).map(|(rate, seconds)| (rate * seconds).round());
        step.samples = step.samples.or(samples.filter(|n| (1.0..1e15).contains(n)).map(|n| n as u64));
    }

    fn progress(&mut self, line: &Line, log: &mut Log) {
        let message = message(line);
        let number = behind(message, b"step=").and_then(leading);
        let skipped = behind(message, b", skipped=").and_then(leading);
        let (Some(number), Some(skipped)) = (number, skipped) else {
            return log.unread(line, "progress without its step");
        };
        let rate = behind(message, b", lr=[").map(token).and_then(figure).filter(|f| f.value.is_finite());
        let rate = rate.and_then(|rate| log.value("learning_rate", rate));
        let at = moment_of(line);
        let step = log.step_of(line, number);
        step.at = step.at.or(at);
        step.learning_rate = rate;
        step.skipped = skipped > self.skipped;
        step.samples = step.samples.or(self.batch);
        self.skipped = skipped;
    }

    fn usage(&mut self, line: &Line, log: &mut Log) {
        let message = message(line);
        let phase = (!self.before.is_empty()).then(|| self.before.clone());
        for (word, kind) in
            [(&b"MA "[..], Allocated), (b"Max_MA ", AllocatedPeak), (b" CA ", Reserved), (b"Max_CA ", ReservedPeak)]
        {
            let value = behind(message, word).map(token);
            let held = value.and_then(|value| if kind == ReservedPeak { bytes_of(value, GIB) } else { gib(value) });
            match held {
                Some(held) => log.memory(line, Some(0), kind, held, Point { phase: phase.clone(), step: None }),
                None => log.unread(line, "a figure of memory that is no number"),
            }
        }
    }

    fn configuration(&mut self, line: &Line, log: &mut Log) -> bool {
        if !is_configuration(line) {
            return false;
        }
        let text = message(line).trim_ascii_start();
        let Some((name, rest)) = around(text, b" ") else { return false };
        let dots = rest.iter().take_while(|b| **b == b'.').count();
        let is_name = !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
        if !is_name || dots == 0 || log.evidence.arguments.len() >= 4096 {
            return false;
        }
        let value = rest[dots..].trim_ascii();
        if name == b"train_batch_size" {
            self.batch = leading(value);
        }
        let name = String::from_utf8_lossy(name).into_owned();
        log.evidence.arguments.insert(name, diag::quote::bytes(value, 4096));
        true
    }
}

/// `round(…, 2)` leaves trailing zeros away: two decimals, however many are printed.
fn gib(text: &[u8]) -> Option<super::log::Rounded> {
    let held = bytes_of(text, GIB)?;
    Some(super::log::Rounded { resolution: (0.005 * GIB) as u64, ..held })
}

fn moment_of(line: &Line) -> Option<f64> {
    line.text.strip_prefix(b"[").and_then(moment)
}

fn rank_of(line: &Line) -> Option<u64> {
    line.behind(b"[Rank ").and_then(leading).or(line.rank)
}
