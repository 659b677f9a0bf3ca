//! Megatron-LM, and Megatron-Bridge, which prints the same iteration line with two of its own.
//!
//! `megatron/training/training.py`, `training_log` (core_v0.19.0, main of August 2026):
//! ```text
//! f" [{datetime.now().strftime('%Y-%m-%d %H:%M:%S.%f')}]"            # no time before core 0.6, no %f before 0.17
//! ' iteration {:8d}/{:8d} |'  ' consumed samples: {:12d} |'  ' skipped samples: {:12d} |'
//! ' elapsed time per iteration (ms): {:.1f} |'  ' throughput per GPU (TFLOP/s/GPU): {throughput:.1f} |'
//! ' energy per GPU (J/iter/GPU): {energy:.1f} |'  ' power per GPU (W/GPU): {power:.1f} |'
//! ' learning rate: {learning_rate:.6E} |'                            # .3E before core 0.6
//! ' global batch size: {batch_size:5d} |'  ' {}: {:.6E} |'.format(key, avg)   # only where avg >= 0: no NaN
//! "".join(f" {k}: {v:.2f} |" …)                                      # moe_logging.py: losses of routers
//! ' loss scale: {loss_scale:.1f} |'  ' grad norm: {grad_norm:.3f} |'  ' num zeros: {num_zeros_in_grad} |'
//! ' params norm: {params_norm:.3f} |'  ' number of skipped iterations: {:3d} |'  ' number of nan iterations: {:3d} |'
//! ```
//! Seconds are the mean over the log interval; skipped and NaN iterations are the interval's.
//! Megatron-Bridge (`src/megatron/bridge/training/utils/train_utils.py`, August 2026) before it, from rank 0:
//! `f"Step Time : {elapsed_time_per_iteration:.2f}s GPU utilization: {per_gpu_tf:.1f}MODEL_TFLOP/s/GPU"`.

mod arguments;
mod life;
mod memory;
mod timers;

use super::log::Log;
use super::text::{Line, around, figure, leading, moment, number, token, whole};
use crate::{Format, Step};

/// A log of either.
#[derive(Default)]
pub struct Reader {
    arguments: arguments::Arguments,
    timers: timers::Timers,
    life: life::Life,
    /// Bridge's `Step Time` line, which comes before the iteration it is of.
    utilisation: Option<f64>,
}

/// Whether a line is one that only these engines print.
pub fn looks_like(line: &Line) -> bool {
    iteration(line.text).is_some()
        || arguments::is_header(line.text)
        || memory::looks_like(line)
        || is_bridges(line.text)
}

fn is_bridges(text: &[u8]) -> bool {
    text.starts_with(b"Step Time : ")
}

impl Reader {
    /// Whether the line is the engine's.
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if self.timers.line(line, log) {
            return true;
        }
        if let Some((at, rest)) = iteration(line.text) {
            self.iteration(line, at, rest, log);
            // Ranks write into one file without waiting for each other's line to end.
            if memory::looks_like(line) {
                memory::line(line, log);
            }
            return true;
        }
        if self.arguments.line(line, log) || memory::line(line, log) {
            return true;
        }
        if is_bridges(line.text) {
            log.format = Format::MegatronBridge;
            let rest = line.behind(b"GPU utilization:").unwrap_or_default();
            self.utilisation = token(rest).strip_suffix(b"MODEL").and_then(number);
            if self.utilisation.is_none() {
                log.unread(line, "a step time without a utilisation");
            }
            return true;
        }
        self.life.line(line, log)
    }

    pub fn end(self, log: &mut Log) {
        self.timers.end(log);
    }

    fn iteration(&mut self, line: &Line, at: Option<f64>, rest: &[u8], log: &mut Log) {
        let Some(number) = leading(rest) else { return log.unread(line, "an iteration without a number") };
        let mut step = Step { number, at, tflops: self.utilisation.take(), ..Step::default() };
        let mut is_whole = true;
        for segment in rest.split(|b| *b == b'|').skip(1) {
            let Some(at) = memchr::memchr(b':', segment) else { continue };
            let (key, value) = (&segment[..at], &segment[at + 1..]);
            is_whole &= field(&mut step, key.trim_ascii(), value.trim_ascii(), log);
        }
        if !is_whole || step.seconds.is_none() {
            log.unread(line, "an iteration of which not every figure can be read");
        }
        log.step(line, step);
    }
}

/// The time of an iteration line, and what stands behind `iteration`.
fn iteration(text: &[u8]) -> Option<(Option<f64>, &[u8])> {
    let text = text.trim_ascii_start();
    let (at, text) = match text.strip_prefix(b"[") {
        Some(inner) => {
            let end = memchr::memchr(b']', &inner[..inner.len().min(40)])?;
            (moment(&inner[..end]), inner[end + 1..].trim_ascii_start())
        }
        None => (None, text),
    };
    let rest = text.strip_prefix(b"iteration ")?;
    let (count, behind) = around(&rest[..rest.len().min(40)], b"/")?;
    whole(count.trim_ascii())?;
    let behind = behind.trim_ascii_start();
    let is_followed = behind.iter().find(|b| !b.is_ascii_digit()).is_some_and(|b| matches!(b, b' ' | b'|'));
    is_followed.then_some((at, rest))
}

/// Takes one figure of an iteration line; whether it could be read.
fn field(step: &mut Step, key: &[u8], value: &[u8], log: &mut Log) -> bool {
    let mut set = |into: &mut Option<f64>, name: &'static str, unit: f64| match figure(value) {
        Some(figure) => {
            *into = log.value(name, figure).map(|value| value / unit);
            true
        }
        None => false,
    };
    match key {
        b"elapsed time per iteration (ms)" => set(&mut step.seconds, "seconds", 1e3),
        // `elapsed time per iteration (s)` never was Megatron-LM's; forks print it.
        b"elapsed time per iteration (s)" => set(&mut step.seconds, "seconds", 1.0),
        b"throughput per GPU (TFLOP/s/GPU)" => set(&mut step.tflops, "tflops", 1.0),
        b"energy per GPU (J/iter/GPU)" => set(&mut step.joules, "joules", 1.0),
        b"power per GPU (W/GPU)" => set(&mut step.watts, "watts", 1.0),
        b"learning rate" => set(&mut step.learning_rate, "learning_rate", 1.0),
        b"lm loss" => set(&mut step.loss, "loss", 1.0),
        b"grad norm" => set(&mut step.grad_norm, "grad_norm", 1.0),
        b"global batch size" => {
            step.samples = whole(value);
            step.samples.is_some()
        }
        b"number of skipped iterations" => {
            step.skipped = leading(value).is_some_and(|count| count > 0);
            leading(value).is_some()
        }
        b"number of nan iterations" => {
            step.nan |= leading(value).is_some_and(|count| count > 0);
            leading(value).is_some()
        }
        b"consumed samples" | b"skipped samples" | b"consumed tokens" => whole(value).is_some(),
        b"num zeros" => number(value).is_some(),
        // What bf16 prints: no scale at all.
        b"loss scale" if value == b"1.0" => true,
        _ => match (number(value), std::str::from_utf8(key)) {
            (Some(value), Ok(key)) if step.others.len() < 64 && key.len() < 80 => {
                step.others.insert(key.to_string(), value);
                true
            }
            (parsed, _) => parsed.is_some(),
        },
    }
}
