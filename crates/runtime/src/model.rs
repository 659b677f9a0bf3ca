//! A model from a recipe: the layers of the pattern, each block behind its norm and added to the
//! residual stream, between embedding and loss.

use crate::blocks::Cx;
use crate::blocks::edges::{Embedding, Head};
use crate::blocks::norm::Norm;
use crate::blocks::side::Sides;
use crate::mat::Mat;
use crate::params::Shelf;
use crate::real::Real;
use crate::saved::Saved;
use crate::stack::{Kept, Stack, residuals};
use crate::stats::{EMBEDDING, Of};
use crate::suffix::{Predicted, Prediction};
use comm::Result;
use diag::Finding;
use layout::activations::depth_state;
use layout::{Layout, OwnershipTable};
use recipe::kinds::side::OwnerStage;
use recipe::{Layer, Mixer, Place, Recipe};
use std::collections::BTreeMap;

/// The part of a model that one rank runs: its chunks of depth, with embedding and head where they are
/// the first or last.
pub struct Model<R> {
    /// On the first stage: the token table, and the side embeddings it owns.
    embedding: Option<(Embedding, Sides)>,
    /// By chunk, its blocks.
    chunks: BTreeMap<usize, Stack<R>>,
    /// On the last stage: the side embeddings it owns, the final norm and the head.
    last: Option<(Sides, Norm, Head)>,
    /// Prediction depths, on the last chunk.
    suffix: Vec<Prediction<R>>,
    last_chunk: usize,
    hidden: usize,
    is_tied: bool,
    /// Rows and columns of the recurrent state that enters each chunk of the whole depth; no rows where
    /// none does.
    states: Vec<(usize, usize)>,
}

/// What one microbatch kept in one chunk, for backward.
pub struct Pass<R> {
    blocks: Kept<R>,
    /// Input of the final norm, and what the head kept.
    head: Option<(Mat<R>, Saved<R>)>,
    suffix: Vec<Predicted<R>>,
    /// Cross-entropy of this context rank's tokens, scaled as it enters the step's loss.
    pub loss: f64,
}

impl<R: Real> Pass<R> {
    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        let head = self.head.iter().map(|(x, saved)| x.data.capacity() as u64 * R::BYTES + saved.bytes());
        self.blocks.bytes() + head.sum::<u64>() + self.suffix.iter().map(Predicted::bytes).sum::<u64>()
    }
}

/// A microbatch on one context rank: the tokens at its positions, and the token after each.
pub struct Tokens<'a> {
    /// The whole sequences, which side embeddings look back into.
    pub sequences: &'a [Vec<u32>],
    pub input: Vec<u32>,
    pub target: Vec<u32>,
    /// For each prediction depth, the tokens it reads and those it predicts.
    pub ahead: Vec<Tokens<'a>>,
    /// Tokens of the whole step, by which losses are divided.
    pub total: f64,
}

impl<R: Real> Model<R> {
    /// The chunks that `stage` holds of a recipe, over the parameters the rank holds.
    pub fn new(
        recipe: &Recipe,
        layout: &Layout,
        table: &OwnershipTable,
        stage: usize,
        shelf: &mut Shelf,
    ) -> std::result::Result<Model<R>, Finding> {
        let stages = &table.stages;
        let mut chunks = BTreeMap::new();
        for &chunk in &stages.by_stage[stage] {
            let mut stack = Stack::default();
            for index in stages.chunks[chunk].layers.clone() {
                let before = recipe.layers[..index].iter().flat_map(Layer::mixers);
                let mut ordinal = before.filter(|m| *m == Mixer::Attention).count() as u64;
                let (layer, prefix) = (&recipe.layers[index], format!("layers.{index}"));
                let residuals = residuals(recipe, layout, table, shelf, layer, &prefix, Some(&mut ordinal))?;
                stack.push(Some(Place::Layer(index)), residuals);
            }
            chunks.insert(chunk, stack);
        }
        let last_chunk = stages.chunks.len() - 1;
        let (first, last) = (chunks.contains_key(&0), chunks.contains_key(&last_chunk));
        let sides = |shelf: &Shelf, stage| Sides::new(recipe, shelf, stage);
        let norm = |shelf: &Shelf| Norm::new(shelf, "final.norm", recipe.hidden as usize);
        let depth = if last { recipe.features.mtp().map_or(0, |m| m.depth) } else { 0 };
        let suffix = (0..depth as usize).map(|d| Prediction::new(recipe, layout, table, shelf, d));
        let suffix = suffix.collect::<std::result::Result<Vec<_>, Finding>>()?;
        Ok(Model {
            suffix,
            embedding: first.then(|| (Embedding::new(recipe, shelf), sides(shelf, OwnerStage::First))),
            last: last.then(|| (sides(shelf, OwnerStage::Last), norm(shelf), Head::new(recipe, layout, shelf))),
            chunks,
            last_chunk,
            hidden: recipe.hidden as usize,
            is_tied: recipe.tied,
            states: states(recipe, layout, table),
        })
    }

