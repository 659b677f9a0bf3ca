//! The largest sizes a recipe may ask for, each far above any model that exists: a hostile or mistyped size
//! is an error in microseconds, not a hang. Each by itself keeps tables small; of their products only that of
//! all parameters is bounded here. What a batch makes of them is bounded by `layout::size`, before anything
//! is counted.

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
/// Parameters of the whole model: of all their state on one rank half of what `layout::size` counts.
pub const PARAMETERS: u128 = 1 << 46;
/// Tokens of the longest n-gram that is looked up.
pub const NGRAMS: u64 = 16;
/// Residual streams of hyper-connections.
pub const STREAMS: u64 = 64;
/// Iterations that bring their mixing onto the manifold.
pub const SINKHORN: u64 = 1024;
/// Multi-token-prediction depths.
pub const MTP: u64 = 64;
/// Bytes of a file we agree to read as a recipe.
pub const FILE_BYTES: usize = 8 << 20;
