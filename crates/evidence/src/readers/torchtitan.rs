//! torchtitan. `torchtitan/components/metrics.py`, `log` (main of August 2026), with colours unless they are switched off:
//! ```text
//! f"{color.red}step: {step:2}  "  f"{color.green}loss: {global_avg_loss:8.5f}  "       # 7.4f up to 0.2
//! f"{color.orange}grad_norm: {grad_norm:7.4f}  "                                       # from 0.2
//! f"{color.turquoise}memory: {max_reserved_gib:5.2f}GiB({max_reserved_pct:.2f}%)  "
//! f"{color.blue}tps: {round(tps):,}  "  f"{color.cyan}tflops: {tflops:,.2f}  "  f"{color.magenta}mfu: {mfu_str}{color.reset}"
//! ```
//! Memory is the most that was reserved since the last such line; `tps` is of one device. There is no time of a step:
//! it is none, and follows from `tps` by whoever knows the tokens of a step. `validate step:` is an evaluation. Lines
//! begin with `"[titan] %(asctime)s - %(name)s - %(levelname)s - "` (`tools/logging.py`).

use super::log::{Log, Point};
use super::text::{GIB, Line, around, behind, bytes_of, figure, leading, moment, number, token, with_commas};
use crate::{Event, EventKind, MemoryKind, Step};

#[derive(Default)]
pub struct Reader;

pub fn looks_like(line: &Line) -> bool {
    is_step(line) || line.text.starts_with(b"[titan] ")
}

fn is_step(line: &Line) -> bool {
    line.has(b"step: ") && line.has(b"  memory: ") && line.has(b"GiB(")
}

/// What stands behind a figure's name: it is set off by two spaces, or begins the message.
fn of<'l>(line: &Line<'l>, name: &str) -> Option<&'l [u8]> {
    line.behind(format!("  {name}: ").as_bytes())
}

/// As the logger writes it: `[titan] 2026-08-22 09:59:54,123 - root - INFO - `.
fn at(line: &Line) -> Option<f64> {
    behind(line.text, b"[titan] ").and_then(moment)
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if is_step(line) {
            self.step(line, log);
            return true;
        }
        for (words, kind) in [
            (&b"Finished loading the checkpoint in "[..], EventKind::CheckpointLoaded),
            (b"Finished saving the checkpoint", EventKind::CheckpointSaved),
            // From August 2026: `f"Finished {checkpoint_phase} the checkpoint in …"`, saving or staging.
            (b"Finished staging the checkpoint", EventKind::CheckpointSaved),
        ] {
            if let Some(rest) = line.behind(words) {
                let seconds = behind(rest, b"in ").or(Some(rest)).map(token).and_then(number);
                let event = log.event(kind, line, &line.text[line.text.len() - words.len() - rest.len()..]);
                log.push(Event { at: at(line), seconds, step: log.last_step(), ..event });
                return true;
            }
        }
        if let Some(rest) = line.behind(b"memory usage for model: ") {
            let held = around(rest, b"GiB(").and_then(|(gib, _)| bytes_of(gib, GIB));
            match held {
                Some(held) => {
                    let point = Point { phase: Some("model".to_string()), step: None };
                    log.memory(line, line.rank, MemoryKind::ReservedPeak, held, point);
                }
                None => log.unread(line, "a figure of memory that is no number"),
            }
            return true;
        }
        if line.has(b"Starting job: ") {
            log.started(line, at(line), "Starting job");
            return true;
        }
        if let Some(rest) = line.behind(b"Building device mesh with parallelism: ") {
            for (name, value) in rest.split(|b| *b == b',').filter_map(|pair| around(pair, b"=")) {
                if let (Ok(name), Some(value)) = (std::str::from_utf8(name.trim_ascii()), leading(value)) {
                    log.evidence.arguments.insert(name.chars().take(40).collect(), value.to_string());
                }
            }
            return true;
        }
        if let Some((device, _)) = line.behind(b" capacity: ").and_then(|rest| around(rest, b" with ")) {
            log.evidence.machine.insert("device".to_string(), diag::quote::bytes(device, 80));
            return true;
        }
        if line.has(b"Training completed") {
            log.push(Event { at: at(line), ..log.event(EventKind::End, line, b"finished: Training completed") });
            return true;
        }
        false
    }

    fn step(&self, line: &Line, log: &mut Log) {
        let number = line.behind(b"step: ").and_then(leading);
        let held = of(line, "memory").and_then(|rest| around(rest, b"GiB(")).and_then(|(gib, _)| bytes_of(gib, GIB));
        let (Some(number), Some(held)) = (number, held) else {
            return log.unread(line, "a step without its number or its memory");
        };
        let is_validation = line.has(b"validate step: ");
        let point = Point { phase: is_validation.then(|| "validation".to_string()), step: Some(number) };
        log.memory(line, line.rank, MemoryKind::ReservedPeak, held, point);
        if is_validation {
            let event = log.event(EventKind::Evaluation, line, line.behind(b"validate ").unwrap_or_default());
            return log.push(Event { at: at(line), step: Some(number), ..event });
        }
        let mut step = Step { number, at: at(line), ..Step::default() };
        let mut is_whole = true;
        let mut set = |into: &mut Option<f64>, word: &str, name: &'static str| {
            let Some(rest) = of(line, word) else { return };
            let rest = rest.trim_ascii_start();
            let text = &rest[..rest.iter().position(|b| *b == b' ').unwrap_or(rest.len())];
            match if text.contains(&b',') { with_commas(text) } else { figure(text) } {
                Some(figure) => *into = log.value(name, figure),
                None => is_whole = false,
            }
        };
        set(&mut step.loss, "loss", "loss");
        set(&mut step.grad_norm, "grad_norm", "grad_norm");
        set(&mut step.device_tokens_per_second, "tps", "device_tokens_per_second");
        set(&mut step.tflops, "tflops", "tflops");
        // A rank that does not hold the last stage has no loss, and prints -1.
        step.loss = step.loss.filter(|loss| *loss != -1.0);
        if !is_whole || step.device_tokens_per_second.is_none() {
            log.unread(line, "a step of which not every figure can be read");
        }
        log.step(line, step);
    }
}
