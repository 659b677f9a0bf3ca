//! The archives `torch.save` writes: zip without compression (APPNOTE.TXT 6.3.10), read inside a span of
//! a larger file and written in a stream. Sizes beyond 4 GiB are read (zip64) and never written.

use crate::damaged;
use crate::files::Crc;
use crate::reader::Files;
use diag::Finding;
use std::io::{self, Write};

/// Bytes of a directory we agree to read: an archive of one tensor has seven records.
const MOST_DIRECTORY: u64 = 1 << 20;

/// One record of an archive.
#[derive(Clone, Debug)]
pub struct Record {
    /// Without the archive's own folder.
    pub name: String,
    /// First byte of the data in the file.
    pub start: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// CRC-32 of the data.
    pub crc32: u32,
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Records of the archive that is bytes `start..start + len` of a file.
pub fn records(files: &mut Files, file: &str, start: u64, len: u64) -> Result<Vec<Record>, Finding> {
    let bad = |what: &str| {
        let message = format!("bytes {start}..{} of `{file}` are no archive of torch.save: {what}", start + len);
        damaged("checkpoint/zip", file, message)
            .hint("the file is damaged, or written by something else: save it again")
    };
    if len < 22 {
        return Err(bad("too short"));
    }
    let end = files.read(file, start + len - 22, 22)?;
    if end[..4] != *b"PK\x05\x06" || le(&end[20..22]) != 0 {
        return Err(bad("the end of its directory is missing"));
    }
    let (mut count, mut size, mut at) = (le(&end[10..12]), le(&end[12..16]), le(&end[16..20]));
    if (count == 0xffff || size == 0xffff_ffff || at == 0xffff_ffff) && len >= 42 + 56 {
        let locator = files.read(file, start + len - 42, 20)?;
        let at64 = le(&locator[8..16]);
        if locator[..4] != *b"PK\x06\x07" || at64.checked_add(56).is_none_or(|end| end > len) {
            return Err(bad("its zip64 locator is wrong"));
        }
        let end64 = files.read(file, start + at64, 56)?;
        if end64[..4] != *b"PK\x06\x06" {
            return Err(bad("its zip64 directory is missing"));
        }
        (count, size, at) = (le(&end64[32..40]), le(&end64[40..48]), le(&end64[48..56]));
    }
    if size > MOST_DIRECTORY || at.checked_add(size).is_none_or(|end| end > len) {
        return Err(bad("its directory lies outside of it"));
    }
    let directory = files.read(file, start + at, size)?;
    let (mut rest, mut out) = (directory.as_slice(), Vec::new());
    for _ in 0..count {
        let (record, length) = entry(rest).ok_or_else(|| bad("its directory is cut off, or a record is compressed"))?;
        rest = &rest[length..];
        let local = record.start;
        if local.checked_add(30).is_none_or(|end| end > at) {
            return Err(bad("a record lies outside of it"));
        }
        let header = files.read(file, start + local, 30)?;
        let data = local + 30 + le(&header[26..28]) + le(&header[28..30]);
        if header[..4] != *b"PK\x03\x04" || data.checked_add(record.bytes).is_none_or(|end| end > at) {
            return Err(bad("a record lies outside of it"));
        }
        out.push(Record { start: start + data, ..record });
    }
    Ok(out)
}

/// A record of the directory with the offset of its local header, and the entry's length.
fn entry(bytes: &[u8]) -> Option<(Record, usize)> {
    let head = bytes.get(..46).filter(|h| h[..4] == *b"PK\x01\x02" && le(&h[10..12]) == 0)?;
    let (name_len, extra_len, comment) =
        (le(&head[28..30]) as usize, le(&head[30..32]) as usize, le(&head[32..34]) as usize);
    let name = std::str::from_utf8(bytes.get(46..46 + name_len)?).ok()?;
    let mut extra = bytes.get(46 + name_len..46 + name_len + extra_len)?;
    let (packed, mut size, mut local) = (le(&head[20..24]), le(&head[24..28]), le(&head[42..46]));
    while extra.len() >= 4 {
        let (id, len) = (le(&extra[..2]), le(&extra[2..4]) as usize);
        let mut field = extra.get(4..4 + len)?;
        extra = &extra[4 + len..];
        if id != 1 {
            continue;
        }
        let mut next = |value: &mut u64| {
            if *value == 0xffff_ffff && field.len() >= 8 {
                *value = le(&field[..8]);
                field = &field[8..];
            }
        };
        next(&mut size);
        next(&mut { packed });
        next(&mut local);
    }
    let name = name.split_once('/').map_or(name, |(_, name)| name).to_string();
    let record = Record { name, start: local, bytes: size, crc32: le(&head[16..20]) as u32 };
    let length = 46 + name_len + extra_len + comment;
    (length <= bytes.len()).then_some((record, length))
}

/// Where tensors start in an archive: torch aligns them, so that they can be mapped.
const ALIGN: u64 = 64;
/// Bytes before a record's data, less its name and padding.
const LOCAL: u64 = 30;

/// An archive being written to a stream.
pub struct Archive<'o, W> {
    out: &'o mut W,
    at: u64,
    directory: Vec<u8>,
    count: u16,
}

