//! Sparse attention on named attention layers: an indexer scores every pair and attention keeps
//! the best. It changes which tokens attention reads, never the model's pattern.
//!
//! The score of a pair is the sum over index heads of `w · relu(q · k)` (DeepSeek-V3.2's report,
//! section 2): `q` from the query latent or the block's input, `k` and `w` from the input, `k` behind
//! a LayerNorm, both turned with position. A query reads the `top_k` best keys among those it may
//! see, and all of them while they are fewer. Only a loss of its own trains the indexer: the
//! divergence of its softmax over the chosen keys from what all attention heads give them.

use super::{Emitter, Norm};
use crate::limits;
use crate::tensor::{Dim, Role, Surface};
use crate::write::Toml;
use reading::Section;

/// The indexer, and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Dsa {
    /// Index heads.
    pub heads: u64,
    /// Width of an index head.
    pub head_dim: u64,
    /// Tokens a query keeps.
    pub top_k: u64,
    /// Attention layers it stands on, counted among attention layers from zero; all when empty.
    pub layers: Vec<u64>,
}

impl Dsa {
    /// Reads `[features.dsa]` but for its switch, which the caller reads.
    pub(crate) fn read(mut section: Section) -> Option<Dsa> {
        let heads = section.count("heads", limits::HEADS);
        let head_dim = section.count("head_dim", limits::WIDTH);
        let top_k = section.count("top_k", limits::SEQUENCE);
        let layers = section.naturals("layers", limits::DEPTH).unwrap_or_default();
        section.finish();
        Some(Dsa { heads: heads?, head_dim: head_dim?, top_k: top_k?, layers })
    }

    /// Writes its keys into the open table.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("heads", self.heads);
        toml.int("head_dim", self.head_dim);
        toml.int("top_k", self.top_k);
        if !self.layers.is_empty() {
            toml.ints("layers", &self.layers);
        }
    }

    /// Whether it stands on the attention layer with this ordinal.
    pub fn covers(&self, ordinal: u64) -> bool {
        self.layers.is_empty() || self.layers.contains(&ordinal)
    }

    /// The indexer's tensors; queries come from the query latent when there is one.
    pub(crate) fn tensors(&self, query_width: u64, hidden: u64, out: &mut Emitter) {
        let matrix = |rows, columns| vec![Dim::whole(rows), Dim::whole(columns)];
        let surface = Surface::SparseIndexer;
        out.add("indexer.wq.weight", surface, Role::Matrix, matrix(self.heads * self.head_dim, query_width));
        out.add("indexer.wk.weight", surface, Role::Matrix, matrix(self.head_dim, hidden));
        out.norm("indexer.k_norm", surface, Norm::LayerNorm, self.head_dim);
        out.add("indexer.weights.weight", surface, Role::Matrix, matrix(self.heads, hidden));
    }
}
