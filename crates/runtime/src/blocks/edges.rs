//! What stands around the layers: the token table, and the loss over a vocabulary that is cut by rows.

use super::{Cx, Linear};
use crate::mat::{Mat, axpy};
use crate::model::Tokens;
use crate::params::{Id, Shelf};
use crate::real::Real;
use crate::saved::{Save, Saved, Sizes};
use crate::split::tensor;
use crate::team;
use crate::wide::{self, exp_over, most, wide};
use comm::{Call, Op, Result};
use layout::Layout;
use ledger::shardwright as declared;
use recipe::{Positions, Recipe};

const EMBED: &str = "out of the embedding";
const HEAD: &str = "into the output head";

/// The token table, cut by rows over the tensor axis, and learned positions.
pub(crate) struct Embedding {
    pub tokens: Id,
    positions: Option<Id>,
    hidden: usize,
    /// What a token's row is multiplied with.
    factor: f64,
}

/// First global row that this rank holds of a vocabulary, and how many.
fn rows(shelf: &Shelf, id: Id) -> (usize, usize) {
    let range = &shelf.params[id.0].part.dims[0][0];
    (range.start as usize, (range.end - range.start) as usize)
}

impl Embedding {
    pub fn new(recipe: &Recipe, shelf: &Shelf) -> Embedding {
        let positions = matches!(recipe.positions, Positions::Learned { .. });
        Embedding {
            tokens: shelf.id("embedding.tokens.weight"),
            positions: positions.then(|| shelf.id("embedding.positions.weight")),
            hidden: recipe.hidden as usize,
            factor: recipe.multipliers.embedding,
        }
    }

    /// Embeds the tokens of this context rank; gives the rows of this rank's own tokens only.
    pub fn forward<R: Real>(&self, cx: &Cx<R>, shelf: &Shelf, tokens: &[u32]) -> Result<Mat<R>> {
        let (first, len) = rows(shelf, self.tokens);
        let mut y = Mat::zeros(tokens.len(), self.hidden);
        for (row, token) in tokens.iter().enumerate() {
            if let Some(at) = (*token as usize).checked_sub(first).filter(|at| *at < len) {
                y.row_mut(row).copy_from_slice(cx.weight(self.tokens).row(at));
            }
        }
        let mut y = tensor::leave(cx.rank, EMBED, y)?;
        y.times(self.factor);
        if let Some(positions) = self.positions {
            let batch = cx.sizes.sequences;
            for (s, position) in cx.rank.shard_positions().into_iter().enumerate() {
                (0..batch).for_each(|b| axpy(y.row_mut(s * batch + b), R::ONE, cx.weight(positions).row(position)));
            }
        }
        Ok(y)
    }

    /// Transpose of [`Embedding::forward`].
    pub fn backward<R: Real>(&self, cx: &mut Cx<R>, shelf: &Shelf, tokens: &[u32], dy: Mat<R>) -> Result<()> {
        if let Some(positions) = self.positions {
            let batch = cx.sizes.sequences;
            for (s, position) in cx.rank.shard_positions().into_iter().enumerate() {
                for b in 0..batch {
                    axpy(cx.grads[positions.0].row_mut(position), R::ONE, dy.row(s * batch + b));
                }
            }
        }
        let mut dy = dy;
        dy.times(self.factor);
        let dy = tensor::leave_back(cx.rank, EMBED, dy)?;
        let (first, len) = rows(shelf, self.tokens);
        for (row, token) in tokens.iter().enumerate() {
            if let Some(at) = (*token as usize).checked_sub(first).filter(|at| *at < len) {
                axpy(cx.grad(self.tokens).row_mut(at), R::ONE, dy.row(row));
            }
        }
        Ok(())
    }
}

/// The output head and the loss: the mean cross-entropy over all tokens of a step. Rows that only
/// pad the vocabulary take no part.
pub(crate) struct Head {
    weight: Linear,
    id: Id,
    vocab: usize,
    /// What logits are multiplied with.
    factor: f64,
    saves: Vec<Save>,
}

