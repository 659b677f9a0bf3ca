//! Blocks one above another, each behind its norm and added to the residual stream.

use crate::blocks::mlp::{DENSE, Mlp};
use crate::blocks::norm::Norm;
use crate::blocks::{Block, Cx, attention, gated_delta, m2rnn, mamba1, mamba2, mamba3, moe};
use crate::mat::Mat;
use crate::params::Shelf;
use crate::real::Real;
use crate::saved::{Save, Saved};
use crate::stats::Of;
use comm::Result;
use diag::{Blame, Finding};
use layout::{Layout, OwnershipTable};
use ledger::shardwright as declared;
use recipe::kinds::mamba::Mamba;
use recipe::{Layer, Mixer, Place, Recipe};

/// One block: mixers side by side behind one norm, added to the residual stream.
pub(crate) struct Residual<R> {
    norm: Norm,
    /// What a mixer's output is multiplied with before it is added.
    factor: f64,
    mixers: Vec<Mixing<R>>,
    /// The layer's path, where this is its last block.
    ends: Option<Box<str>>,
}

/// A mixer, and what it declares to keep.
struct Mixing<R> {
    keep: Keep,
    saves: Vec<Save>,
    /// Names of what is dropped after forward and recomputed before backward.
    dropped: Vec<&'static str>,
    /// Whether the R block below hands its state to it.
    takes_state: bool,
    block: Box<dyn Block<R>>,
    path: Box<str>,
}

impl<R: Real> Mixing<R> {
    fn forward(&self, cx: &mut Cx<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        self.block.forward(cx, Saved::new(self.saves.clone()), x)
    }
}

/// What recompute does with what a mixer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// It stays until backward.
    Kept,
    /// It is dropped, and forward runs again in backward, with its collectives.
    Again,
}

impl Keep {
    /// By the layout's recompute policy. Full recompute works block by block: a layer of several blocks
    /// keeps the input of each.
    fn of(layout: &Layout, mixer: Mixer) -> Keep {
        if layout.recompute.repeats(mixer) { Keep::Again } else { Keep::Kept }
    }
}

/// Blocks in order, each with the place whose weights it opens, if it does so itself.
pub(crate) struct Stack<R> {
    blocks: Vec<(Option<Place>, Residual<R>)>,
}

impl<R> Default for Stack<R> {
    fn default() -> Stack<R> {
        Stack { blocks: Vec::new() }
    }
}

/// What a stack keeps: for each block its input and what its mixers keep.
pub(crate) struct Kept<R> {
    blocks: Vec<(Mat<R>, Mixers<R>)>,
}

type Mixers<R> = Vec<Stays<R>>;

/// What is left of a mixer's forward until backward.
enum Stays<R> {
    /// What it declared.
    Saved(Saved<R>),
    /// Nothing but the state that had come from the R block below, if any; forward will run again.
    Below(Option<Mat<R>>),
}

impl<R: Real> Stays<R> {
    fn bytes(&self) -> u64 {
        match self {
            Stays::Saved(saved) => saved.bytes(),
            Stays::Below(below) => below.iter().map(|b| b.data.capacity() as u64 * R::BYTES).sum(),
        }
    }
}

impl<R: Real> Kept<R> {
    pub fn bytes(&self) -> u64 {
        let one = |(x, saved): &(Mat<R>, Mixers<R>)| {
            x.data.capacity() as u64 * R::BYTES + saved.iter().map(Stays::bytes).sum::<u64>()
        };
        self.blocks.iter().map(one).sum()
    }
}

impl<R: Real> Stack<R> {
    /// Adds blocks on top; with `None` the caller opens their weights.
    pub fn push(&mut self, place: Option<Place>, residuals: Vec<Residual<R>>) {
        self.blocks.extend(residuals.into_iter().map(|r| (place, r)));
    }

    pub fn forward(&self, cx: &mut Cx<R>, mut x: Mat<R>) -> Result<(Mat<R>, Kept<R>)> {
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (place, residual) in &self.blocks {
            place.map_or(Ok(()), |p| cx.open(p))?;
            let normed = residual.norm.forward(cx, &x);
            let mut out = x.clone();
            let mut kept = Vec::with_capacity(residual.mixers.len());
            for mixer in &residual.mixers {
                let below = if mixer.keep == Keep::Again && mixer.takes_state { cx.carried.clone() } else { None };
                let (mut y, mut saved) = mixer.forward(cx, normed.clone())?;
                debug_assert!(saved.is_complete());
                mixer.dropped.iter().for_each(|name| saved.forget(name));
                cx.watch(Of::Activation, &mixer.path, &y);
                y.times(residual.factor);
                out.add(&y);
                kept.push(match mixer.keep {
                    Keep::Kept => Stays::Saved(saved),
                    Keep::Again => Stays::Below(below),
                });
            }
            if let Some(layer) = &residual.ends {
                cx.watch(Of::Activation, layer, &out);
            }
            blocks.push((std::mem::replace(&mut x, out), kept));
            place.iter().for_each(|p| cx.close(*p));
        }
        Ok((x, Kept { blocks }))
    }

