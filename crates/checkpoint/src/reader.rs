//! Bytes of a checkpoint's files, and regions of its tensors through a buffer of fixed size.

use crate::damaged;
use crate::files::{self, Crc, Unopened};
use crate::open::{Checkpoint, Chunk, Tensor};
use crate::region::Region;
use diag::Finding;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Files kept open at once.
const MOST_OPEN: usize = 64;

/// Bytes of one buffer. A copy holds two of them, whatever the size of the checkpoint.
pub const BUFFER: usize = 4 << 20;

/// Files of one folder, opened when needed; every read is checked against the file's length first.
pub struct Files {
    folder: PathBuf,
    open: HashMap<String, (File, u64)>,
    /// The largest buffer that was asked for.
    pub largest: usize,
}

impl Files {
    /// Files of a folder.
    pub fn new(folder: &Path) -> Files {
        Files { folder: folder.to_path_buf(), open: HashMap::new(), largest: 0 }
    }

    fn file(&mut self, name: &str) -> Result<&mut (File, u64), Finding> {
        if !self.open.contains_key(name) {
            if self.open.len() >= MOST_OPEN {
                self.open.clear();
            }
            let opened = files::open(&self.folder, name).map_err(|unopened| match unopened {
                Unopened::Missing(finding) => finding.hint("restore the file from a copy"),
                Unopened::Failed(finding) => finding,
            })?;
            self.open.insert(name.to_string(), opened);
        }
        self.open.get_mut(name).ok_or_else(|| damaged("checkpoint/missing", name, format!("`{name}` is gone")))
    }

    /// Bytes of a file.
    pub fn length(&mut self, name: &str) -> Result<u64, Finding> {
        self.file(name).map(|(_, len)| *len)
    }

    /// Reads into a buffer.
    pub fn read_into(&mut self, name: &str, start: u64, into: &mut [u8]) -> Result<(), Finding> {
        self.largest = self.largest.max(into.len());
        let path = self.folder.join(name);
        let (file, len) = self.file(name)?;
        let end = start.saturating_add(into.len() as u64);
        if end > *len {
            let message = format!("`{name}` has {len} bytes, and bytes up to {end} are needed");
            return Err(damaged("checkpoint/truncated", name, message).hint("restore the file from a copy"));
        }
        let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(into));
        read.map_err(|e| files::failed("read", &path, &e))
    }

    /// Reads a few bytes.
    pub fn read(&mut self, name: &str, start: u64, bytes: u64) -> Result<Vec<u8>, Finding> {
        let len = self.length(name)?;
        let mut out = vec![0; bytes.min(len) as usize];
        if start.saturating_add(bytes) > len {
            let message =
                format!("`{name}` has {len} bytes, and bytes up to {} are needed", start.saturating_add(bytes));
            return Err(damaged("checkpoint/truncated", name, message).hint("restore the file from a copy"));
        }
        self.read_into(name, start, &mut out)?;
        Ok(out)
    }
}

/// Reads a checkpoint's tensors.
pub struct Reader<'c> {
    /// What is read.
    pub checkpoint: &'c Checkpoint,
    /// Its files.
    pub files: Files,
    buffer: Vec<u8>,
}

impl<'c> Reader<'c> {
    /// With a buffer of this many bytes, at least one element's.
    pub fn new(checkpoint: &'c Checkpoint, buffer: usize) -> Reader<'c> {
        Reader { checkpoint, files: Files::new(&checkpoint.folder), buffer: vec![0; buffer.max(16)] }
    }

    /// Bytes of the buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Reads every byte of a chunk and compares its checksum, where it has one.
    pub fn check(&mut self, name: &str, tensor: &Tensor, chunk: &Chunk) -> Result<(), Finding> {
        let (mut at, end) = (chunk.start, chunk.start + chunk.at.elements() * tensor.dtype.bytes());
        let mut crc = Crc::default();
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = loop {
            let len = buffer.len().min((end - at) as usize);
            if len == 0 {
                break Ok(());
            }
            if let Err(finding) = self.files.read_into(&chunk.file, at, &mut buffer[..len]) {
                break Err(finding);
            }
            crc.update(&buffer[..len]);
            at += len as u64;
        };
        self.buffer = buffer;
        outcome?;
        match chunk.crc32 {
            Some(wanted) if wanted != crc.finish() => {
                let file = &chunk.file;
                let message = format!(
                    "`{file}` is damaged: bytes {}..{end}, which hold `{name}` {}, have checksum {:08x} and not {wanted:08x}",
                    chunk.start,
                    chunk.at,
                    crc.finish()
                );
                Err(damaged("checkpoint/damaged", file, message).hint("restore the file from a copy"))
            }
            _ => Ok(()),
        }
    }

    /// Hands a region's bytes to `sink` in stored order, at most a buffer at a time.
    pub fn region<E: From<Finding>>(
        &mut self,
        tensor: &Tensor,
        region: &Region,
        out: &mut Vec<u8>,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let size = tensor.dtype.bytes();
        let most = (self.buffer.len() as u64 / size).max(1);
        let (total, mut at) = (region.elements(), 0);
        let near: Vec<&Chunk> = tensor.chunks.iter().filter(|c| c.at.meet(region).is_some()).collect();
        while at < total {
            let end = total.min(at + most);
            out.resize(((end - at) * size) as usize, 0);
            let mut offset = 0;
            for part in region.run(at..end) {
                let bytes = (part.elements() * size) as usize;
                for chunk in &near {
                    if let Some(shared) = part.meet(&chunk.at) {
                        self.copy(chunk, &shared, &part, size, &mut out[offset..offset + bytes])?;
                    }
                }
                offset += bytes;
            }
            sink(out)?;
            at = end;
        }
        Ok(())
    }

    /// Copies what a chunk holds of `shared` to its place among the bytes of `part`. Neighbouring rows
    /// are read together as long as what lies from the first to the last fits into the buffer.
    fn copy(
        &mut self,
        chunk: &Chunk,
        shared: &Region,
        part: &Region,
        size: u64,
        out: &mut [u8],
    ) -> Result<(), Finding> {
        let row = (shared.row_len() * size) as usize;
        let (mut from, mut to) = (chunk.at.each_row(shared), part.each_row(shared));
        let mut group: Vec<(u64, u64)> = Vec::with_capacity(ROWS);
        loop {
            let next = from.next().zip(to.next());
            let starts = group.first().map_or(0, |g| g.0);
            let fits = |(f, _): &(u64, u64)| (f - starts) * size + row as u64 <= self.buffer.len() as u64;
            if next.is_none_or(|n| group.len() == ROWS || !group.is_empty() && !fits(&n)) && !group.is_empty() {
                let span = (group[group.len() - 1].0 - starts) as usize * size as usize + row;
                let mut buffer = std::mem::take(&mut self.buffer);
                let read = self.files.read_into(&chunk.file, chunk.start + starts * size, &mut buffer[..span]);
                for (f, t) in read.iter().flat_map(|()| &group) {
                    let (f, t) = (((f - starts) * size) as usize, (t * size) as usize);
                    out[t..t + row].copy_from_slice(&buffer[f..f + row]);
                }
                self.buffer = buffer;
                read?;
                group.clear();
            }
            match next {
                Some(next) => group.push(next),
                None => return Ok(()),
            }
        }
    }
}

/// Rows that are read together at most.
const ROWS: usize = 4096;
