//! Foreign bytes for people: paths, command lines and values from a machine, cut to what a line holds.

use diag::quote;

/// Characters of one text that are shown; the rest is cut, and said to be.
const MOST: usize = 160;

/// Bytes as one line of printable text.
pub fn bytes(bytes: &[u8]) -> String {
    quote::bytes(bytes, MOST)
}

/// A text in the same way.
pub fn text(text: &str) -> String {
    bytes(text.as_bytes())
}