    /// Transpose of [`Stack::forward`].
    pub fn backward(&self, cx: &mut Cx<R>, kept: Kept<R>, mut dx: Mat<R>) -> Result<Mat<R>> {
        for ((place, residual), (x, kept)) in self.blocks.iter().zip(kept.blocks).rev() {
            place.map_or(Ok(()), |p| cx.open(p))?;
            if let Some(layer) = &residual.ends {
                cx.watch(Of::ActivationGradient, layer, &dx);
            }
            let mut dnormed = Mat::zeros(dx.rows, dx.cols);
            for (mixer, saved) in residual.mixers.iter().zip(kept) {
                let saved = match saved {
                    Stays::Saved(mut saved) => {
                        let normed = mixer.dropped.contains(&"input").then(|| residual.norm.forward(cx, &x));
                        mixer.block.restore(cx, &mut saved, normed)?;
                        saved
                    }
                    Stays::Below(below) => cx.again(below, |cx| mixer.forward(cx, residual.norm.forward(cx, &x)))?.1,
                };
                let mut dy = dx.clone();
                dy.times(residual.factor);
                dnormed.add(&mixer.block.backward(cx, saved, dy)?);
            }
            dx.add(&residual.norm.backward(cx, &x, &dnormed));
            place.iter().for_each(|p| cx.close(*p));
        }
        Ok(dx)
    }
}

fn refuse(object: &str, what: &str) -> Finding {
    Finding::error("runtime/unsupported", Blame::Engine, object, format!("the runtime has no {what}"))
}

/// The blocks of one layer, under the paths that `recipe.tensors()` gives them. `ordinal` counts
/// attention layers; a prediction suffix has none.
pub(crate) fn residuals<R: Real>(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    shelf: &mut Shelf,
    layer: &Layer,
    prefix: &str,
    mut ordinal: Option<&mut u64>,
) -> std::result::Result<Vec<Residual<R>>, Finding> {
    let mut out: Vec<Residual<R>> = Vec::new();
    for block in declared::mixers(layer, prefix) {
        let norm = Norm::new(shelf, &format!("{}.norm", block[0].1), recipe.hidden as usize);
        let mut mixers = Vec::new();
        for (mixer, path) in block {
            let keep = Keep::of(layout, mixer);
            let saves = declared::of_mixer(recipe, layout, table, mixer, &path);
            let block = new_block(recipe, layout, shelf, mixer, &path, ordinal.as_deref().copied())?;
            let takes_state = declared::Link::of(recipe, &path).takes;
            let dropped = declared::dropped(&layout.recompute, mixer);
            mixers.push(Mixing { keep, saves, dropped, takes_state, block, path: path.into() });
            if let Some(ordinal) = &mut ordinal {
                **ordinal += u64::from(mixer == Mixer::Attention);
            }
        }
        out.push(Residual { norm, factor: recipe.multipliers.residual, mixers, ends: None });
    }
    out.iter_mut().last().into_iter().for_each(|last| last.ends = Some(prefix.into()));
    Ok(out)
}

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
        (Mixer::Moe, Some(kind), ..) => {
            Box::new(moe::Moe::new(kind, shelf, path, recipe.hidden, expert_ordinal(recipe, path)))
        }
        (Mixer::Mamba, _, Some(Mamba::One(kind)), ..) => Box::new(mamba1::Mamba1::new(kind, shelf, path)),
        (Mixer::Mamba, _, Some(Mamba::Two(kind)), ..) => Box::new(mamba2::Mamba2::new(kind, shelf, path, layout)),
        (Mixer::Mamba, _, Some(Mamba::Three(kind)), ..) => Box::new(mamba3::Mamba3::new(kind, shelf, path)?),
        (Mixer::Recurrent, _, _, Some(kind), _) => {
            Box::new(m2rnn::M2rnn::new(kind, shelf, path, declared::Link::of(recipe, path)))
        }
        (Mixer::Mlp, .., Some(kind)) => Box::new(Mlp::new(shelf, path, kind.activation, DENSE)),
        (Mixer::Linear, ..) => return Err(refuse("linear", "linear mixers of other kinds")),
        (Mixer::Shared, ..) => return Err(refuse("shared", "blocks that several layers share")),
        (Mixer::GatedDelta, ..) => match &recipe.gated_delta {
            Some(kind) => Box::new(gated_delta::GatedDelta::new(kind, shelf, path)),
            None => return Err(refuse("gated_delta", "block without a table")),
        },
        (mixer, ..) => return Err(refuse(mixer.table(), "block without a table")),
    })
}

/// How many expert blocks come before the one at `path`, prediction suffixes last: its index in
/// [`Cx::balances`].
fn expert_ordinal(recipe: &Recipe, path: &str) -> usize {
    let mut words = path.split('.');
    let is_suffix = words.next() == Some("mtp");
    let index: usize = words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
    let experts = |layer: &Layer| layer.mixers().filter(|m| *m == Mixer::Moe).count();
    // The second expert block of a layer is called `moe_2`.
    let twin = path.rsplit_once('_').and_then(|(_, n)| n.parse::<usize>().ok()).map_or(0, |n| n - 1);
    let before: usize = if is_suffix {
        let each = recipe.features.mtp().map_or(0, |mtp| experts(&mtp.layer));
        recipe.layers.iter().map(experts).sum::<usize>() + index * each
    } else {
        recipe.layers[..index].iter().map(experts).sum()
    };
    before + twin
}
