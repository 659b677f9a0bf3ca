//! Side-channel embeddings: n-gram hash tables and structure tables. Their split is an ownership
//! question first: one stage owns them, and the recipe says which.
//!
//! What they compute, after DatasunriseOU/cppmega (`cppmega/features/engram/ngram_hash.py`,
//! `cppmega/features/structure/embedding.py`): every token makes [`SideEmbedding::lookups`] lookups,
//! each into its own share of the rows. Components of a table are weighed by their scales and
//! summed, tables are concatenated, and one projection leads onto the hidden width. Owned by the
//! first stage, the result is added to the token embedding; owned by the last, to the residual
//! stream behind the last layer, before the final norm and the prediction suffix. Where a cut of
//! depth falls changes neither.

mod lookup;

pub use lookup::Lookup;

use super::{Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Role, Surface};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;
use std::ops::Range;
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

/// A table of `rows × dim`, projected onto the hidden width and added to the residual stream.
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
    /// Rows of each lookup's share; equal shares when empty.
    pub sizes: Vec<u64>,
    /// The stage that holds it, which also decides where it is added.
    pub stage: OwnerStage,
}

impl SideEmbedding {
    /// Reads its keys but for the switch, which the caller reads.
    pub(crate) fn read(mut section: Section) -> Option<SideEmbedding> {
        let rows = section.count("rows", limits::VOCAB);
        let dim = section.count("dim", limits::WIDTH);
        let tables = section.count_or("tables", limits::HEADS, 1);
        let scales = section.natural_or("scales", limits::HEADS, 0);
        let stage = section.choice("stage", OwnerStage::ALL, OwnerStage::First);
        let sizes = section.naturals("sizes", limits::VOCAB).unwrap_or_default();
        let side = || Some(SideEmbedding { rows: rows?, dim: dim?, tables: tables?, scales: scales?, sizes, stage });
        let side = side();
        if let Some((key, finding)) = side.as_ref().and_then(SideEmbedding::finding) {
            section.report(key, finding);
        }
        section.finish();
        side
    }

    /// What is wrong with its rows, and the key that says them.
    fn finding(&self) -> Option<(&'static str, Finding)> {
        let (rows, lookups, sizes) = (self.rows, self.lookups(), &self.sizes);
        let error = |key, message| Some((key, Finding::error("side/rows", Blame::Recipe, key, message)));
        let (key, finding) = if rows < lookups {
            error("rows", format!("{rows} rows are fewer than the {lookups} lookups of a token"))
        } else if !sizes.is_empty() && (sizes.len() as u64 != lookups || sizes.contains(&0)) {
            error("sizes", format!("{} sizes are not one for each of the {lookups} lookups of a token", sizes.len()))
        } else if !sizes.is_empty() && sizes.iter().sum::<u64>() != rows {
            error("sizes", format!("{} rows of all shares are not the {rows} of the table", sizes.iter().sum::<u64>()))
        } else {
            None
        }?;
        Some((key, finding.hint("every table, and every component of one, has a row at least")))
    }

    /// Lookups of a token: one for every component of every table.
    pub fn lookups(&self) -> u64 {
        self.tables * self.components()
    }

    /// Components that are summed before tables are concatenated.
    pub fn components(&self) -> u64 {
        self.scales.max(1)
    }

    /// Rows a lookup may find: shares lie one behind the other; equal ones differ by a row at most, the
    /// larger ones first. Lookups count through the components of the first table, then those of the next.
    pub fn share(&self, lookup: u64) -> Range<u64> {
        if let Some(&size) = self.sizes.get(lookup as usize) {
            let start = self.sizes[..lookup as usize].iter().sum();
            return start..start + size;
        }
        let (each, more) = (self.rows / self.lookups(), self.rows % self.lookups());
        let start = lookup * each + lookup.min(more);
        start..start + each + u64::from(lookup < more)
    }

    /// Writes its keys into the open table.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("rows", self.rows);
        toml.int("dim", self.dim);
        toml.int_unless("tables", self.tables, 1);
        toml.int_unless("scales", self.scales, 0);
        if !self.sizes.is_empty() {
            toml.ints("sizes", &self.sizes);
        }
        toml.word_unless("stage", self.stage.name(), OwnerStage::First.name());
    }

    /// Its tensors.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let surface = Surface::SideEmbedding;
        out.add("table.weight", surface, Role::Embedding, vec![Dim::whole(self.rows), Dim::whole(self.dim)]);
        let joined = Dim::whole(self.tables * self.dim);
        out.linear("proj", surface, Role::Embedding, Dim::whole(hidden), joined, Bias::No);
        if self.scales > 0 {
            out.add("scales", surface, Role::Norm, vec![Dim::whole(self.scales)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_rows() {
        let equal =
            SideEmbedding { rows: 25, dim: 4, tables: 3, scales: 2, sizes: Vec::new(), stage: OwnerStage::First };
        let unequal = SideEmbedding { sizes: vec![9, 1, 2, 3, 4, 6], ..equal.clone() };
        for side in [equal, unequal] {
            let shares: Vec<_> = (0..side.lookups()).map(|l| side.share(l)).collect();
            assert_eq!(shares.len(), 6);
            assert_eq!(shares.iter().cloned().flatten().collect::<Vec<_>>(), (0..25).collect::<Vec<_>>());
        }
    }

    #[test]
    fn sizes_are_one_a_lookup_and_make_up_the_rows() {
        let text = crate::builtin::find("nam56r").unwrap().to_toml();
        for wrong in ["[9, 15]", "[25]", "[0, 25]"] {
            let findings = crate::Recipe::parse(&text.replace("[9, 16]", wrong)).unwrap_err();
            assert_eq!((findings[0].rule, &*findings[0].object), ("side/rows", "sizes"), "{findings:#?}");
        }
    }

    #[test]
    fn a_lookup_without_rows_is_refused() {
        let text = crate::builtin::find("nam56r").unwrap().to_toml().replace("rows = 25", "rows = 1");
        let findings = crate::Recipe::parse(&text).unwrap_err();
        assert_eq!(findings[0].rule, "side/rows", "{findings:#?}");
    }
}
