//! Documents that are packed into a sequence, none of which sees another.

use crate::asked::tokens;
use std::fmt;

/// Lengths that a pattern may have: enough for a distribution in a few steps.
const MOST: usize = 16;

/// Lengths of documents, in a pattern that begins anew until the sequence is full; the last document of a sequence is
/// cut where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documents {
    lengths: [u64; MOST],
    count: usize,
}

impl Documents {
    /// Reads `512` or `512,512,8k`.
    pub fn parse(text: &str) -> Result<Documents, String> {
        let read = text.split(',').map(tokens).collect::<Result<Vec<u64>, String>>()?;
        if read.len() > MOST {
            return Err(format!("{} lengths are more than the {MOST} of a pattern", read.len()));
        }
        if read.contains(&0) {
            return Err("a document has at least one token".to_string());
        }
        let mut lengths = [0; MOST];
        lengths[..read.len()].copy_from_slice(&read);
        Ok(Documents { lengths, count: read.len() })
    }

    /// The pattern.
    pub fn lengths(&self) -> &[u64] {
        &self.lengths[..self.count]
    }

    /// Documents of one sequence: a length, and how often it stands there.
    pub fn within(&self, sequence: u64) -> Vec<(u64, u64)> {
        let total = self.lengths().iter().fold(0, |sum: u64, length| sum.saturating_add(*length));
        let (rounds, mut left) = (sequence / total, sequence % total);
        let mut found: Vec<(u64, u64)> = self.lengths().iter().map(|length| (*length, rounds)).collect();
        for length in self.lengths() {
            found.push((left.min(*length), 1));
            left -= left.min(*length);
        }
        found.retain(|(length, times)| *length > 0 && *times > 0);
        found
    }

    /// How many a sequence holds.
    pub fn count(&self, sequence: u64) -> u64 {
        self.within(sequence).iter().map(|(_, times)| times).sum()
    }

    /// Tokens of the longest in a sequence.
    pub fn longest(&self, sequence: u64) -> u64 {
        self.within(sequence).iter().map(|(length, _)| *length).max().unwrap_or(sequence)
    }

    /// The mean over a sequence's tokens of what follows from the length of their document.
    pub fn mean(&self, sequence: u64, of: impl Fn(f64) -> f64) -> f64 {
        let share =
            |(length, times): &(u64, u64)| *length as f64 * *times as f64 / sequence as f64 * of(*length as f64);
        self.within(sequence).iter().map(share).sum()
    }
}

impl fmt::Display for Documents {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let lengths: Vec<String> = self.lengths().iter().map(u64::to_string).collect();
        f.write_str(&lengths.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::Documents;

    #[test]
    fn a_pattern_begins_anew_and_is_cut_at_the_end() {
        let documents = Documents::parse("512,1k").unwrap();
        assert_eq!(documents.to_string(), "512,1024");
        // 512, 1024, 512, 1024, 512, and 512 of the last.
        assert_eq!(documents.within(4096), [(512, 2), (1024, 2), (512, 1), (512, 1)]);
        assert_eq!((documents.count(4096), documents.longest(4096)), (6, 1024));
        assert_eq!(documents.within(300), [(300, 1)]);
        // A sequence of one document is causal over all of it.
        let whole = Documents::parse("1m").unwrap();
        assert_eq!(whole.mean(4096, |length| length / 2.0), 2048.0);
        // Sums of squares: eight documents of an eighth see an eighth.
        let parts = Documents::parse("512").unwrap();
        assert_eq!(parts.mean(4096, |length| length / 2.0), 256.0);
    }

    #[test]
    fn hostile_patterns_are_refused_or_counted_at_once() {
        for wrong in ["", "0", "512,", "512,0", "-1", "x", &"1,".repeat(20)] {
            assert!(Documents::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Documents::parse("1").unwrap().count(u64::MAX), u64::MAX);
        let vast = Documents::parse(&format!("{0},{0}", u64::MAX)).unwrap();
        assert_eq!(vast.within(4096), [(4096, 1)]);
    }
}
