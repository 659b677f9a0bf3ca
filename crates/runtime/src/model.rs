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
use layout::Layout;
use recipe::kinds::mamba::Mamba;
use recipe::{Layer, Mixer, Place, Recipe};

/// Mixers side by side behind one norm.
struct Residual<R> {
    norm: Norm,
    mixers: Vec<Box<dyn Block<R>>>,
}

/// One model on one rank.
pub struct Model<R> {
    embedding: Embedding,
    /// Blocks in order, with the layer each stands in.
    blocks: Vec<(usize, Residual<R>)>,
    final_norm: Norm,
    head: Head,
    hidden: usize,
    is_tied: bool,
}

/// What one microbatch kept.
pub struct Pass<R> {
    blocks: Vec<(Mat<R>, Vec<Saved<R>>)>,
    last: Mat<R>,
    head: Saved<R>,
    /// Cross-entropy of this context rank's tokens, as it enters the step's loss.
    pub loss: f64,
}

impl<R: Real> Pass<R> {
    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        let inputs = self.blocks.iter().map(|(x, _)| x.data.len() as u64 * R::BYTES);
        let kept = self.blocks.iter().flat_map(|(_, s)| s).map(Saved::bytes);
        inputs.sum::<u64>() + kept.sum::<u64>() + self.last.data.len() as u64 * R::BYTES + self.head.bytes()
    }
}

/// A microbatch on one rank: tokens and what follows each, for the positions of its context part.
pub struct Tokens {
    /// One a row.
    pub input: Vec<u32>,
    /// The next token of each.
    pub target: Vec<u32>,
}

fn refuse(object: &str, what: &str) -> Finding {
    Finding::error("runtime/unsupported", Blame::Engine, object, format!("the runtime has no {what}"))
}

impl<R: Real> Model<R> {
    /// The model of a recipe over the parameters a rank holds.
    pub fn new(recipe: &Recipe, layout: &Layout, shelf: &mut Shelf) -> std::result::Result<Model<R>, Finding> {
        if recipe.features.sides().next().is_some() {
            return Err(refuse("features", "side embeddings"));
        }
        if recipe.features.mtp().is_some() {
            return Err(refuse("features.mtp", "prediction heads"));
        }
        let mut blocks = Vec::new();
        let mut ordinal = 0;
        for (index, layer) in recipe.layers.iter().enumerate() {
            for residual in residuals(recipe, layout, shelf, layer, &format!("layers.{index}"), &mut ordinal)? {
                blocks.push((index, residual));
            }
        }
        Ok(Model {
            embedding: Embedding::new(recipe, shelf),
            blocks,
            final_norm: Norm::new(shelf, "final.norm", recipe.hidden as usize),
            head: Head::new(recipe, shelf),
            hidden: recipe.hidden as usize,
            is_tied: recipe.tied,
        })
    }

    /// Places behind the last layer; a tied head is the token table.
    fn edges(&self) -> [Place; 2] {
        [Place::FinalNorm, if self.is_tied { Place::Embedding } else { Place::Head }]
    }

    /// Everything one microbatch keeps, by layer (`None` behind the last): the declaration that a
    /// run is held to.
    pub fn saves(&self, sizes: &Sizes, shelf: &Shelf) -> Vec<(Option<usize>, Save)> {
        let mut all = Vec::new();
        for (layer, residual) in &self.blocks {
            all.push((Some(*layer), residual.norm.saves("norm input", sizes.shard, self.hidden)));
            all.extend(residual.mixers.iter().flat_map(|m| m.saves(sizes)).map(|s| (Some(*layer), s)));
        }
        all.push((None, self.final_norm.saves("final norm input", sizes.shard, self.hidden)));
        all.extend(self.head.saves(sizes, shelf).into_iter().map(|s| (None, s)));
        all
    }

    /// Runs a microbatch; its losses are over `total` tokens.
    pub fn forward(&self, cx: &mut Cx<R>, shelf: &Shelf, tokens: &Tokens, total: f64) -> Result<Pass<R>> {
        cx.open(Place::Embedding)?;
        let mut x = self.embedding.forward(cx, shelf, &tokens.input)?;
        cx.close(Place::Embedding);
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (layer, residual) in &self.blocks {
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
        self.edges().iter().try_for_each(|p| cx.open(*p))?;
        let normed = self.final_norm.forward(cx, &x);
        let (loss, head) = self.head.forward(cx, shelf, normed, &tokens.target, total)?;
        self.edges().iter().for_each(|p| cx.close(*p));
        Ok(Pass { blocks, last: x, head, loss })
    }

    /// Adds a microbatch's gradients.
    pub fn backward(&self, cx: &mut Cx<R>, shelf: &Shelf, tokens: &Tokens, pass: Pass<R>, total: f64) -> Result<()> {
        self.edges().iter().try_for_each(|p| cx.open(*p))?;
        let dnormed = self.head.backward(cx, shelf, pass.head, &tokens.target, total)?;
        let mut dx = self.final_norm.backward(cx, &pass.last, &dnormed);
        self.edges().iter().for_each(|p| cx.close(*p));
        for ((layer, residual), (x, kept)) in self.blocks.iter().zip(pass.blocks).rev() {
            cx.open(Place::Layer(*layer))?;
            let mut dnormed = Mat::zeros(dx.rows, dx.cols);
            for (mixer, saved) in residual.mixers.iter().zip(kept) {
                dnormed.add(&mixer.backward(cx, saved, dx.clone())?);
            }
            dx.add(&residual.norm.backward(cx, &x, &dnormed));
            cx.close(Place::Layer(*layer));
        }
        self.embedding.backward(cx, shelf, &tokens.input, dx)
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
