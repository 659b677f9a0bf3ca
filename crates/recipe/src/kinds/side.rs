//! Side-channel embeddings: n-gram hash tables and structure tables. Their split is an ownership
//! question first: one stage owns them, and the recipe says which.

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface};
use crate::write::Toml;
use reading::Section;
use units::named;

named! {
    /// The pipeline stage that owns a side channel.
    pub enum OwnerStage {
        /// Where tokens enter.
        First = "first",
        /// Where the loss is taken.
        Last = "last",
    }
}

/// A table of `rows × dim`, projected onto the hidden width and added to the token embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct SideEmbedding {
    /// Rows over all tables.
    pub rows: u64,
    /// Width of a row.
    pub dim: u64,
    /// Tables a token looks into; their rows are concatenated before the projection.
    pub tables: u64,
    /// Learned scales, one a component, where components are summed.
    pub scales: u64,
    /// Who owns it.
    pub stage: OwnerStage,
}

impl SideEmbedding {
    /// Reads its keys but for the switch, which the caller reads.
    pub fn read(mut section: Section) -> Option<SideEmbedding> {
        let rows = section.count("rows", limits::VOCAB);
        let dim = section.count("dim", limits::WIDTH);
        let tables = section.count_or("tables", limits::HEADS, 1);
        let scales = section.natural_or("scales", limits::HEADS, 0);
        let stage = section.choice("stage", OwnerStage::ALL, OwnerStage::First);
        section.finish();
        Some(SideEmbedding { rows: rows?, dim: dim?, tables: tables?, scales: scales?, stage })
    }

    /// Writes its keys into the open table.
    pub fn write(&self, toml: &mut Toml) {
        toml.int("rows", self.rows);
        toml.int("dim", self.dim);
        toml.int_unless("tables", self.tables, 1);
        toml.int_unless("scales", self.scales, 0);
        toml.word_unless("stage", self.stage.name(), OwnerStage::First.name());
    }

    /// Its tensors.
    pub fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let surface = Surface::SideEmbedding;
        out.add("table.weight", surface, Role::Embedding, vec![Dim::whole(self.rows), Dim::whole(self.dim)]);
        let joined = Dim::whole(self.tables * self.dim);
        out.linear("proj", surface, Role::Embedding, Dim::whole(hidden), joined, Bias::No);
        if self.scales > 0 {
            out.add("scales", surface, Role::Norm, vec![Dim::whole(self.scales)]);
        }
    }
}
