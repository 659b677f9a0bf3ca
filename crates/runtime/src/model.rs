//! A model from a recipe: the layers of the pattern, each block behind its norm and added to the
//! residual stream, between embedding and loss.

use crate::blocks::edges::{Embedding, Head};
use crate::blocks::mlp::{DENSE, Mlp};
use crate::blocks::norm::Norm;
use crate::blocks::{Block, Cx, attention, m2rnn, mamba2, mamba3, moe};
use crate::mat::Mat;
use crate::params::Shelf;
use crate::real::Real;
use crate::saved::{Save, Saved, Sizes};
use comm::Result;
use diag::{Blame, Finding};
use layout::{Layout, StagePlan};
use recipe::kinds::mamba::Mamba;
use recipe::{Layer, Mixer, Place, Recipe};
use std::collections::BTreeMap;

/// Mixers side by side behind one norm.
struct Residual<R> {
    norm: Norm,
    mixers: Vec<Box<dyn Block<R>>>,
}

/// What one rank has of a model: its chunks of depth, and the edges of those at the ends.
pub struct Model<R> {
    embedding: Option<Embedding>,
    /// By chunk, blocks in order with the layer each stands in.
    chunks: BTreeMap<usize, Vec<(usize, Residual<R>)>>,
    last: Option<(Norm, Head)>,
    last_chunk: usize,
    hidden: usize,
    is_tied: bool,
}

/// What one microbatch kept in one chunk.
pub struct Pass<R> {
    blocks: Vec<(Mat<R>, Vec<Saved<R>>)>,
    /// Input of the final norm, and what the head kept.
    head: Option<(Mat<R>, Saved<R>)>,
    /// Cross-entropy of this context rank's tokens, as it enters the step's loss.
    pub loss: f64,
}

impl<R: Real> Pass<R> {
    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        let inputs = self.blocks.iter().map(|(x, _)| x).chain(self.head.iter().map(|(x, _)| x));
        let saved = self.blocks.iter().flat_map(|(_, s)| s).chain(self.head.iter().map(|(_, s)| s));
        inputs.map(|x| x.data.len() as u64 * R::BYTES).sum::<u64>() + saved.map(Saved::bytes).sum::<u64>()
    }
}

/// A microbatch on one rank: tokens and what follows each, for the positions of its context part.
pub struct Tokens {
    /// One a row.
    pub input: Vec<u32>,
    /// The next token of each.
    pub target: Vec<u32>,
    /// Tokens of the whole step, which losses are over.
    pub total: f64,
}

fn refuse(object: &str, what: &str) -> Finding {
    Finding::error("runtime/unsupported", Blame::Engine, object, format!("the runtime has no {what}"))
}

impl<R: Real> Model<R> {
    /// The chunks that `stage` holds of a recipe, over the parameters the rank holds.
    pub fn new(
        recipe: &Recipe,
        layout: &Layout,
        stages: &StagePlan,
        stage: usize,
        shelf: &mut Shelf,
    ) -> std::result::Result<Model<R>, Finding> {
        if recipe.features.sides().next().is_some() {
            return Err(refuse("features", "side embeddings"));
        }
        if recipe.features.mtp().is_some() {
            return Err(refuse("features.mtp", "prediction heads"));
        }
        let mut chunks = BTreeMap::new();
        for &chunk in &stages.by_stage[stage] {
            let mut blocks = Vec::new();
            for index in stages.chunks[chunk].layers.clone() {
                let before = recipe.layers[..index].iter().flat_map(Layer::mixers);
                let mut ordinal = before.filter(|m| *m == Mixer::Attention).count() as u64;
                let (layer, prefix) = (&recipe.layers[index], format!("layers.{index}"));
                let residuals = residuals(recipe, layout, shelf, layer, &prefix, &mut ordinal)?;
                blocks.extend(residuals.into_iter().map(|r| (index, r)));
            }
            chunks.insert(chunk, blocks);
        }
        let last_chunk = stages.chunks.len() - 1;
        let norm = |shelf: &Shelf| Norm::new(shelf, "final.norm", recipe.hidden as usize);
        Ok(Model {
            embedding: chunks.contains_key(&0).then(|| Embedding::new(recipe, shelf)),
            last: chunks.contains_key(&last_chunk).then(|| (norm(shelf), Head::new(recipe, shelf))),
            chunks,
            last_chunk,
            hidden: recipe.hidden as usize,
            is_tied: recipe.tied,
        })
    }

