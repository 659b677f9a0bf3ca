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
use crate::stats::{Of, Stats};
use comm::Result;
use layout::Axis;
use layout::activations::Routed;
use recipe::Place;
use recipe::kinds::moe::Moe;

/// What a block may use while it runs.
pub struct Cx<'a, R> {
    pub rank: &'a Rank<'a>,
    pub sizes: Sizes,
    /// Weights of this rank by [`Id`]. Under ZeRO 3 those of a place are empty unless it is open.
    pub weights: &'a mut [Mat<R>],
    /// Where weights are gathered from, under ZeRO 3.
    pub vault: Option<&'a Vault<R>>,
    /// Gradients by [`Id`], which blocks add to.
    pub grads: &'a mut [Mat<R>],
    /// Auxiliary losses of this rank's tokens so far, each scaled as it enters the step's loss.
    pub auxiliary: f64,
    /// One for each expert layer of the model, in the order of depth.
    pub balances: &'a mut [Balance],
    /// State on its way from one R block to the next one up the depth; in backward, its gradient on the
    /// way down.
    pub carried: Option<Mat<R>>,
    /// Rows that each expert block of this pass sent and received, in order.
    pub routed: Vec<Routed>,
    /// Weight gradients put off until [`Pass::BackwardWeight`](layout::order::Pass); `None` where they
    /// are computed at once.
    pub deferred: Option<Vec<Product<R>>>,
    /// Where norms are counted, if somebody asked for them.
    pub stats: Option<&'a mut Stats>,
}

impl<R: Real> Cx<'_, R> {
    /// Counts the tokens of an activation that this rank counts: without SP, tensor neighbours have the same.
    pub(crate) fn watch(&mut self, of: Of, path: &str, values: &Mat<R>) {
        if let Some(stats) = &mut self.stats
            && (self.rank.layout.sp || self.rank.on(Axis::Tp) == 0)
        {
            stats.add(of, path, values);
        }
    }
}

/// Balancing of an expert layer without a gradient: a bias on the scores by which experts are chosen,
/// moved after every step towards experts that got too few tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Balance {
    /// Added to the scores for the choice only, not for the weights of the chosen. Empty unless the
    /// recipe has `expert_bias`.
    pub bias: Vec<f64>,
    /// Tokens of this step, on this rank, that chose each expert.
    pub counts: Vec<u64>,
    /// Tokens of all steps that chose each expert, on all ranks.
    pub total: Vec<u64>,
    /// A fault to inject into the choice.
    pub tilt: Option<Tilt>,
}

/// A choice of experts made wrong on purpose. It follows from positions, so that every layout makes the
/// same mistakes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tilt {
    /// One expert is among the chosen at this share of positions, and at no other.
    Hot { expert: usize, share: f64 },
    /// One expert is never chosen.
    Never { expert: usize },
}

impl Tilt {
    /// Raises or lowers an expert's score for the token at a position.
    fn apply<R: Real>(&self, position: usize, scores: &mut [R]) {
        let beyond = R::of(1e6);
        match *self {
            Tilt::Never { expert } => scores[expert] -= beyond,
            // Positions are spread evenly: the expert is hot where the running share passes a whole
            // number.
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
    /// For a bank of experts.
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

/// A weight gradient that is put off: gradient of the output, and the input.
pub struct Product<R> {
    weight: Id,
    dy: Mat<R>,
    x: Mat<R>,
}

impl<R: Real> Product<R> {
    pub(crate) fn add(&self, grads: &mut [Mat<R>]) {
        self.dy.linear_weight(&self.x, &mut grads[self.weight.0]);
    }
}

impl<R: Real> Cx<'_, R> {
    /// Runs a forward a second time, on the state that had come to it from the R block below. What it
    /// would count or hand up again is undone, since the first run did.
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

    /// Gathers the weights of a place before its use, under ZeRO 3; otherwise they are there.
    pub(crate) fn open(&mut self, place: Place) -> Result<()> {
        self.vault.map_or(Ok(()), |vault| vault.open(self.rank, place, self.weights))
    }

    /// Drops gathered weights after their use.
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

/// A mixer or feed-forward block: what stands between the norm and the residual addition.
pub trait Block<R: Real>: Send + Sync {
    /// The output for normed input `x`, and everything declared for `saved`, kept.
    fn forward(&self, cx: &mut Cx<R>, saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)>;
    /// Computes and keeps again what was dropped after forward. `normed` is the block's input where
    /// norms are recomputed.
    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()>;
    /// The gradient of the input; adds the gradients of weights to the context's.
    fn backward(&self, cx: &mut Cx<R>, saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>>;
}

/// Keeps the gathered input of a column-parallel projection again, where norms are recomputed.
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

/// The weight and bias of a linear layer.
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

    /// Output with bias: for column-parallel projections and those that no axis cuts.
    pub fn forward<R: Real>(&self, cx: &Cx<R>, x: &Mat<R>) -> Mat<R> {
        let mut y = x.linear(cx.weight(self.weight));
        self.add_bias(cx, &mut y);
        y
    }

    /// Output without bias: for row-parallel projections, whose bias is added once after the sum over
    /// ranks.
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

    /// Adds the weight's gradient only, where the input is a constant.
    pub fn weight_back<R: Real>(&self, cx: &mut Cx<R>, x: &Mat<R>, dy: &Mat<R>) {
        match &mut cx.deferred {
            Some(waiting) => waiting.push(Product { weight: self.weight, dy: dy.clone(), x: x.clone() }),
            None => dy.linear_weight(x, cx.grad(self.weight)),
        }
    }
}
