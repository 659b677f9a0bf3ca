//! Logs and reports as evidence: one format a file, each with the engine's own format string.
//!
//! A file is streamed: what is held does not grow with it, but for the steps that are kept. Its format is told or found
//! out, line by line, by lines that only one engine prints. What looks like a line of the format and cannot be read is
//! counted, and the first of it kept with the source; nothing is guessed. Whatever the engine, failures that any process
//! prints are read as well.

mod deepspeed;
mod documents;
mod failures;
mod grams;
mod hook;
mod log;
mod maxtext;
mod megatron;
mod mllog;
mod nanotron;
mod nemo;
mod nvidia_smi;
mod progress;
mod shardwright;
mod stream;
mod text;
mod torchtitan;
mod traceback;

use crate::snapshot::{Action, Snapshot};
use crate::{Event, EventKind, Evidence, Format, MemoryKind};
use diag::{Blame, Finding};
use failures::Failures;
use log::{Log, Point, Rounded};
use serde_json::Value;
use std::io::Read;
use stream::Stream;
use text::Line;

pub use hook::{DEVICE_BUSY, SCHEMA as HOOK_SCHEMA};

/// Reads one source, told what it is or left to find out. `progress` is told the bytes read so far.
pub fn read(
    path: &str,
    bytes: impl Read,
    format: Option<Format>,
    progress: &mut dyn FnMut(u64),
) -> Result<Evidence, Finding> {
    let mut stream = Stream::new(path, bytes, progress)?;
    let ahead = stream.ahead();
    let is_pickle = ahead.len() > 2 && ahead[0] == 0x80 && (2..=5).contains(&ahead[1]);
    let first = ahead.iter().find(|b| !b.is_ascii_whitespace()).copied();
    let is_hook = memchr::memmem::find(&ahead[..ahead.len().min(4096)], hook::SCHEMA.as_bytes()).is_some();
    let log = match format {
        Some(Format::TorchSnapshot) => snapshot(&mut stream, path)?,
        None if is_pickle => snapshot(&mut stream, path)?,
        Some(format @ (Format::Summary | Format::Rehearsal | Format::TorchMemoryStats)) => {
            document(&stream.whole()?, Some(format), path)?
        }
        None if matches!(first, Some(b'{' | b'[')) && !is_hook => match no_document(ahead) {
            // Lines of a log may begin so as well, and it may be long.
            Some(error) => lines(&mut stream, None)?.ok_or_else(|| no_json(path, &error))?,
            None => {
                let all = stream.whole()?;
                match document(&all, None, path) {
                    Ok(log) => log,
                    Err(refused) => {
                        let mut silent = |_| ();
                        let mut again = Stream::new(path, &all[..], &mut silent)?;
                        lines(&mut again, None)?.ok_or(refused)?
                    }
                }
            }
        },
        _ => lines(&mut stream, format)?.ok_or_else(|| nothing(path, format))?,
    };
    let (bytes, sha256) = stream.finish();
    Ok(log.finish(path, bytes, sha256))
}

/// Why what stands at the beginning of a file is not how a JSON document begins; none where it may be one.
fn no_document(ahead: &[u8]) -> Option<serde_json::Error> {
    serde_json::from_slice::<serde::de::IgnoredAny>(ahead).err().filter(|error| !error.is_eof())
}

fn no_json(path: &str, error: &serde_json::Error) -> Finding {
    let message = format!("`{}` is no JSON document: {error}", diag::quote::terminal(path));
    Finding::error("evidence/format", Blame::Environment, path, message)
}

/// A reader of one format's lines.
enum Engine {
    Megatron(Box<megatron::Reader>),
    Progress(progress::Reader),
    Nemo(nemo::Reader),
    Torchtitan(torchtitan::Reader),
    Deepspeed(deepspeed::Reader),
    Nanotron(nanotron::Reader),
    Maxtext(maxtext::Reader),
    Shardwright(shardwright::Reader),
    Mllog(mllog::Reader),
    NvidiaSmi(nvidia_smi::Reader),
    Hook(hook::Reader),
    /// Failures alone.
    Text,
}

/// Whether a line is one that only this format has.
type LooksLike = fn(&Line) -> bool;

