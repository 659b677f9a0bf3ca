//! Bytes as lines: one buffer of fixed size, whatever the length of the file; hashed as they pass.

use diag::{Blame, Finding};
use sha2::{Digest, Sha256};
use std::io::Read;

/// Bytes that are read at once, as long as lines are no longer.
const USUAL: usize = 128 << 10;

/// The longest line there may be.
pub const LONGEST_LINE: usize = 1 << 20;

/// Bytes of a file that is read as a whole: a document or a pickle.
pub const LARGEST_WHOLE: u64 = 1 << 30;

/// Bytes between two words to whoever watches.
const WATCHED: u64 = 16 << 20;

/// A file being read.
pub struct Stream<'p, R> {
    inner: R,
    path: &'p str,
    progress: &'p mut dyn FnMut(u64),
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    is_at_end: bool,
    hash: Sha256,
    bytes: u64,
    said: u64,
    lines: u64,
    /// Lines that were longer than the buffer, and the first of them.
    pub skipped: u64,
    pub first_skipped: u64,
}

impl<'p, R: Read> Stream<'p, R> {
    /// Begins with the first bytes, so that they can be looked at.
    pub fn new(path: &'p str, inner: R, progress: &'p mut dyn FnMut(u64)) -> Result<Stream<'p, R>, Finding> {
        let mut stream = Stream {
            inner,
            path,
            progress,
            buffer: vec![0; USUAL],
            from: 0,
            to: 0,
            is_at_end: false,
            hash: Sha256::new(),
            bytes: 0,
            said: 0,
            lines: 0,
            skipped: 0,
            first_skipped: 0,
        };
        while stream.to < 4096 && !stream.is_at_end {
            stream.fill()?;
        }
        Ok(stream)
    }

    /// What has been read ahead.
    pub fn ahead(&self) -> &[u8] {
        &self.buffer[self.from..self.to]
    }

    /// Bytes so far, and their hash.
    pub fn finish(self) -> (u64, String) {
        let hash: String = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        (self.progress)(self.bytes);
        (self.bytes, hash)
    }

    /// Reads once behind what is there.
    fn fill(&mut self) -> Result<(), Finding> {
        let read = loop {
            match self.inner.read(&mut self.buffer[self.to..]) {
                Ok(read) => break read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let shown = diag::quote::terminal(self.path);
                    let message = format!("`{shown}` cannot be read after {} bytes: {error}", self.bytes);
                    return Err(Finding::error("evidence/read", Blame::Environment, self.path, message));
                }
            }
        };
        self.hash.update(&self.buffer[self.to..self.to + read]);
        self.to += read;
        self.bytes += read as u64;
        self.is_at_end = read == 0;
        if self.bytes - self.said >= WATCHED {
            self.said = self.bytes;
            (self.progress)(self.bytes);
        }
        Ok(())
    }

    /// The next line that fits the buffer, without its end, and its number from one.
    pub fn line(&mut self) -> Result<Option<(u64, &[u8])>, Finding> {
        let mut searched = self.from;
        let mut is_too_long = false;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[searched..self.to]) {
                let (start, end) = (self.from, searched + at);
                self.from = end + 1;
                self.lines += 1;
                if is_too_long {
                    self.skip();
                    (searched, is_too_long) = (self.from, false);
                    continue;
                }
                return Ok(Some((self.lines, &self.buffer[start..end])));
            }
            searched = self.to;
            if self.from > 0 {
                self.buffer.copy_within(self.from..self.to, 0);
                (searched, self.to, self.from) = (searched - self.from, self.to - self.from, 0);
            } else if self.to == self.buffer.len() && self.to < LONGEST_LINE {
                self.buffer.resize(2 * self.to, 0);
            } else if self.to == self.buffer.len() {
                is_too_long = true;
                (searched, self.to) = (0, 0);
            }
            self.fill()?;
            if self.is_at_end {
                return Ok(self.last(is_too_long));
            }
        }
    }

    /// What stands behind the last line end.
    fn last(&mut self, is_too_long: bool) -> Option<(u64, &[u8])> {
        if self.from == self.to && !is_too_long {
            return None;
        }
        self.lines += 1;
        let (start, end) = (self.from, self.to);
        self.from = self.to;
        if is_too_long {
            self.skip();
            return None;
        }
        Some((self.lines, &self.buffer[start..end]))
    }

    fn skip(&mut self) {
        self.skipped += 1;
        if self.skipped == 1 {
            self.first_skipped = self.lines;
        }
    }

    /// Everything, of a file that only makes sense as a whole.
    pub fn whole(&mut self) -> Result<Vec<u8>, Finding> {
        self.up_to(LARGEST_WHOLE)
    }

    fn up_to(&mut self, limit: u64) -> Result<Vec<u8>, Finding> {
        let mut all = Vec::new();
        loop {
            all.extend_from_slice(&self.buffer[self.from..self.to]);
            (self.from, self.to) = (0, 0);
            if self.is_at_end {
                return Ok(all);
            }
            if all.len() as u64 > limit {
                let shown = diag::quote::terminal(self.path);
                let message = format!(
                    "`{shown}` is larger than {} MiB, which is as much as is read of one document",
                    limit >> 20
                );
                return Err(Finding::error("evidence/size", Blame::Environment, self.path, message)
                    .hint("of a snapshot, record a shorter history (`max_entries`)"));
            }
            self.fill()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands bytes over a few at a time.
    struct Dripping<'b>(&'b [u8], usize);

    impl Read for Dripping<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let take = self.1.min(self.0.len()).min(into.len());
            into[..take].copy_from_slice(&self.0[..take]);
            self.0 = &self.0[take..];
            Ok(take)
        }
    }

    fn lines(bytes: &[u8], drip: usize) -> (Vec<(u64, Vec<u8>)>, u64, u64) {
        let mut watch = |_| ();
        let mut stream = Stream::new("test", Dripping(bytes, drip), &mut watch).unwrap();
        let mut all = Vec::new();
        while let Some((number, line)) = stream.line().unwrap() {
            all.push((number, line.to_vec()));
        }
        (all, stream.skipped, stream.first_skipped)
    }

    #[test]
    fn lines_are_the_same_however_bytes_arrive() {
        let text = b"one\n\nthree\nno end";
        let expected = vec![(1, b"one".to_vec()), (2, vec![]), (3, b"three".to_vec()), (4, b"no end".to_vec())];
        for drip in [1, 2, 3, 7, 1000] {
            assert_eq!(lines(text, drip).0, expected, "{drip}");
        }
    }

    #[test]
    fn a_line_that_does_not_fit_is_skipped_and_counted() {
        let mut text = b"first\n".to_vec();
        text.extend(vec![b'x'; LONGEST_LINE + 10]);
        text.extend(b"\nlast\n");
        let (all, skipped, first) = lines(&text, 1 << 16);
        assert_eq!(all, vec![(1, b"first".to_vec()), (3, b"last".to_vec())]);
        assert_eq!((skipped, first), (1, 2));
        let (all, skipped, _) = lines(&vec![b'x'; 3 * LONGEST_LINE], 1 << 16);
        assert_eq!((all.len(), skipped), (0, 1));
    }

    #[test]
    fn the_hash_is_of_every_byte() {
        let mut watch = |_| ();
        let mut stream = Stream::new("test", &b"abc"[..], &mut watch).unwrap();
        while stream.line().unwrap().is_some() {}
        let (bytes, hash) = stream.finish();
        assert_eq!(bytes, 3);
        // FIPS 180-2, appendix B.1.
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_document_without_an_end_is_refused() {
        let mut watch = |_| ();
        let mut stream = Stream::new("test", std::io::repeat(b' '), &mut watch).unwrap();
        let finding = stream.up_to(4 << 20).unwrap_err();
        assert_eq!(finding.rule, "evidence/size");
        assert!(finding.message.contains("larger than 4 MiB"), "{}", finding.message);
    }
}
