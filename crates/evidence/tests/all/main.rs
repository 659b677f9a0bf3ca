//! Samples of every format, each figure with what it means.

#![allow(missing_docs, reason = "tests")]

mod causes;
mod formats;
mod hook;
mod megatron;
mod sniffing;
mod torch;

use evidence::{Event, EventKind, Evidence, Format, MemoryKind};
use std::path::Path;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

pub fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)).expect("a sample")
}

/// A sample, its format found out; what it says it is.
pub fn sample(name: &str, format: Format) -> Evidence {
    let read = evidence::read(name, &bytes(name)[..], None, &mut |_| ()).unwrap_or_else(|f| panic!("{f:#?}"));
    assert_eq!(read.sources.len(), 1);
    assert_eq!(read.sources[0].format, format, "{name}");
    assert_eq!(read.sources[0].bytes, bytes(name).len() as u64);
    let text = serde_json::to_string(&read).unwrap();
    assert_eq!(serde_json::from_str::<Evidence>(&text).unwrap(), read, "{name} does not read back");
    read
}

/// A figure of memory as rank, kind, bytes, how far off, and where.
type Held<'e> = (Option<u64>, MemoryKind, u64, u64, Option<&'e str>);

pub fn memory(read: &Evidence) -> Vec<Held<'_>> {
    read.memory.iter().map(|m| (m.rank, m.kind, m.bytes, m.resolution, m.phase.as_deref())).collect()
}

pub fn events(read: &Evidence, kind: EventKind) -> Vec<&Event> {
    read.events.iter().filter(|event| event.kind == kind).collect()
}

pub fn digits(read: &Evidence, name: &str) -> Option<u8> {
    read.sources[0].digits.get(name).copied()
}