/// Formats that are told by their lines, in the order they are asked.
const SNIFFED: [(Format, LooksLike); 11] = [
    (Format::Hook, hook::looks_like),
    (Format::Mllog, mllog::looks_like),
    (Format::MegatronProgress, progress::looks_like),
    (Format::MegatronLm, megatron::looks_like),
    (Format::Torchtitan, torchtitan::looks_like),
    (Format::Deepspeed, deepspeed::looks_like),
    (Format::Nanotron, nanotron::looks_like),
    (Format::Maxtext, maxtext::looks_like),
    (Format::Shardwright, shardwright::looks_like),
    (Format::Nemo, nemo::looks_like),
    (Format::NvidiaSmi, nvidia_smi::looks_like),
];

impl Engine {
    fn of(format: Format) -> Engine {
        match format {
            Format::MegatronLm | Format::MegatronBridge => Engine::Megatron(Box::default()),
            Format::MegatronProgress => Engine::Progress(progress::Reader),
            Format::Nemo => Engine::Nemo(nemo::Reader),
            Format::Torchtitan => Engine::Torchtitan(torchtitan::Reader),
            Format::Deepspeed => Engine::Deepspeed(deepspeed::Reader::default()),
            Format::Nanotron => Engine::Nanotron(nanotron::Reader),
            Format::Maxtext => Engine::Maxtext(maxtext::Reader::default()),
            Format::Shardwright => Engine::Shardwright(shardwright::Reader),
            Format::Mllog => Engine::Mllog(mllog::Reader::default()),
            Format::NvidiaSmi => Engine::NvidiaSmi(nvidia_smi::Reader::default()),
            Format::Hook | Format::Probe => Engine::Hook(hook::Reader),
            Format::Text | Format::TorchSnapshot | Format::TorchMemoryStats | Format::Rehearsal | Format::Summary => {
                Engine::Text
            }
        }
    }

    fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        match self {
            Engine::Megatron(reader) => reader.line(line, log),
            Engine::Progress(reader) => reader.line(line, log),
            Engine::Nemo(reader) => reader.line(line, log),
            Engine::Torchtitan(reader) => reader.line(line, log),
            Engine::Deepspeed(reader) => reader.line(line, log),
            Engine::Nanotron(reader) => reader.line(line, log),
            Engine::Maxtext(reader) => reader.line(line, log),
            Engine::Shardwright(reader) => reader.line(line, log),
            Engine::Mllog(reader) => reader.line(line, log),
            Engine::NvidiaSmi(reader) => reader.line(line, log),
            Engine::Hook(reader) => reader.line(line, log),
            Engine::Text => false,
        }
    }

    fn end(self, log: &mut Log) {
        match self {
            Engine::Megatron(reader) => reader.end(log),
            Engine::NvidiaSmi(reader) => reader.end(log),
            _ => {}
        }
    }
}

/// What the lines of a stream say; none where nothing of them is a figure of a run.
fn lines<R: Read>(stream: &mut Stream<'_, R>, format: Option<Format>) -> Result<Option<Log>, Finding> {
    let mut log = Log::new(format.unwrap_or(Format::Text));
    let mut engine = format.map(Engine::of);
    let mut failures = Failures::default();
    let mut scratch = Vec::new();
    let mut has_taken = false;
    while let Some((number, raw)) = stream.line()? {
        if raw.is_empty() {
            continue;
        }
        let line = Line::new(number, raw, &mut scratch);
        if engine.is_none()
            && let Some((found, _)) = SNIFFED.iter().find(|(_, looks_like)| looks_like(&line))
        {
            log.format = *found;
            engine = Some(Engine::of(*found));
        }
        let is_taken = engine.as_mut().is_some_and(|engine| engine.line(&line, &mut log));
        has_taken |= is_taken;
        if !is_taken {
            failures.line(&line, &mut log);
        }
    }
    log.too_long(stream.skipped, stream.first_skipped);
    if let Some(engine) = engine {
        engine.end(&mut log);
    }
    let is_another = format.is_some_and(|format| format != Format::Text) && !has_taken;
    Ok((!log.is_empty() && !is_another).then_some(log))
}