    /// Places behind the last layer; a tied head is the token table.
    fn edges(&self) -> [Place; 2] {
        [Place::FinalNorm, if self.is_tied { Place::Embedding } else { Place::Head }]
    }

    /// Everything one microbatch keeps in a chunk, by layer (`None` behind the last): the
    /// declaration that a run is held to.
    pub fn saves(&self, chunk: usize, sizes: &Sizes, shelf: &Shelf) -> Vec<(Option<usize>, Save)> {
        let mut all = Vec::new();
        for (layer, residual) in &self.chunks[&chunk] {
            all.push((Some(*layer), residual.norm.saves("norm input", sizes.shard, self.hidden)));
            all.extend(residual.mixers.iter().flat_map(|m| m.saves(sizes)).map(|s| (Some(*layer), s)));
        }
        if let Some((norm, head)) = self.last.as_ref().filter(|_| chunk == self.last_chunk) {
            all.push((None, norm.saves("final norm input", sizes.shard, self.hidden)));
            all.extend(head.saves(sizes, shelf).into_iter().map(|s| (None, s)));
        }
        all
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Chunks this rank holds.
    pub fn chunks(&self) -> impl Iterator<Item = usize> + '_ {
        self.chunks.keys().copied()
    }

    /// Runs a microbatch through a chunk. The first chunk takes its input from the tokens, the last
    /// gives a loss instead of an output.
    pub fn forward(
        &self,
        cx: &mut Cx<R>,
        shelf: &Shelf,
        chunk: usize,
        input: Option<Mat<R>>,
        tokens: &Tokens,
    ) -> Result<(Option<Mat<R>>, Pass<R>)> {
        let mut x = match (input, &self.embedding) {
            (Some(x), _) => x,
            (None, Some(embedding)) => {
                cx.open(Place::Embedding)?;
                let x = embedding.forward(cx, shelf, &tokens.input)?;
                cx.close(Place::Embedding);
                x
            }
            (None, None) => unreachable!("a chunk behind the first has an input"),
        };
        let mut blocks = Vec::new();
        for (layer, residual) in &self.chunks[&chunk] {
            cx.open(Place::Layer(*layer))?;
            let normed = residual.norm.forward(cx, &x);
            let mut out = x.clone();
            let mut kept = Vec::with_capacity(residual.mixers.len());
            for mixer in &residual.mixers {
                let (y, saved) = mixer.forward(cx, normed.clone())?;
                debug_assert!(saved.is_complete());
                out.add(&y);
                kept.push(saved);
            }
            blocks.push((std::mem::replace(&mut x, out), kept));
            cx.close(Place::Layer(*layer));
        }
        let Some((norm, head)) = self.last.as_ref().filter(|_| chunk == self.last_chunk) else {
            return Ok((Some(x), Pass { blocks, head: None, loss: 0.0 }));
        };
        self.edges().iter().try_for_each(|p| cx.open(*p))?;
        let (loss, saved) = head.forward(cx, shelf, norm.forward(cx, &x), tokens)?;
        self.edges().iter().for_each(|p| cx.close(*p));
        Ok((None, Pass { blocks, head: Some((x, saved)), loss }))
    }

