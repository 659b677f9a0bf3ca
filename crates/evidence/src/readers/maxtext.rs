//! MaxText. `src/maxtext/common/metric_logger.py` (August 2026), joined by `", "`: `f"completed step: {step}"`,
//! `f"seconds: {:.3f}"`, `f"TFLOP/s/device: {:.3f}"`, `f"Tokens/s/device: {:.3f}"`, `f"total_weights: {}"`, `f"loss: {:.3f}"`,
//! `f"lm_loss: {:.3f}"`, `f"perplexity: {:.3f}"`, `f"moe_lb_loss: {:.6f}"` and others; `[Rampup Batch Size Phase]` before it
//! and no speed while the batch grows. `completed profiler activation/deactivation step:` has no time. Steps count from
//! zero. `total_weights` counts tokens of the step that are no padding. `utils/max_utils.py`, `print_mem_stats`:
//! `f"\tUsing (GB) {used} / {limit} ({used/limit:%}) on {device}"`, GB of 2^30 bytes in two decimals.

use super::log::{Log, Point, Rounded};
use super::text::{GIB, Line, around, behind, bytes_of, figure, leading, number, token};
use crate::{Event, EventKind, MemoryKind, Step};

#[derive(Default)]
pub struct Reader {
    /// The name of the report of memory whose devices follow.
    report: Option<String>,
}

pub fn looks_like(line: &Line) -> bool {
    is_step(line) || line.has(b"Memstats: ")
}

fn is_step(line: &Line) -> bool {
    (line.has(b"completed step: ") || line.has(b"completed profiler activation/deactivation step: "))
        && line.has(b", loss: ")
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if is_step(line) {
            step(line, log);
        } else if let Some(rest) = line.behind(b"Completed eval after train step ") {
            let event = log.event(EventKind::Evaluation, line, rest);
            log.push(Event { step: leading(rest).map(|step| step + 1), ..event });
        } else if let Some(rest) = line.behind(b"Memstats: ") {
            self.report = Some(diag::quote::bytes(rest.trim_ascii().strip_suffix(b":").unwrap_or(rest), 60));
        } else if let (Some(report), Some(rest)) = (&self.report, line.behind(b"Using (GB) ")) {
            let Some((_, device)) = around(rest, b") on ") else { return false };
            let phase = format!("{report} on {}", diag::quote::bytes(device.trim_ascii(), 60));
            match bytes_of(token(rest), GIB) {
                Some(held) => {
                    // Trailing zeros are not printed.
                    let held = Rounded { resolution: (0.005 * GIB) as u64, ..held };
                    log.memory(line, None, MemoryKind::DeviceUsed, held, Point { phase: Some(phase), step: None });
                }
                None => log.unread(line, "a figure of memory that is no number"),
            }
        } else {
            return false;
        }
        true
    }
}

fn step(line: &Line, log: &mut Log) {
    let Some(counted) = line.behind(b" step: ").and_then(leading) else {
        return log.unread(line, "a step without its number");
    };
    let mut step = Step { number: counted + 1, ..Step::default() };
    let mut is_whole = true;
    let fields = behind(line.text, b" step: ").unwrap_or_default();
    for (key, value) in fields.split(|b| *b == b',').skip(1).filter_map(|pair| around(pair, b": ")) {
        let value = value.trim_ascii();
        let mut set = |into: &mut Option<f64>, name: &'static str| match figure(value) {
            Some(figure) => *into = log.value(name, figure),
            None => is_whole = false,
        };
        match key.trim_ascii() {
            b"seconds" => set(&mut step.seconds, "seconds"),
            b"TFLOP/s/device" => set(&mut step.tflops, "tflops"),
            b"Tokens/s/device" => set(&mut step.device_tokens_per_second, "device_tokens_per_second"),
            b"loss" => set(&mut step.loss, "loss"),
            key => {
                let (Some(value), Ok(key)) = (number(value), std::str::from_utf8(key)) else {
                    is_whole = false;
                    continue;
                };
                if step.others.len() < 64 && key.len() < 80 {
                    step.others.insert(key.to_string(), value);
                }
            }
        }
    }
    if !is_whole || step.loss.is_none() {
        log.unread(line, "a step of which not every figure can be read");
    }
    log.step(line, step);
}
