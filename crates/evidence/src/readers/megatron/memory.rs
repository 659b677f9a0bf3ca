//! Memory, from the first rank of every data-parallel group.
//!
//! Megatron-LM, `megatron/training/utils/common_utils.py`, `report_memory`; MB is 2^20 bytes:
//! `"[Rank {}] {name} memory (MB) | allocated: {:.2f} | max allocated: {:.2f} | reserved: {:.2f} | max reserved: {:.2f}"`,
//! with `" | total device memory used: {:.2f}"` where asked; up to core 0.15 every digit that Python has.
//! Megatron-Bridge, `train_utils.py`, `report_memory`; GB is 10^9 bytes, rounded to five significant digits:
//! `"[Rank {}] (after {iteration} iterations) memory (GB)"` and `" | {metric}: {value}"` of `mem-allocated-gigabytes`,
//! `mem-max-reserved-gigabytes` and others; `mem-alloc-retires` counts retries.

use crate::readers::log::{Log, Point, Rounded};
use crate::readers::text::{Line, MIB, around, bytes_of, find, leading, whole};
use crate::{EventKind, Format, MemoryKind};

const MIBS: &[u8] = b" memory (MB)";
const GBS: &[u8] = b" memory (GB)";

pub fn looks_like(line: &Line) -> bool {
    line.text.len() > 40 && line.has(b"[Rank ") && (line.has(MIBS) || line.has(GBS))
}

/// Takes every report of the line: those of several ranks may stand on one.
pub fn line(line: &Line, log: &mut Log) -> bool {
    if !looks_like(line) {
        return false;
    }
    let mut rest = line.text;
    let mut count = 0;
    while let Some((_, report)) = around(rest, b"[Rank ") {
        let end = find(report, b"[Rank ").unwrap_or(report.len());
        count += u64::from(one(line, &report[..end], log));
        rest = &report[end..];
    }
    if count == 0 {
        log.unread(line, "a report of memory without a rank, a name and figures");
    }
    true
}

fn one(line: &Line, report: &[u8], log: &mut Log) -> bool {
    let Some((rank, words)) = around(report, b"] ") else { return false };
    let Some(rank) = whole(rank.trim_ascii()) else { return false };
    let (is_gb, split) = match around(words, MIBS) {
        Some(split) => (false, Some(split)),
        None => (true, around(words, GBS)),
    };
    let Some((name, figures)) = split else { return false };
    if is_gb {
        log.format = Format::MegatronBridge;
    }
    let name = name.trim_ascii();
    let name = name.strip_prefix(b"(").and_then(|n| n.strip_suffix(b")")).unwrap_or(name);
    // `(after 2 iterations)`, `(after save_checkpoint for iteration 40)`.
    let step = name.strip_prefix(b"after ").and_then(leading);
    let phase = Some(diag::quote::bytes(name, 80));
    let mut count = 0;
    for segment in figures.split(|b| *b == b'|').skip(1) {
        let Some((key, value)) = around(segment, b":") else { continue };
        let (key, value) = (key.trim_ascii(), value.trim_ascii());
        if key == b"mem-alloc-retires" {
            retries(line, rank, step, value, log);
            continue;
        }
        let Some(kind) = kind_of(key) else { continue };
        let held = if is_gb { gigabytes(value) } else { mebibytes(value) };
        let Some(held) = held else {
            log.unread(line, "a figure of memory that is no number");
            continue;
        };
        count += 1;
        log.memory(line, Some(rank), kind, held, Point { phase: phase.clone(), step });
    }
    count > 0
}

fn kind_of(key: &[u8]) -> Option<MemoryKind> {
    Some(match key {
        b"allocated" | b"mem-allocated-gigabytes" => MemoryKind::Allocated,
        b"max allocated" | b"mem-max-allocated-gigabytes" => MemoryKind::AllocatedPeak,
        b"reserved" | b"mem-reserved-gigabytes" => MemoryKind::Reserved,
        b"max reserved" | b"mem-max-reserved-gigabytes" => MemoryKind::ReservedPeak,
        b"total device memory used" => MemoryKind::DeviceUsed,
        // Active and inactive bytes are figures of the allocator's blocks that no promise is made of.
        _ => return None,
    })
}

/// Two decimals, or, up to core 0.15, all that there are.
fn mebibytes(value: &[u8]) -> Option<Rounded> {
    let held = bytes_of(value, MIB)?;
    let is_rounded = value.len() > 3 && value[value.len() - 3] == b'.';
    Some(Rounded { resolution: if is_rounded { held.resolution } else { 0 }, ..held })
}

/// Five significant digits of gigabytes; Python leaves trailing zeros away.
fn gigabytes(value: &[u8]) -> Option<Rounded> {
    let mut held = bytes_of(value, 1e9)?;
    let digits = (held.bytes as f64 / 1e9).max(1e-9).log10().floor() as i32;
    held.resolution = (0.5e9 * 10f64.powi(digits - 4)) as u64;
    Some(held)
}

fn retries(line: &Line, rank: u64, step: Option<u64>, value: &[u8], log: &mut Log) {
    if leading(value).is_some_and(|count| count > 0) {
        let mut event = log.event(EventKind::AllocationRetry, line, b"");
        event.detail = format!("{} since the start", diag::quote::bytes(value, 20));
        (event.rank, event.step) = (Some(rank), step);
        log.push_repeated("allocation retries", event);
    }
}
