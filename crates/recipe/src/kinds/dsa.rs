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
    /// Attention layers that are sparse, counted among attention layers from zero; all when empty.
    pub layers: Vec<u64>,
    /// Of these, those without an indexer of their own, which read what the last indexer before them chose: the
    /// index cache (IndexCache, arXiv 2603.12201; Megatron's `--dsa-indexer-topk-freq`; GLM's `indexer_types`).
    pub reuse: Vec<u64>,
}

impl Dsa {
    /// Reads `[features.dsa]` but for its switch, which the caller reads.
    pub(crate) fn read(mut section: Section) -> Option<Dsa> {
        let heads = section.count("heads", limits::HEADS);
        let head_dim = section.count("head_dim", limits::WIDTH);
        let top_k = section.count("top_k", limits::SEQUENCE);
        let layers = section.naturals("layers", limits::DEPTH).unwrap_or_default();
        let reuse = section.naturals("reuse", limits::DEPTH).unwrap_or_default();
        section.finish();
        Some(Dsa { heads: heads?, head_dim: head_dim?, top_k: top_k?, layers, reuse })
    }

    /// Writes its keys into the open table.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("heads", self.heads);
        toml.int("head_dim", self.head_dim);
        toml.int("top_k", self.top_k);
        if !self.layers.is_empty() {
            toml.ints("layers", &self.layers);
        }
        if !self.reuse.is_empty() {
            toml.ints("reuse", &self.reuse);
        }
    }

    /// Whether the attention layer with this ordinal is sparse.
    pub fn covers(&self, ordinal: u64) -> bool {
        self.layers.is_empty() || self.layers.contains(&ordinal)
    }

    /// Whether an indexer stands on it, rather than another layer's choice being read.
    pub fn indexes(&self, ordinal: u64) -> bool {
        self.covers(ordinal) && !self.reuse.contains(&ordinal)
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