/// Nothing in a file is a figure of a run.
fn nothing(path: &str, format: Option<Format>) -> Finding {
    let shown = diag::quote::terminal(path);
    let finding = |message: String| Finding::error("evidence/format", Blame::Environment, path, message);
    if let Some(format) = format {
        let message = format!("`{shown}` has no line that `{}` writes", format.name());
        let hint = match format {
            Format::NvidiaSmi => "nvidia-smi --query-gpu=timestamp,index,memory.used --format=csv, with its header",
            _ => "without a format, it is found out",
        };
        return finding(message).hint(hint);
    }
    let names: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).filter(|name| *name != "text").collect();
    finding(format!("nothing in `{shown}` is a figure of a run"))
        .hint(format!("looked for: {}; and for failures that any process prints", names.join(", ")))
}

fn document(all: &[u8], format: Option<Format>, path: &str) -> Result<Log, Finding> {
    let value: Value = serde_json::from_slice(all).map_err(|error| no_json(path, &error))?;
    let found = documents::format_of(&value).filter(|found| format.is_none_or(|wanted| wanted == *found));
    let Some(found) = found else { return Err(nothing(path, format)) };
    let mut log = Log::new(found);
    documents::read(&value, &mut log);
    Ok(log)
}

/// What a snapshot holds, and the most it held while it was recorded.
fn snapshot<R: Read>(stream: &mut Stream<'_, R>, path: &str) -> Result<Log, Finding> {
    let snapshot = Snapshot::read(&stream.whole()?, path)?;
    let mut log = Log::new(Format::TorchSnapshot);
    let line = Line { number: 1, rank: None, stream: 0, text: b"" };
    let devices = snapshot.devices();
    for device in &devices {
        let name = |phase: &str| match devices.len() {
            1 => phase.to_string(),
            _ => format!("{phase}, device {device}"),
        };
        let ((allocated, reserved), peak) = (snapshot.held(*device), snapshot.peak(*device));
        // Blocks that were not split are larger than what was asked for, by up to so much: the figure is the middle.
        let half = peak.unsplit / 2;
        for (kind, bytes, resolution, phase) in [
            (MemoryKind::Allocated, allocated, 0, "snapshot"),
            (MemoryKind::Reserved, reserved, 0, "snapshot"),
            (MemoryKind::AllocatedPeak, peak.allocated.saturating_add(half), peak.unsplit - half, "recorded history"),
            (MemoryKind::ReservedPeak, peak.reserved, 0, "recorded history"),
        ] {
            let point = Point { phase: Some(name(phase)), step: None };
            log.memory(&line, None, kind, Rounded { bytes, resolution }, point);
        }
    }
    for entry in snapshot.traces.iter().flatten().filter(|entry| entry.action == Action::OutOfMemory) {
        let frame = snapshot.stacks[entry.stack].first();
        let place = frame.map_or(String::new(), |f| format!(" in {} ({}:{})", f.name, f.file, f.line));
        let detail = format!("{} bytes asked for{place}", entry.bytes);
        log.push_repeated("oom", Event { detail, ..log.event(EventKind::OutOfMemory, &line, b"") });
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs of Megatron, torchrun and torchtitan begin with a bracket: none of them may be taken for a document, which is
    /// read as a whole and no larger than so much.
    #[test]
    fn a_log_that_begins_with_a_bracket_is_no_document() {
        for log in [
            &b" [2026-08-20 10:01:40.125000] iteration        1/ 9999999 | consumed samples: 512 |"[..],
            b"[default0]:using world size: 8",
            b"[rank0]:[titan] 2026-01-01 step: 1",
            b"[2025-01-01 00:00:00] x",
            b"{\"a\": 1}\n{\"a\": 2}\n",
        ] {
            assert!(no_document(log).is_some(), "{}", String::from_utf8_lossy(log));
        }
        for document in [&b"{\"a\": [1, 2"[..], b"[\n  {", b"{\"a\": 1}\n", b"[1.5, tru", b"{\"a\\"] {
            assert!(no_document(document).is_none(), "{}", String::from_utf8_lossy(document));
        }
    }
}