    /// Rows and columns of the recurrent state that enters a chunk beside the residual stream.
    pub fn state(&self, chunk: usize) -> Option<(usize, usize)> {
        self.states.get(chunk).copied().filter(|(rows, _)| *rows > 0)
    }

    /// Places whose weights are needed after the last layer; a tied head uses the token table.
    fn edges(&self) -> [Place; 2] {
        [Place::FinalNorm, if self.is_tied { Place::Embedding } else { Place::Head }]
    }

    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Runs a microbatch through a chunk. The first chunk reads tokens instead of an input; the last
    /// gives a loss instead of an output.
    pub fn forward(
        &self,
        cx: &mut Cx<R>,
        shelf: &Shelf,
        chunk: usize,
        input: Option<Mat<R>>,
        tokens: &Tokens,
    ) -> Result<(Option<Mat<R>>, Pass<R>)> {
        let x = match (input, &self.embedding) {
            (Some(x), _) => x,
            (None, Some((embedding, sides))) => {
                cx.open(Place::Embedding)?;
                let mut x = embedding.forward(cx, shelf, &tokens.input)?;
                cx.close(Place::Embedding);
                sides.forward(cx, tokens, &mut x)?;
                cx.watch(Of::Activation, EMBEDDING, &x);
                x
            }
            (None, None) => unreachable!("a chunk behind the first has an input"),
        };
        let (mut x, blocks) = self.chunks[&chunk].forward(cx, x)?;
        let Some((sides, norm, head)) = self.last.as_ref().filter(|_| chunk == self.last_chunk) else {
            return Ok((Some(x), Pass { blocks, head: None, suffix: Vec::new(), loss: 0.0 }));
        };
        sides.forward(cx, tokens, &mut x)?;
        self.edges().iter().try_for_each(|p| cx.open(*p))?;
        let (mut loss, saved) = head.forward(cx, shelf, norm.forward(cx, &x), tokens)?;
        self.edges().iter().for_each(|p| cx.close(*p));
        let mut suffix = Vec::with_capacity(self.suffix.len());
        let mut hidden = x.clone();
        for (prediction, tokens) in self.suffix.iter().zip(&tokens.ahead) {
            let (out, pass) = prediction.forward(cx, shelf, head, hidden, tokens)?;
            loss += pass.loss;
            suffix.push(pass);
            hidden = out;
        }
        Ok((None, Pass { blocks, head: Some((x, saved)), suffix, loss }))
    }

    /// Backward of [`Model::forward`]: adds gradients of weights, and gives that of the input, except on
    /// the first chunk.
    pub fn backward(
        &self,
        cx: &mut Cx<R>,
        shelf: &Shelf,
        chunk: usize,
        tokens: &Tokens,
        pass: Pass<R>,
        dy: Option<Mat<R>>,
    ) -> Result<Option<Mat<R>>> {
        let dx = match (dy, &self.last, pass.head) {
            (Some(dy), ..) => dy,
            (None, Some((sides, norm, head)), Some((x, saved))) => {
                self.edges().iter().try_for_each(|p| cx.open(*p))?;
                let dnormed = head.backward(cx, shelf, saved, tokens)?;
                let mut dx = norm.backward(cx, &x, &dnormed);
                self.edges().iter().for_each(|p| cx.close(*p));
                // Each prediction depth reads the hidden state of the one before, so gradients run
                // through them backwards.
                let mut dhidden: Option<Mat<R>> = None;
                let depths = self.suffix.iter().zip(pass.suffix).zip(&tokens.ahead);
                for ((prediction, pass), tokens) in depths.rev() {
                    dhidden = Some(prediction.backward(cx, shelf, head, pass, tokens, dhidden)?);
                }
                dhidden.iter().for_each(|d| dx.add(d));
                sides.backward(cx, tokens, &dx)?;
                dx
            }
            _ => unreachable!("a chunk before the last is given its output's gradient"),
        };
        let dx = self.chunks[&chunk].backward(cx, pass.blocks, dx)?;
        match self.embedding.as_ref().filter(|_| chunk == 0) {
            Some((embedding, sides)) => {
                cx.watch(Of::ActivationGradient, EMBEDDING, &dx);
                sides.backward(cx, tokens, &dx)?;
                embedding.backward(cx, shelf, &tokens.input, dx).map(|()| None)
            }
            None => Ok(Some(dx)),
        }
    }
}

fn states(recipe: &Recipe, layout: &Layout, table: &OwnershipTable) -> Vec<(usize, usize)> {
    let cols = recipe.recurrent.as_ref().map_or(1, |r| (r.key_dim * r.value_dim) as usize);
    let starts = table.stages.chunks.iter().map(|chunk| chunk.layers.start);
    starts.map(|layer| (depth_state(recipe, layout, layer) as usize / cols, cols)).collect()
}