    /// Transpose of [`Model::forward`]: adds gradients, and gives the input's unless tokens were.
    pub fn backward(
        &self,
        cx: &mut Cx<R>,
        shelf: &Shelf,
        chunk: usize,
        tokens: &Tokens,
        pass: Pass<R>,
        dy: Option<Mat<R>>,
    ) -> Result<Option<Mat<R>>> {
        let mut dx = match (dy, &self.last, pass.head) {
            (Some(dy), ..) => dy,
            (None, Some((norm, head)), Some((x, saved))) => {
                self.edges().iter().try_for_each(|p| cx.open(*p))?;
                let dnormed = head.backward(cx, shelf, saved, tokens)?;
                let dx = norm.backward(cx, &x, &dnormed);
                self.edges().iter().for_each(|p| cx.close(*p));
                dx
            }
            _ => unreachable!("a chunk before the last is given its output's gradient"),
        };
        for ((layer, residual), (x, kept)) in self.chunks[&chunk].iter().zip(pass.blocks).rev() {
            cx.open(Place::Layer(*layer))?;
            let mut dnormed = Mat::zeros(dx.rows, dx.cols);
            for (mixer, saved) in residual.mixers.iter().zip(kept) {
                dnormed.add(&mixer.backward(cx, saved, dx.clone())?);
            }
            dx.add(&residual.norm.backward(cx, &x, &dnormed));
            cx.close(Place::Layer(*layer));
        }
        match self.embedding.as_ref().filter(|_| chunk == 0) {
            Some(embedding) => embedding.backward(cx, shelf, &tokens.input, dx).map(|()| None),
            None => Ok(Some(dx)),
        }
    }
}

/// The blocks of one layer, with the paths `recipe.tensors()` gives them.
fn residuals<R: Real>(
    recipe: &Recipe,
    layout: &Layout,
    shelf: &mut Shelf,
    layer: &Layer,
    prefix: &str,
    ordinal: &mut u64,
) -> std::result::Result<Vec<Residual<R>>, Finding> {
    let mut out = Vec::new();
    for (index, block) in layer.blocks.iter().enumerate() {
        let first = block.mixers[0];
        let twin = layer.blocks[..index].iter().filter(|b| b.mixers[0] == first).count();
        let suffix = if twin == 0 { String::new() } else { format!("_{}", twin + 1) };
        let path = |mixer: Mixer| format!("{prefix}.{}{suffix}", mixer.table());
        let norm = Norm::new(shelf, &format!("{}.norm", path(first)), recipe.hidden as usize);
        let mut mixers = Vec::new();
        for &mixer in &block.mixers {
            mixers.push(new_block(recipe, layout, shelf, mixer, &path(mixer), Some(*ordinal))?);
            *ordinal += u64::from(mixer == Mixer::Attention);
        }
        out.push(Residual { norm, mixers });
    }
    Ok(out)
}

/// One block at a path.
fn new_block<R: Real>(
    recipe: &Recipe,
    layout: &Layout,
    shelf: &mut Shelf,
    mixer: Mixer,
    path: &str,
    ordinal: Option<u64>,
) -> std::result::Result<Box<dyn Block<R>>, Finding> {
    Ok(match (mixer, &recipe.moe, &recipe.mamba, &recipe.recurrent, &recipe.mlp) {
        (Mixer::Attention, ..) => attention::new(recipe, shelf, path, ordinal)?,
        (Mixer::Moe, Some(kind), ..) => Box::new(moe::Moe::new(kind, shelf, path, recipe.hidden, layout)?),
        (Mixer::Mamba, _, Some(Mamba::Two(kind)), ..) => Box::new(mamba2::Mamba2::new(kind, shelf, path, layout)?),
        (Mixer::Mamba, _, Some(Mamba::Three(kind)), ..) => Box::new(mamba3::Mamba3::new(kind, shelf, path)?),
        (Mixer::Recurrent, _, _, Some(kind), _) => Box::new(m2rnn::M2rnn::new(kind, shelf, path)?),
        (Mixer::Mlp, .., Some(kind)) => Box::new(Mlp::new(shelf, path, kind.activation, DENSE)),
        (Mixer::Mamba, ..) => return Err(refuse("mamba", "Mamba-1")),
        (Mixer::GatedDelta, ..) => return Err(refuse("gated_delta", "gated delta net")),
        (mixer, ..) => return Err(refuse(mixer.table(), "block without a table")),
    })
}
