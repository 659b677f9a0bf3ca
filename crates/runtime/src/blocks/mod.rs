//! Blocks, forward and explicit backward. A block works on a microbatch's tokens of one rank,
//! after the norm and before the residual addition.

pub(crate) mod act;
pub(crate) mod attend;
pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod edges;
pub(crate) mod gated_delta;
pub(crate) mod heads;
pub(crate) mod indexer;
pub(crate) mod m2rnn;
pub(crate) mod mamba1;
pub(crate) mod mamba2;
pub(crate) mod mamba3;
pub(crate) mod mlp;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod rotary;
pub(crate) mod router;
pub(crate) mod scan;
pub(crate) mod side;
pub(crate) mod ssd;

use crate::mat::{Mat, axpy};
use crate::params::{Id, Shelf};
use crate::rank::Rank;
use crate::real::Real;
use crate::saved::{Saved, Sizes};
use crate::shards::Vault;
use crate::split::tensor;
use comm::Result;
use layout::activations::Routed;
use recipe::Place;
use recipe::kinds::moe::Moe;

/// What a block may use while it runs.
pub struct Cx<'a, R> {
    /// Where it runs.
    pub rank: &'a Rank<'a>,
    /// Sizes of a microbatch.
    pub sizes: Sizes,
    /// The rank's weights; those of a place are there while it is open.
    pub weights: &'a mut [Mat<R>],
    /// Where weights come from when they are gathered for use only.
    pub vault: Option<&'a Vault<R>>,
    /// Gradients, added to.
    pub grads: &'a mut [Mat<R>],
    /// Sum of auxiliary losses of this rank's tokens, as they enter the step's loss.
    pub auxiliary: f64,
    /// Routing of every expert layer that balances by a bias, in the order of depth.
    pub balances: &'a mut [Balance],
    /// Recurrent state on its way up the depth, from R block to R block; in backward its gradient on
    /// the way down.
    pub carried: Option<Mat<R>>,
    /// Rows of the expert blocks this pass has run, in order.
    pub routed: Vec<Routed>,
    /// Weight products put off, where backward is split; `None` where they are taken at once.
    pub deferred: Option<Vec<Product<R>>>,
}

/// What balances an expert layer without a gradient: a bias on its scores when experts are chosen,
/// moved after every step towards experts that got too few tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Balance {
    /// Added to scores for the choice, where the recipe has it; the weights of the choice do not see it.
    pub bias: Vec<f64>,
    /// Tokens of this step that chose each expert, here.
    pub counts: Vec<u64>,
    /// Tokens of all steps that chose each expert, on all ranks.
    pub total: Vec<u64>,
    /// What makes its choice wrong on purpose.
    pub tilt: Option<Tilt>,
}

/// A choice of experts made wrong on purpose, by position, so that every layout errs alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tilt {
    /// One expert is among the chosen for this share of positions, and for no other.
    Hot {
        /// Which.
        expert: usize,
        /// Share of positions.
        share: f64,
    },
    /// One expert is never chosen.
    Never {
        /// Which.
        expert: usize,
    },
}

impl Tilt {
    /// Lifts or sinks an expert's score of the token at a position.
    fn apply<R: Real>(&self, position: usize, scores: &mut [R]) {
        let beyond = R::of(1e6);
        match *self {
            Tilt::Never { expert } => scores[expert] -= beyond,
            // Positions are spread evenly: those at which the running share passes a whole number.
            Tilt::Hot { expert, share } => {
                let passed = |position: usize| (position as f64 * share).floor();
                let is_hot = passed(position + 1) > passed(position);
                scores[expert] += if is_hot { beyond } else { -beyond };
            }
        }
    }
}

/// How far a bias moves in a step: DeepSeek-V3's report, section 4.2.
const BIAS_STEP: f64 = 1e-3;

impl Balance {
    /// Of a bank of experts; without `expert_bias` there is nothing to move.
    pub fn new(moe: &Moe) -> Balance {
        let experts = moe.experts as usize;
        let biased = if moe.router.expert_bias { experts } else { 0 };
        Balance { bias: vec![0.0; biased], counts: vec![0; experts], total: vec![0; experts], tilt: None }
    }

    /// Moves the bias by the counts of all ranks, and starts counting anew.
    pub(crate) fn update(&mut self, counts: &[u64]) {
        let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        for (bias, count) in self.bias.iter_mut().zip(counts) {
            let short = mean - *count as f64;
            *bias += BIAS_STEP * if short == 0.0 { 0.0 } else { short.signum() };
        }
        self.total.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
        self.counts.fill(0);
    }
}

/// A linear layer's weight gradient that waits: output's gradient and input.
pub struct Product<R> {
    weight: Id,
    dy: Mat<R>,
    x: Mat<R>,
}

impl<R: Real> Product<R> {
    /// Adds it to the gradients.
    pub(crate) fn add(&self, grads: &mut [Mat<R>]) {
        self.dy.linear_weight(&self.x, &mut grads[self.weight.0]);
    }
}

