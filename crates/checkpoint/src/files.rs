//! Files of a checkpoint: written in the safetensors format (huggingface/safetensors, README, section
//! Format: eight bytes of header length, a JSON header, then the tensors), made durable before they
//! are named, and opened only inside their folder.

use diag::{Blame, Finding};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use store::Failure;

/// Bytes of an index we agree to read.
const MOST_INDEX_BYTES: u64 = 1 << 32;

/// A failure of the machine, with the path and what was done.
pub fn failed(doing: &str, path: &Path, error: &io::Error) -> Finding {
    unusable(path, format!("cannot {doing} `{}`: {error}", path.display()))
}

/// The same of what was to be written.
pub fn failed_to(failure: &Failure) -> Finding {
    let path = match failure {
        Failure::Exists(path) | Failure::Special { path, .. } | Failure::Machine { path, .. } => path,
    };
    unusable(path, failure.to_string())
}

fn unusable(path: &Path, message: String) -> Finding {
    let finding = Finding::error("checkpoint/folder", Blame::Environment, path.display().to_string(), message);
    finding.hint("every rank must see the same folder, may write to it, and find room on it")
}

const fn tables() -> [[u32; 256]; 8] {
    let mut t = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let (mut c, mut bit) = (i as u32, 0);
        while bit < 8 {
            c = if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
            bit += 1;
        }
        t[0][i] = c;
        i += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut i = 0;
        while i < 256 {
            t[k][i] = (t[k - 1][i] >> 8) ^ t[0][(t[k - 1][i] & 0xff) as usize];
            i += 1;
        }
        k += 1;
    }
    t
}

static TABLES: [[u32; 256]; 8] = tables();

/// CRC-32 as zlib has it, of bytes that come in parts; eight at a time.
#[derive(Clone, Copy, Debug)]
pub struct Crc(u32);

impl Default for Crc {
    fn default() -> Crc {
        Crc(u32::MAX)
    }
}

impl Crc {
    /// Takes more bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut c = self.0;
        let mut eights = bytes.chunks_exact(8);
        for e in &mut eights {
            let low = c ^ u32::from_le_bytes([e[0], e[1], e[2], e[3]]);
            let of = |table: usize, byte: u32| TABLES[table][(byte & 0xff) as usize];
            c = of(7, low) ^ of(6, low >> 8) ^ of(5, low >> 16) ^ of(4, low >> 24);
            c ^= of(3, e[4].into()) ^ of(2, e[5].into()) ^ of(1, e[6].into()) ^ of(0, e[7].into());
        }
        for b in eights.remainder() {
            c = (c >> 8) ^ TABLES[0][((c ^ u32::from(*b)) & 0xff) as usize];
        }
        self.0 = c;
    }

    /// The checksum of what came.
    pub fn finish(self) -> u32 {
        !self.0
    }
}

/// CRC-32 as zlib has it.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::default();
    crc.update(bytes);
    crc.finish()
}

/// A tensor to write.
pub struct Item {
    /// Its key in the file.
    pub name: String,
    /// Number format, as safetensors names it.
    pub dtype: &'static str,
    /// Sizes of the dimensions.
    pub shape: Vec<u64>,
    /// Bytes of its data.
    pub bytes: u64,
}

/// The header of a file, padded to eight bytes, as it stands before the data. `about` becomes
/// `__metadata__`, unless it is empty.
pub fn header(items: &[Item], about: Map<String, Value>) -> Vec<u8> {
    let mut map = Map::new();
    if !about.is_empty() {
        map.insert("__metadata__".to_string(), about.into());
    }
    let mut at = 0;
    for item in items {
        let offsets = [at, at + item.bytes];
        at = offsets[1];
        map.insert(item.name.clone(), json!({ "dtype": item.dtype, "shape": item.shape, "data_offsets": offsets }));
    }
    let mut text = serde_json::to_vec(&map).unwrap_or_default();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out
}

