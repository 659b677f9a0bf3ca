//! The programs that `launch` writes for FSDP2 and XLA. `launch/assets/fsdp2/lines.py`, printed by rank 0:
//! ```text
//! f"starts {package} {version} … world {world} device {device}"
//! f"no checkpoint in {where} yet: step {done} of {steps}"        f"goes on from {path}: step {done} of {steps}"
//! f"step {number} loss {:.6f} grad_norm {:.6g} seconds {:.6f} tokens_per_second {:.6g} max_allocated {bytes} rank {rank} …"
//! f"saved {path} in {:.3f} seconds"
//! ```
//! A step is pairs of a name and a figure; `rank` after a figure of memory says whose it is: the fullest rank's. Bytes are
//! whole, and the most since the start. Until November 2026 a step had its loss and its seconds alone.

use super::log::{Log, Point, Rounded};
use super::text::{Line, around, figure, leading, number, whole};
use crate::{Event, EventKind, MemoryKind, Step};

#[derive(Default)]
pub struct Reader;

pub fn looks_like(line: &Line) -> bool {
    is_step(line) || is_place(line.text)
}

fn is_step(line: &Line) -> bool {
    let Some(rest) = line.text.strip_prefix(b"step ") else { return false };
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    digits > 0 && rest[digits..].starts_with(b" loss ") && line.has(b" seconds ")
}

/// `… step 3 of 10`, where a run begins.
fn is_place(text: &[u8]) -> bool {
    let begins = text.starts_with(b"no checkpoint in ") || text.starts_with(b"goes on from ");
    begins && around(text, b": step ").is_some_and(|(_, rest)| around(rest, b" of ").is_some())
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if is_step(line) {
            step(line, log);
        } else if let Some(rest) = line.text.strip_prefix(b"starts ").filter(|_| line.has(b" world ")) {
            starts(line, rest, log);
        } else if is_place(line.text) {
            log.started(line, None, &diag::quote::bytes(line.text, 200));
            if line.text.starts_with(b"goes on") {
                log.push(log.event(EventKind::CheckpointLoaded, line, line.text));
            }
        } else if let Some((_, took)) = around(line.text, b" in ").filter(|_| line.text.starts_with(b"saved ")) {
            let seconds = took.split(|b| *b == b' ').next().and_then(number);
            let event = log.event(EventKind::CheckpointSaved, line, line.text);
            log.push(Event { seconds, step: log.last_step(), ..event });
        } else {
            return false;
        }
        true
    }
}

/// Versions up to `world`, then the machine; the device's name has spaces.
fn starts(line: &Line, rest: &[u8], log: &mut Log) {
    let Some((versions, machine)) = around(rest, b" world ") else { return };
    let mut words = versions.split(|b| *b == b' ');
    while let (Some(name), Some(version)) = (words.next(), words.next()) {
        log.evidence.versions.insert(diag::quote::bytes(name, 40), diag::quote::bytes(version, 40));
    }
    match (leading(machine), around(machine, b" device ")) {
        (Some(world), Some((_, device))) => {
            log.evidence.machine.insert("world".to_string(), world.to_string());
            log.evidence.machine.insert("device".to_string(), diag::quote::bytes(device, 80));
        }
        _ => log.unread(line, "a start without its world or its device"),
    }
}

fn step(line: &Line, log: &mut Log) {
    let mut words = line.text.split(|b| *b == b' ').filter(|word| !word.is_empty()).peekable();
    let mut step = Step::default();
    let (mut is_whole, mut has_number, mut held) = (true, false, Vec::new());
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        let kind = match name {
            b"max_allocated" => Some(MemoryKind::AllocatedPeak),
            b"max_reserved" => Some(MemoryKind::ReservedPeak),
            b"max_used" => Some(MemoryKind::DeviceUsedPeak),
            _ => None,
        };
        if let Some(kind) = kind {
            let has_rank = words.next_if(|word| *word == b"rank").is_some();
            let rank = if has_rank { words.next().and_then(whole) } else { None };
            match whole(value).filter(|_| has_rank == rank.is_some()) {
                Some(bytes) => held.push((kind, bytes, rank)),
                None => is_whole = false,
            }
            continue;
        }
        let mut set = |into: &mut Option<f64>, name: &'static str| match figure(value) {
            Some(figure) => *into = log.value(name, figure),
            None => is_whole = false,
        };
        match name {
            b"step" => match whole(value) {
                Some(number) => (step.number, has_number) = (number, true),
                None => is_whole = false,
            },
            b"loss" => set(&mut step.loss, "loss"),
            b"grad_norm" => set(&mut step.grad_norm, "grad_norm"),
            b"seconds" => set(&mut step.seconds, "seconds"),
            b"tokens_per_second" => set(&mut step.tokens_per_second, "tokens_per_second"),
            _ => is_whole = false,
        }
    }
    if !has_number {
        return log.unread(line, "a step without its number");
    }
    if !is_whole {
        log.unread(line, "a step of which not every figure can be read");
    }
    let number = step.number;
    log.step(line, step);
    for (kind, bytes, rank) in held {
        let point = Point { phase: None, step: Some(number) };
        log.memory(line, rank, kind, Rounded { bytes, resolution: 0 }, point);
    }
}