impl<R: Real> Cx<'_, R> {
    /// Runs a forward a second time, on the state that had come to it from below: what it counts
    /// was counted the first time, and what it hands up was handed up.
    pub(crate) fn again<T>(
        &mut self,
        below: Option<Mat<R>>,
        forward: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let (auxiliary, counts, routed) = (self.auxiliary, self.balances.to_vec(), self.routed.len());
        let gradient = std::mem::replace(&mut self.carried, below);
        let out = forward(self);
        self.carried = gradient;
        self.auxiliary = auxiliary;
        self.routed.truncate(routed);
        self.balances.clone_from_slice(&counts);
        out
    }

    /// Makes the weights of a place whole before its use.
    pub(crate) fn open(&mut self, place: Place) -> Result<()> {
        self.vault.map_or(Ok(()), |vault| vault.open(self.rank, place, self.weights))
    }

    /// Drops them again.
    pub(crate) fn close(&mut self, place: Place) {
        if let Some(vault) = self.vault {
            vault.close(place, self.weights);
        }
    }

    pub(crate) fn weight(&self, id: Id) -> &Mat<R> {
        &self.weights[id.0]
    }

    /// Adds to a gradient, element by element.
    pub(crate) fn add_grad(&mut self, id: Id, from: &[R]) {
        axpy(&mut self.grad(id).data, R::ONE, from);
    }

    pub(crate) fn grad(&mut self, id: Id) -> &mut Mat<R> {
        &mut self.grads[id.0]
    }
}

/// A mixer or feed-forward block.
pub trait Block<R: Real>: Send + Sync {
    /// The output for normed input `x`, and what was kept: exactly what `saved` was declared for.
    fn forward(&self, cx: &mut Cx<R>, saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)>;
    /// Makes again what was dropped of what forward kept. `normed` is there where norms are computed
    /// again, whose outputs blocks keep as their input.
    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()>;
    /// The input's gradient; gradients of weights are added to the context's.
    fn backward(&self, cx: &mut Cx<R>, saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>>;
}

/// Keeps again what a column-parallel projection reads, where norms are computed again.
pub(crate) fn restore_input<R: Real>(
    cx: &Cx<R>,
    saved: &mut Saved<R>,
    into: &'static str,
    normed: Option<Mat<R>>,
) -> Result<()> {
    if let Some(x) = normed {
        saved.keep("input", tensor::enter(cx.rank, into, x)?);
    }
    Ok(())
}

/// A linear layer's weight and bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    weight: Id,
    bias: Option<Id>,
}

impl Linear {
    pub fn new(shelf: &Shelf, path: &str) -> Linear {
        Linear { weight: shelf.id(&format!("{path}.weight")), bias: shelf.find(&format!("{path}.bias")) }
    }

    pub fn of(weight: Id) -> Linear {
        Linear { weight, bias: None }
    }

    pub fn weight(&self) -> Id {
        self.weight
    }

    /// With its bias: for columns, and for projections nobody cuts.
    pub fn forward<R: Real>(&self, cx: &Cx<R>, x: &Mat<R>) -> Mat<R> {
        let mut y = x.linear(cx.weight(self.weight));
        self.add_bias(cx, &mut y);
        y
    }

    /// Without its bias: for rows, whose bias is added once behind the sum.
    pub fn partial<R: Real>(&self, cx: &Cx<R>, x: &Mat<R>) -> Mat<R> {
        x.linear(cx.weight(self.weight))
    }

    pub fn add_bias<R: Real>(&self, cx: &Cx<R>, y: &mut Mat<R>) {
        if let Some(bias) = self.bias {
            y.add_row(&cx.weight(bias).data);
        }
    }

    pub fn bias_back<R: Real>(&self, cx: &mut Cx<R>, dy: &Mat<R>) {
        if let Some(bias) = self.bias {
            dy.sum_rows(&mut cx.grad(bias).data);
        }
    }

    /// Transpose of [`Linear::forward`].
    pub fn backward<R: Real>(&self, cx: &mut Cx<R>, x: &Mat<R>, dy: &Mat<R>) -> Mat<R> {
        self.bias_back(cx, dy);
        self.partial_back(cx, x, dy)
    }

    /// Transpose of [`Linear::partial`].
    pub fn partial_back<R: Real>(&self, cx: &mut Cx<R>, x: &Mat<R>, dy: &Mat<R>) -> Mat<R> {
        self.weight_back(cx, x, dy);
        dy.linear_input(cx.weight(self.weight))
    }

    /// The weight's gradient alone: all there is where the input is a constant.
    pub fn weight_back<R: Real>(&self, cx: &mut Cx<R>, x: &Mat<R>, dy: &Mat<R>) {
        match &mut cx.deferred {
            Some(waiting) => waiting.push(Product { weight: self.weight, dy: dy.clone(), x: x.clone() }),
            None => dy.linear_weight(x, cx.grad(self.weight)),
        }
    }
}