/// Writes a new file in pieces and makes it durable.
pub fn write(path: &Path, parts: impl Iterator<Item = Vec<u8>>) -> Result<(), Finding> {
    let file = store::create_new(path).map_err(|failure| failed_to(&failure))?;
    let run = || -> io::Result<()> {
        let mut out = io::BufWriter::with_capacity(1 << 20, file);
        for part in parts {
            out.write_all(&part)?;
        }
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    };
    run().map_err(|e| failed("write", path, &e))
}

/// Refuses a file name that could stand for anything but a file beside the index.
pub fn check_name(name: &str) -> Result<(), Finding> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 255 || name.starts_with('.') || !name.chars().all(is_plain) {
        let message = format!("`{}` is no name of a file of a checkpoint", diag::quote::terminal(name));
        let finding = Finding::error("checkpoint/name", Blame::Environment, crate::index::NAME, message);
        return Err(finding.hint("a piece lies in a plain file beside the index: load another checkpoint"));
    }
    Ok(())
}

/// Opens a plain file of a folder; links are refused, since they may lead out of it.
pub fn open(folder: &Path, name: &str) -> Result<(File, u64), Unopened> {
    check_name(name)?;
    open_plain(folder, name)
}

/// The same for a name that is ours or torch's own.
fn open_plain(folder: &Path, name: &str) -> Result<(File, u64), Unopened> {
    let path = folder.join(name);
    let about = fs::symlink_metadata(&path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Unopened::Missing(missing(folder, name)),
        _ => failed("look at", &path, &e).into(),
    })?;
    if !about.is_file() {
        let message = format!("`{}` is not a plain file", path.display());
        let finding = Finding::error("checkpoint/name", Blame::Environment, name, message);
        return Err(finding.hint("put the file itself there, not a link to it").into());
    }
    let file = File::open(&path).map_err(|e| failed("open", &path, &e))?;
    let len = file.metadata().map_err(|e| failed("look at", &path, &e))?.len();
    Ok((file, len))
}

/// Why a file of a checkpoint could not be opened.
pub enum Unopened {
    /// It is not there.
    Missing(Finding),
    /// It is there, and no use.
    Failed(Finding),
}

impl From<Finding> for Unopened {
    fn from(finding: Finding) -> Unopened {
        Unopened::Failed(finding)
    }
}

fn missing(folder: &Path, name: &str) -> Finding {
    let message = format!("`{name}` is missing from `{}`", folder.display());
    Finding::error("checkpoint/missing", Blame::Environment, name, message)
}

/// Reads the whole of an index, whose size is bounded, by a name that does not come from a file.
pub fn read_small(folder: &Path, name: &str) -> Result<Vec<u8>, Finding> {
    let (file, len) = open_plain(folder, name).map_err(|unopened| match unopened {
        Unopened::Missing(finding) => finding.hint("give the folder of a complete checkpoint, such as `step-100`"),
        Unopened::Failed(finding) => finding,
    })?;
    let mut bytes = Vec::new();
    let read = file.take(MOST_INDEX_BYTES).read_to_end(&mut bytes);
    read.map_err(|e| failed("read", &folder.join(name), &e))?;
    if len > MOST_INDEX_BYTES {
        let message = format!("`{name}` has {len} bytes, and an index has at most {MOST_INDEX_BYTES}");
        return Err(Finding::error("checkpoint/index", Blame::Environment, name, message));
    }
    Ok(bytes)
}

/// Reads bytes of an open file that is known to be long enough.
pub fn read_at(file: &mut File, start: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut out = vec![0; bytes as usize];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_zlibs() {
        // The check value of CRC-32/ISO-HDLC, and zlib.crc32(bytes(range(256))).
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(&(0..=255).collect::<Vec<u8>>()), 0x2905_8c73);
    }

    #[test]
    fn names_stay_in_the_folder() {
        for bad in ["../x", "a/b", "..", ".", "", "a\\b", "/etc/passwd", "a\0", ".hidden", "C:x"] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("rank-00001.safetensors").is_ok());
    }
}
