//! Seeded changes of whole inputs, for runs without coverage.

/// A small generator (xorshift64*): the same changes every time.
pub struct Mutator(u64);

/// What readers are least ready for.
const WORDS: [&str; 38] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "65536",
    "65537",
    "16777216",
    "4294967296",
    "1073741824",
    "18446744073709551615",
    "99999999999999999999",
    "1e12",
    "1e308",
    "-0.0",
    "nan",
    "inf",
    "0.5",
    "1.5",
    "[0]",
    "[1, 1]",
    "[-1, 3, 65536]",
    "9223372036854775807",
    "2147483648",
    "false",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "x60000",
    "\n",
    "\u{1b}[2J",
    "\0",
    "\u{202e}",
    "'",
    "\\",
];

impl Mutator {
    /// A generator that starts from this seed.
    pub fn new(seed: u64) -> Mutator {
        Mutator(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below this one.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }

    /// An input of the corpus, changed in a few places.
    pub fn changed(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes, corpus);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(bytes.len() + 1);
        let to = (at + self.below(24)).min(bytes.len());
        match self.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => bytes[at..to].fill(0xff),
            3 if at < bytes.len() => bytes[at] = self.below(256) as u8,
            4 => {
                let piece = bytes[at..to].to_vec();
                let into = self.below(bytes.len() + 1);
                bytes.splice(into..into, piece);
            }
            5 => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len() + 1);
                let end = (from + self.below(64)).min(other.len());
                bytes.splice(at..to, other[from..end].iter().copied());
            }
            _ => self.number(bytes, at),
        }
    }

    /// A number or word of the text becomes a hostile one.
    fn number(&mut self, bytes: &mut Vec<u8>, near: usize) {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let start = bytes.iter().skip(near).position(is_word).map_or(near, |found| near + found);
        let end = bytes.iter().skip(start).position(|byte| !is_word(byte)).map_or(bytes.len(), |found| start + found);
        let word = WORDS[self.below(WORDS.len())];
        bytes.splice(start..end, word.bytes());
    }
}
