//! The largest sizes a recipe may ask for. Far above any model that exists, and low enough that
//! no product of them overflows and no table of them fills the machine: a hostile or mistyped
//! size is an error in microseconds, not a hang.

/// Bytes of a name: a file's name in most file systems has 255, and ours have more words around it.
pub const NAME_BYTES: usize = 128;
/// Layers after tiling.
pub const DEPTH: u64 = 16_384;
/// Symbols in a pattern as written, repetitions expanded.
pub const PATTERN_SYMBOLS: usize = 65_536;
/// Experts in one layer.
pub const EXPERTS: u64 = 65_536;
/// Heads, groups, states and other small counts.
pub const HEADS: u64 = 65_536;
/// Hidden and feed-forward widths.
pub const WIDTH: u64 = 1 << 24;
/// Rows of an embedding table.
pub const VOCAB: u64 = 1 << 30;
/// Tokens in a sequence.
pub const SEQUENCE: u64 = 1 << 32;
/// Multi-token-prediction depths.
pub const MTP: u64 = 64;
/// Bytes of a file we agree to read as a recipe.
pub const FILE_BYTES: usize = 8 << 20;
