//! Training data of a rehearsal.

use crate::params::hash;
use crate::train::Batch;
use layout::Layout;
use recipe::Recipe;

/// Where sequences come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Each token follows from the one before by one of two rules: a loss of ln 2 is perfect.
    Synthetic,
    /// Bytes of a text as tokens.
    Text(Vec<u8>),
}

/// Vocabulary of a text: one token for each value of a byte.
pub const BYTES: u64 = 256;

impl Source {
    /// The sequences of a step; they depend on global batch and sequence length, not on the layout.
    pub(super) fn batch(&self, recipe: &Recipe, layout: &Layout, seed: u64, step: u64) -> Batch {
        let Source::Text(text) = self else { return Batch::synthetic(recipe, layout, seed, step) };
        let ahead = recipe.features.mtp().map_or(0, |mtp| mtp.depth);
        let len = (layout.sequence + 1 + ahead) as usize;
        let sequence = |index: u64| {
            let start = hash(hash(seed, step), index) as usize % text.len();
            text.iter().cycle().skip(start).take(len).map(|b| u32::from(*b)).collect()
        };
        Batch { sequences: (0..layout.global_batch).map(sequence).collect() }
    }
}