impl<'o, W: Write> Archive<'o, W> {
    /// An archive at the end of `out`.
    pub fn new(out: &'o mut W) -> Archive<'o, W> {
        Archive { out, at: 0, directory: Vec::new(), count: 0 }
    }

    /// A record whose bytes are there.
    pub fn record(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.stream(name, bytes.len() as u64, |out| out.write_all(bytes))
    }

    /// A record whose bytes `body` writes, `bytes` of them; the checksum follows them.
    pub fn stream<E: From<io::Error>>(
        &mut self,
        name: &str,
        bytes: u64,
        body: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        let (name, local) = (format!("archive/{name}"), self.at);
        let before = local + LOCAL + name.len() as u64 + 4;
        let pad = before.next_multiple_of(ALIGN) - before;
        let size = u32::try_from(bytes).map_err(|_| io::Error::other("a record of 4 GiB"))?;
        let mut head = Vec::new();
        // Version 2.0, sizes behind the data (bit 3), UTF-8 (bit 11), stored, no time.
        head.extend(b"PK\x03\x04\x14\x00\x08\x08\x00\x00\x00\x00\x00\x00");
        head.extend([0; 12]);
        head.extend((name.len() as u16).to_le_bytes());
        head.extend((pad as u16 + 4).to_le_bytes());
        head.extend(name.as_bytes());
        // Padding as torch writes it: field `FB` of this many bytes.
        head.extend(b"FB");
        head.extend((pad as u16).to_le_bytes());
        head.resize(head.len() + pad as usize, b'Z');
        self.out.write_all(&head)?;
        let mut counted = Counted { out: self.out, crc: Crc::default(), bytes: 0 };
        body(&mut counted)?;
        let (crc, written) = (counted.crc.finish(), counted.bytes);
        if written != bytes {
            return Err(io::Error::other(format!("{written} bytes were written of {bytes}")).into());
        }
        let sums = [crc, size, size].map(u32::to_le_bytes).concat();
        self.out.write_all(b"PK\x07\x08")?;
        self.out.write_all(&sums)?;
        let entry = &mut self.directory;
        entry.extend(b"PK\x01\x02\x14\x00\x14\x00\x08\x08\x00\x00\x00\x00\x00\x00");
        entry.extend(&sums);
        entry.extend((name.len() as u16).to_le_bytes());
        entry.extend([0; 12]);
        entry.extend((u32::try_from(local).map_err(|_| io::Error::other("an archive of 4 GiB"))?).to_le_bytes());
        entry.extend(name.as_bytes());
        self.at += head.len() as u64 + bytes + 16;
        self.count += 1;
        Ok(())
    }

    /// Writes the directory; gives the bytes of the whole archive.
    pub fn finish(self) -> io::Result<u64> {
        let overflow = |_| io::Error::other("an archive of 4 GiB");
        let mut end = b"PK\x05\x06\x00\x00\x00\x00".to_vec();
        end.extend([self.count, self.count].map(u16::to_le_bytes).concat());
        end.extend((self.directory.len() as u32).to_le_bytes());
        end.extend(u32::try_from(self.at).map_err(overflow)?.to_le_bytes());
        end.extend([0, 0]);
        self.out.write_all(&self.directory)?;
        self.out.write_all(&end)?;
        Ok(self.at + self.directory.len() as u64 + end.len() as u64)
    }
}

struct Counted<'o, W> {
    out: &'o mut W,
    crc: Crc,
    bytes: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.crc.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