impl Head {
    pub fn new(recipe: &Recipe, layout: &Layout, shelf: &Shelf) -> Head {
        let id = shelf.id(if recipe.tied { "embedding.tokens.weight" } else { "head.weight" });
        Head {
            weight: Linear::of(id),
            id,
            vocab: recipe.vocab as usize,
            factor: recipe.multipliers.logits,
            saves: declared::head(recipe, layout, &Sizes::of(layout)),
        }
    }

    /// First local row and number of local rows that are tokens rather than padding.
    fn real(&self, shelf: &Shelf) -> (usize, usize) {
        let (first, len) = rows(shelf, self.id);
        (first, self.vocab.saturating_sub(first).min(len))
    }

    /// Sum of the losses of this context rank's tokens, each divided by the tokens of the step; the same
    /// on every tensor rank.
    pub fn forward<R: Real>(&self, cx: &Cx<R>, shelf: &Shelf, x: Mat<R>, tokens: &Tokens) -> Result<(f64, Saved<R>)> {
        let targets = &tokens.target;
        let mut saved = Saved::new(self.saves.clone());
        let x = tensor::enter(cx.rank, HEAD, x)?;
        let mut logits = self.weight.partial(cx, &x);
        logits.times(self.factor);
        let (first, real) = self.real(shelf);
        let reduce = |name, op, values| cx.rank.comm.all_reduce(&cx.rank.tp, Call::new("tp", name), op, values);
        let cols = logits.cols;
        let lowest = R::of(f64::NEG_INFINITY);
        let top = |row: &[R]| most(&row[..real], lowest);
        let most = reduce("loss: maximum", Op::Max, logits.data.chunks_exact(cols).map(top).collect())?;
        let picked = |(row, target): (&[R], &u32)| {
            (*target as usize).checked_sub(first).filter(|at| *at < real).map_or(R::ZERO, |at| row[at])
        };
        let picked = logits.data.chunks_exact(cols).zip(targets).map(picked).collect();
        let picked = reduce("loss: target", Op::Sum, picked)?;
        let mut sums = vec![R::ZERO; most.len()];
        team::rows2(&mut logits.data, cols, &mut sums, |at, rows, sums| {
            for ((row, sum), most) in rows.chunks_exact_mut(cols).zip(sums).zip(&most[at..]) {
                row[real..].fill(R::ZERO);
                *sum = exp_over(&mut row[..real], *most);
            }
        });
        let sums = reduce("loss: sum", Op::Sum, sums)?;
        let mut loss = 0.0;
        for i in 0..sums.len() {
            loss += (sums[i].ln() + most[i] - picked[i]).f64();
        }
        team::rows(&mut logits.data, cols, |at, rows| {
            for (row, sum) in rows.chunks_exact_mut(cols).zip(&sums[at..]) {
                let share = R::ONE / *sum;
                wide(|| row.iter_mut().for_each(|v| *v *= share));
            }
        });
        saved.keep("head input", x);
        saved.keep("shares", logits);
        Ok((loss / tokens.total, saved))
    }

    /// Transpose of [`Head::forward`].
    pub fn backward<R: Real>(
        &self,
        cx: &mut Cx<R>,
        shelf: &Shelf,
        mut saved: Saved<R>,
        tokens: &Tokens,
    ) -> Result<Mat<R>> {
        let mut d = saved.take("shares");
        let (first, real) = self.real(shelf);
        for (row, target) in tokens.target.iter().enumerate() {
            if let Some(at) = (*target as usize).checked_sub(first).filter(|at| *at < real) {
                d.row_mut(row)[at] -= R::ONE;
            }
        }
        let scale = R::of(self.factor / tokens.total);
        team::rows(&mut d.data, 1, |_, d| wide(|| d.iter_mut().for_each(|v| *v *= scale)));
        let dx = self.weight.partial_back(cx, &saved.take("head input"), &d);
        tensor::enter_back(cx.rank, HEAD, dx)
    }
}

/// The squared length of a slice, for global norms.
pub(crate) fn squares<R: Real>(values: &[R]) -> f64 {
    wide::squares(values).f64()
}
