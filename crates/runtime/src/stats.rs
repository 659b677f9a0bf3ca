//! Norms of whole logical tensors of a step, whatever the layout they are held in: sums of squares that each rank
//! makes of what it alone counts, by names that every rank lists alike.

use crate::mat::Mat;
use crate::real::Real;
use layout::OwnershipTable;
use ledger::shardwright as declared;
use recipe::Recipe;
use std::collections::HashMap;
use std::sync::Arc;

/// Which tensor of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    /// What a block hands on; of a layer, the residual stream behind it.
    Activation,
    /// Of the loss by that.
    ActivationGradient,
    /// Of a weight, reduced.
    Gradient,
}

/// A tensor that is watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watched {
    /// Which of its path.
    pub of: Of,
    /// A row of the ownership table; of an activation a block, a layer, or `embedding`.
    pub path: String,
}

/// The stream that enters the first layer.
pub(crate) const EMBEDDING: &str = "embedding";

/// Everything that is watched: activations as forward makes them, their gradients as backward does, weights'
/// gradients in the order of the table.
pub fn watched(recipe: &Recipe, table: &OwnershipTable) -> Vec<Watched> {
    let mut blocks = vec![EMBEDDING.to_string()];
    let mut layers = vec![EMBEDDING.to_string()];
    let depth = recipe.layers.iter().enumerate().map(|(index, layer)| (layer, format!("layers.{index}")));
    let mtp = recipe.features.mtp();
    let suffix = (0..mtp.map_or(0, |mtp| mtp.depth)).filter_map(|d| Some((&mtp?.layer, format!("mtp.{d}"))));
    for (layer, prefix) in depth.chain(suffix) {
        blocks.extend(declared::mixers(layer, &prefix).into_iter().flatten().map(|(_, path)| path));
        blocks.push(prefix.clone());
        layers.push(prefix);
    }
    let named = |of: Of| move |path: String| Watched { of, path };
    let mut all: Vec<Watched> = blocks.into_iter().map(named(Of::Activation)).collect();
    all.extend(layers.into_iter().rev().map(named(Of::ActivationGradient)));
    all.extend(table.rows.iter().map(|row| row.tensor.path.clone()).map(named(Of::Gradient)));
    all
}

/// What one rank counted of a step, by place in [`watched`].
#[derive(Clone, Debug)]
pub struct Stats {
    places: Arc<HashMap<Watched, usize>>,
    squares: Vec<f64>,
    nonfinite: Vec<f64>,
}

impl Stats {
    /// Nothing counted yet of these.
    pub fn new(watched: &[Watched]) -> Stats {
        let places = watched.iter().cloned().enumerate().map(|(at, name)| (name, at)).collect();
        Stats { places: Arc::new(places), squares: vec![0.0; watched.len()], nonfinite: vec![0.0; watched.len()] }
    }

    /// Counts values of a tensor.
    pub(crate) fn add<R: Real>(&mut self, of: Of, path: &str, values: &Mat<R>) {
        let squares = values.data.iter().map(|v| v.f64() * v.f64()).filter(|square| square.is_finite()).sum();
        let nonfinite = values.data.iter().filter(|v| !v.f64().is_finite()).count();
        self.count(of, path, squares, nonfinite);
    }

    pub(crate) fn count(&mut self, of: Of, path: &str, squares: f64, nonfinite: usize) {
        let Some(at) = self.places.get(&Watched { of, path: path.to_string() }) else { return };
        self.squares[*at] += squares;
        self.nonfinite[*at] += nonfinite as f64;
    }

    /// Sums of squares, then counts of what is no number; begins anew.
    pub(crate) fn take(&mut self) -> Vec<f64> {
        let len = self.squares.len();
        let mut out = std::mem::replace(&mut self.squares, vec![0.0; len]);
        out.append(&mut self.nonfinite);
        self.nonfinite = vec![0.0; len];
        out
    }
}

/// A norm of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// Steps before it, in this run.
    pub step: u64,
    /// Of what.
    pub watched: Watched,
    /// Of the elements that are numbers.
    pub norm: f64,
    /// Elements that are no numbers.
    pub nonfinite: u64,
}

/// Norms of all steps, from what every rank counted: a list of [`Stats::take`] after another.
pub(crate) fn norms(watched: &[Watched], ranks: &[&[f64]]) -> Vec<Norm> {
    let each = 2 * watched.len();
    let steps = ranks.first().map_or(0, |counted| counted.len() / each.max(1));
    let sum = |at: usize| ranks.iter().map(|counted| counted[at]).sum::<f64>();
    let of_step = |step: usize| {
        let norm = move |(at, watched): (usize, &Watched)| Norm {
            step: step as u64,
            watched: watched.clone(),
            norm: sum(step * each + at).max(0.0).sqrt(),
            nonfinite: sum(step * each + each / 2 + at) as u64,
        };
        watched.iter().enumerate().map(norm).collect::<Vec<_>>()
    };
    (0..steps).flat_map(of_step).collect()
}
