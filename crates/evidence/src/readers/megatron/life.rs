//! Starts, setups, checkpoints, evaluations, stragglers and ends.
//!
//! `training.py`: `f'[{string}] datetime: {time_str} '` of `after megatron is initialized`, `before the start of training
//! step`, `after training is done`, `exiting program at iteration {iteration}` and others; `f' validation{suffix} loss at
//! {prefix} | '`. `checkpointing.py`: `'saving checkpoint at iteration {:7d} to {} in {} format'`, `'  successfully saved
//! checkpoint from iteration {:7d} to {}'` (`at iteration` up to core 0.5), with `[{now}] ` before each from core 0.17;
//! `'  scheduled an async checkpoint save at iteration …'`; ` loading {dist_infix}checkpoint from … at iteration {}`;
//! `'  successfully loaded checkpoint from {} [ … ] at iteration {}'`. `megatron/core/utils.py`, `StragglerDetector.report`:
//! `f"{now} | MnRtt/Rnk: {:.2f}ms/{rank} | MxRtt/Rnk: {:.2f}ms/{rank} | …"`.

use crate::readers::log::Log;
use crate::readers::text::{Line, around, behind, leading, moment, number, token};
use crate::{Event, EventKind};

#[derive(Default)]
pub struct Life {
    /// When the first stage of this start was over.
    first: Option<f64>,
    /// When the checkpoint being written was begun.
    saving: Option<f64>,
}

impl Life {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if line.text.len() < 16 {
            return false;
        }
        let first = line.text.iter().find(|b| **b != b' ');
        if line.text[0] == b'['
            && let Some((stage, time)) = around(line.text, b"] datetime: ")
        {
            return self.stage(line, stage, moment(time), log);
        }
        if matches!(first, Some(b'[' | b's')) && line.has(b"checkpoint") {
            return self.checkpoint(line, log);
        }
        if first == Some(&b'v')
            && let Some(rest) = line.behind(b" validation loss at ")
        {
            return evaluation(line, rest, log);
        }
        if line.has(b"MxRtt/Rnk: ") {
            return straggler(line, log);
        }
        false
    }

    fn stage(&mut self, line: &Line, stage: &[u8], at: Option<f64>, log: &mut Log) -> bool {
        let Some(stage) = stage.strip_prefix(b"[") else { return false };
        if at.is_none() {
            log.unread(line, "a stage without its time");
            return true;
        }
        let starts = behind(stage, b"before initialize_megatron").is_some();
        if starts || self.first.is_none() {
            self.first = at;
        }
        let kind = match stage {
            b"before the start of training step" => EventKind::Setup,
            b"after training is done" => EventKind::End,
            _ if stage.starts_with(b"exiting program") => EventKind::End,
            _ => return true,
        };
        let seconds = match kind {
            EventKind::Setup => at.zip(self.first.take()).map(|(now, first)| now - first).filter(|s| *s >= 0.0),
            _ => None,
        };
        let mut event = log.event(kind, line, stage);
        if kind == EventKind::End {
            let state = if stage.starts_with(b"exiting") { "stopped" } else { "finished" };
            event.detail = format!("{state}: {}", event.detail);
        }
        log.push(Event { at, seconds, ..event });
        true
    }

    fn checkpoint(&mut self, line: &Line, log: &mut Log) -> bool {
        let text = line.text.trim_ascii_start();
        let (at, words) = match text.strip_prefix(b"[").and_then(|inner| around(inner, b"] ")) {
            Some((time, words)) => (moment(time), words),
            None => (None, text),
        };
        let words = words.trim_ascii();
        // The number stands behind the path, which may hold the word itself.
        let step = memchr::memmem::rfind(words, b"iteration ").and_then(|at| leading(&words[at + 10..]));
        let first = behind(words, b"iteration ").and_then(leading);
        let is_read = if words.starts_with(b"saving checkpoint at iteration ") {
            self.saving = at;
            first.is_some()
        } else if words.starts_with(b"successfully saved checkpoint") || words.starts_with(b"successfully saved local")
        {
            let seconds = at.zip(self.saving.take()).map(|(now, began)| now - began).filter(|s| *s >= 0.0);
            let event = log.event(EventKind::CheckpointSaved, line, words);
            log.push(Event { at, seconds, step: first, ..event });
            first.is_some()
        } else if words.starts_with(b"successfully loaded checkpoint from ") {
            let event = log.event(EventKind::CheckpointLoaded, line, words);
            log.push(Event { at, step, ..event });
            step.is_some()
        } else {
            return false;
        };
        if !is_read {
            log.unread(line, "a checkpoint without its iteration");
        }
        true
    }
}

fn evaluation(line: &Line, rest: &[u8], log: &mut Log) -> bool {
    let step = behind(rest, b"iteration ").and_then(leading);
    log.push(Event { step, ..log.event(EventKind::Evaluation, line, line.text) });
    true
}

/// The slowest rank, and how much longer it took than the fastest.
fn straggler(line: &Line, log: &mut Log) -> bool {
    let pair = |word: &[u8]| {
        let rest = line.behind(word)?;
        let (value, rank) = around(rest, b"ms/")?;
        Some((number(token(value))?, leading(rank)?))
    };
    let (Some((least, _)), Some((most, rank))) = (pair(b"MnRtt/Rnk: "), pair(b"MxRtt/Rnk: ")) else {
        log.unread(line, "a straggler line without its times");
        return true;
    };
    let mut event = log.event(EventKind::Straggler, line, line.text);
    event.at = line.behind(b"[").and_then(moment);
    event.seconds = Some((most - least) / 1e3).filter(|s| s.is_finite());
    (event.rank, event.step) = (Some(rank), log.last_step());
    log.push_repeated("straggler", event);
    true
}
