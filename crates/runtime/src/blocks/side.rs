//! Side embeddings: rows that a token's n-grams or structure select, projected onto the hidden width and
//! added to the residual stream on the stage that owns them (`recipe::kinds::side`).
//!
//! Every rank that holds them holds them whole and looks up its own tokens. An n-gram reaches back
//! over any cut in time: ids are data, which each rank has, and no collective is needed. Nothing is
//! kept for backward; rows are looked up again.

use super::{Cx, Linear};
use crate::mat::{Mat, axpy, dot};
use crate::model::Tokens;
use crate::params::{Id, Shelf};
use crate::rank::Rank;
use crate::real::Real;
use comm::Result;
use recipe::kinds::side::{Lookup, OwnerStage, SideEmbedding};
use recipe::{Place, Recipe};
use std::ops::Range;

/// The side embeddings of one owner stage.
pub(crate) struct Sides {
    place: Place,
    all: Vec<Side>,
}

impl Sides {
    /// The side embeddings that `stage` owns.
    pub fn new(recipe: &Recipe, shelf: &Shelf, stage: OwnerStage) -> Sides {
        let mine = recipe.features.sides().filter(|(_, side)| side.stage == stage);
        Sides { place: Place::Side(stage), all: mine.map(|(name, side)| Side::new(name, side, shelf)).collect() }
    }

    /// Adds them to the residual stream of this rank's own tokens.
    pub fn forward<R: Real>(&self, cx: &mut Cx<R>, tokens: &Tokens, x: &mut Mat<R>) -> Result<()> {
        if self.all.is_empty() {
            return Ok(());
        }
        cx.open(self.place)?;
        self.all.iter().for_each(|side| x.add(&side.forward(cx, tokens)));
        cx.close(self.place);
        Ok(())
    }

    /// Transpose of [`Sides::forward`]; the gradient of the stream itself passes unchanged.
    pub fn backward<R: Real>(&self, cx: &mut Cx<R>, tokens: &Tokens, dx: &Mat<R>) -> Result<()> {
        if self.all.is_empty() {
            return Ok(());
        }
        cx.open(self.place)?;
        self.all.iter().for_each(|side| side.backward(cx, tokens, dx));
        cx.close(self.place);
        Ok(())
    }
}

/// One side embedding.
struct Side {
    table: Id,
    proj: Linear,
    scales: Option<Id>,
    lookups: Vec<Lookup>,
    dim: usize,
    tables: usize,
}

impl Side {
    fn new(name: &str, side: &SideEmbedding, shelf: &Shelf) -> Side {
        Side {
            table: shelf.id(&format!("side.{name}.table.weight")),
            proj: Linear::new(shelf, &format!("side.{name}.proj")),
            scales: shelf.find(&format!("side.{name}.scales")),
            lookups: Lookup::all(name, side),
            dim: side.dim as usize,
            tables: side.tables as usize,
        }
    }

    /// Calls `visit(row of the stream, lookup, row of the table)` for every lookup of this rank's own
    /// tokens.
    fn each(&self, rank: &Rank, tokens: &Tokens, mut visit: impl FnMut(usize, &Lookup, usize)) {
        let own = rank.shard_positions().into_iter().flat_map(|at| tokens.sequences.iter().map(move |s| (at, s)));
        for (row, (position, sequence)) in own.enumerate() {
            let before = |back: usize| position.checked_sub(back).map_or(0, |at| u64::from(sequence[at]));
            self.lookups.iter().for_each(|lookup| visit(row, lookup, lookup.row(before) as usize));
        }
    }

    fn columns(&self, lookup: &Lookup) -> Range<usize> {
        let table = lookup.table as usize;
        table * self.dim..(table + 1) * self.dim
    }

    fn scale<R: Real>(&self, weights: &[Mat<R>], lookup: &Lookup) -> R {
        self.scales.map_or(R::ONE, |scales| weights[scales.0].data[lookup.component as usize])
    }

    /// Rows that tokens select: components summed, tables side by side.
    fn found<R: Real>(&self, cx: &Cx<R>, tokens: &Tokens) -> Mat<R> {
        let mut found = Mat::zeros(cx.sizes.shard, self.tables * self.dim);
        self.each(cx.rank, tokens, |row, lookup, at| {
            let to = &mut found.row_mut(row)[self.columns(lookup)];
            axpy(to, self.scale(cx.weights, lookup), cx.weight(self.table).row(at));
        });
        found
    }

    fn forward<R: Real>(&self, cx: &Cx<R>, tokens: &Tokens) -> Mat<R> {
        self.proj.forward(cx, &self.found(cx, tokens))
    }

    fn backward<R: Real>(&self, cx: &mut Cx<R>, tokens: &Tokens, dy: &Mat<R>) {
        let found = self.found(cx, tokens);
        let dfound = self.proj.backward(cx, &found, dy);
        self.each(cx.rank, tokens, |row, lookup, at| {
            let d = &dfound.row(row)[self.columns(lookup)];
            axpy(cx.grads[self.table.0].row_mut(at), self.scale(cx.weights, lookup), d);
            if let Some(scales) = self.scales {
                cx.grads[scales.0].data[lookup.component as usize] += dot(d, cx.weights[self.table.0].row(at));
            }
        });
    }
}
