//! `nvidia-smi --query-gpu=timestamp,index,name,memory.used,… --format=csv`: a header of field names with units in
//! brackets, then a line a device and sample. Of each device the most that was used is kept, over all samples; it holds
//! every process and what the driver needs. MiB are whole. Without a header nothing says what a column is: `noheader` is
//! not read.

use super::log::{Log, Point, Rounded};
use super::text::{Line, leading, token, whole};
use crate::MemoryKind;
use std::collections::BTreeMap;

/// Devices of one file.
const MOST: usize = 4096;

#[derive(Default)]
pub struct Reader {
    columns: Vec<String>,
    /// By index: the most MiB, and the line that says so.
    most: BTreeMap<u64, (u64, u64)>,
}

pub fn looks_like(line: &Line) -> bool {
    line.has(b"memory.used [MiB]") && line.text.contains(&b',')
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if looks_like(line) {
            let names = line.text.split(|b| *b == b',');
            self.columns = names.map(|name| String::from_utf8_lossy(name.trim_ascii()).into_owned()).collect();
            return true;
        }
        if self.columns.is_empty() {
            return false;
        }
        let fields: Vec<&[u8]> = line.text.split(|b| *b == b',').map(<[u8]>::trim_ascii).collect();
        let field = |name: &str| {
            let at = self.columns.iter().position(|column| column == name)?;
            fields.get(at).copied()
        };
        let used = field("memory.used [MiB]").and_then(|text| leading(token(text)));
        let index = field("index").map_or(Some(0), whole);
        let (Some(used), Some(index)) = (used, index) else {
            if !line.text.trim_ascii().is_empty() {
                log.unread(line, "a sample without its device or its memory");
            }
            return true;
        };
        for (name, key) in [("name", "device"), ("driver_version", "driver"), ("memory.total [MiB]", "device memory")] {
            if let Some(value) = field(name) {
                log.evidence.machine.entry(key.to_string()).or_insert_with(|| diag::quote::bytes(value, 80));
            }
        }
        if self.most.len() < MOST || self.most.contains_key(&index) {
            let most = self.most.entry(index).or_insert((used, line.number));
            *most = if used > most.0 { (used, line.number) } else { *most };
        }
        true
    }

    pub fn end(self, log: &mut Log) {
        for (index, (mib, number)) in self.most {
            let Some(bytes) = mib.checked_mul(1 << 20) else { continue };
            let line = Line { number, rank: None, stream: 0, text: b"" };
            let point = Point { phase: Some(format!("gpu {index}")), step: None };
            log.memory(&line, None, MemoryKind::DeviceUsedPeak, Rounded { bytes, resolution: 1 << 19 }, point);
        }
    }
}
