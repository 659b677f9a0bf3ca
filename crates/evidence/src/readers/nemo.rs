//! NeMo 2. `nemo/lightning/pytorch/callbacks/progress_printer.py` (2.5): `"Training" + f" epoch {epoch}, iteration
//! {n-1}/{total-1}"` and for each metric `f' | {metric}: {val}'`, whole where it is, else `f' | {metric}: {val:.4}'`: at
//! most four significant digits. Metrics are means over the log interval. Iterations count from zero.

use super::log::Log;
use super::text::{Line, around, behind, figure, leading, number, whole};
use crate::Step;

#[derive(Default)]
pub struct Reader;

const TRAINING: &[u8] = b"Training epoch ";

pub fn looks_like(line: &Line) -> bool {
    line.text.trim_ascii_start().starts_with(TRAINING) && line.has(b", iteration ")
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if !looks_like(line) {
            return false;
        }
        let Some(iteration) = behind(line.text, b", iteration ").and_then(leading) else {
            log.unread(line, "an iteration without a number");
            return true;
        };
        let mut step = Step { number: iteration + 1, ..Step::default() };
        let mut is_whole = true;
        for segment in line.text.split(|b| *b == b'|').skip(1) {
            let Some((key, value)) = around(segment, b": ") else { continue };
            is_whole &= field(&mut step, key.trim_ascii(), value.trim_ascii(), log);
        }
        if !is_whole {
            log.unread(line, "a metric that is no number");
        }
        log.step(line, step);
        true
    }
}

fn field(step: &mut Step, key: &[u8], value: &[u8], log: &mut Log) -> bool {
    let mut set = |into: &mut Option<f64>, name: &'static str| match figure(value) {
        // Trailing zeros are not printed, so that digits printed are no fewer than four.
        Some(mut figure) => {
            figure.digits = figure.digits.map(|digits| digits.max(4));
            *into = log.value(name, figure);
            true
        }
        None => false,
    };
    match key {
        b"reduced_train_loss" => set(&mut step.loss, "loss"),
        b"grad_norm" => set(&mut step.grad_norm, "grad_norm"),
        b"train_step_timing in s" => set(&mut step.seconds, "seconds"),
        b"lr" => set(&mut step.learning_rate, "learning_rate"),
        b"TFLOPS_per_GPU" => set(&mut step.tflops, "tflops"),
        b"throughput/tokens_per_sec" => set(&mut step.tokens_per_second, "tokens_per_second"),
        b"throughput/device/tokens_per_sec" => set(&mut step.device_tokens_per_second, "device_tokens_per_second"),
        b"global_batch_size" => {
            step.samples = whole(value);
            step.samples.is_some()
        }
        b"global_step" | b"consumed_samples" => number(value).is_some(),
        _ => {
            let (Some(value), Ok(key)) = (number(value), std::str::from_utf8(key)) else { return false };
            if step.others.len() < 64 && key.len() < 80 {
                step.others.insert(key.to_string(), value);
            }
            true
        }
    }
}
