//! Whether a line can hold any of many words, decided by looking at four bytes in every three.
//!
//! Of four-byte pieces that begin at every third byte of a line, one lies within each word of six bytes, whatever the
//! word's place. So a line none of whose pieces is among the first three of a word holds no word. Unlike an automaton's
//! steps, looks at pieces do not wait for each other.

/// Bytes between two pieces that are looked at.
const STRIDE: usize = 3;

/// Bits of the table that pieces are looked up in first.
const BITS: u32 = 16;

/// Pieces of words, letters in either case.
pub struct Grams {
    /// By hash. An array, so that no index needs a check.
    table: Box<[u64; 1 << (BITS - 6)]>,
    /// All of them, sorted.
    exact: Vec<u32>,
}

impl Grams {
    /// Of words of five bytes or more.
    pub fn new<'w>(words: impl Iterator<Item = &'w str>) -> Grams {
        let mut exact = Vec::new();
        for word in words {
            let word = word.as_bytes();
            assert!(word.len() > STRIDE + 1, "a word too short to be told by its pieces");
            for at in 0..STRIDE {
                match word.get(at..at + 4) {
                    Some(piece) => exact.push(folded(piece)),
                    // The last byte is that of the text behind the word.
                    None => (0..=u8::MAX).for_each(|last| {
                        let [a, b, c] = [word[at], word[at + 1], word[at + 2]];
                        exact.push(folded(&[a, b, c, last]));
                    }),
                }
            }
        }
        exact.sort_unstable();
        exact.dedup();
        let mut table = Box::new([0; 1 << (BITS - 6)]);
        for piece in &exact {
            let (word, bit) = place(*piece);
            table[word] |= bit;
        }
        Grams { table, exact }
    }

    /// Whether a text can hold one of the words; where it does not, none is there.
    pub fn may_be_in(&self, text: &[u8]) -> bool {
        let is_one = |piece: &[u8]| {
            let piece = folded(piece);
            let (word, bit) = place(piece);
            self.table[word] & bit != 0 && self.exact.binary_search(&piece).is_ok()
        };
        if text.windows(4).step_by(STRIDE).any(is_one) {
            return true;
        }
        // A word of five bytes may end the text one byte before the piece that would tell it does.
        match text {
            [.., a, b, c] if text.len().is_multiple_of(STRIDE) => is_one(&[*a, *b, *c, 0]),
            _ => false,
        }
    }
}

/// Four bytes as a number, with the bit that tells small letters from capital ones set.
fn folded(piece: &[u8]) -> u32 {
    u32::from_le_bytes([piece[0], piece[1], piece[2], piece[3]]) | 0x2020_2020
}

/// A word of the table and a bit of it.
fn place(piece: u32) -> (usize, u64) {
    let hash = piece.wrapping_mul(0x9e37_79b1) >> (32 - BITS);
    ((hash >> 6) as usize, 1 << (hash & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 4] = ["xid (", " abort", "cuda out of memory", "  file \""];

    /// Every word is seen at every place of lines of every length around it, in any case of letters.
    #[test]
    fn no_word_is_overlooked() {
        let grams = Grams::new(WORDS.into_iter());
        for word in WORDS {
            for before in 0..40 {
                for behind in 0..12 {
                    for word in [word.to_string(), word.to_uppercase()] {
                        let text = format!("{}{word}{}", ".".repeat(before), "z".repeat(behind));
                        assert!(grams.may_be_in(text.as_bytes()), "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn other_lines_are_left_out() {
        let grams = Grams::new(WORDS.into_iter());
        for text in ["", "x", "xi", "a line that has none of them, however long it is", "graphs: 12 of 40", "(("] {
            assert!(!grams.may_be_in(text.as_bytes()), "{text}");
        }
    }
}
