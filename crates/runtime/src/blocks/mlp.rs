//! A dense feed-forward block: columns of the first projection and rows of the second are cut over
//! the tensor axis.

use super::{Block, Cx, Linear, act};
use crate::mat::Mat;
use crate::params::Shelf;
use crate::real::Real;
use crate::saved::Saved;
use crate::split::tensor;
use comm::Result;
use recipe::kinds::Activation;

pub(crate) struct Mlp {
    fc1: Linear,
    fc2: Linear,
    activation: Activation,
    words: Words,
}

/// Names of a feed-forward block's exchanges and of what it keeps, which differ between dense and shared
/// ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub into: &'static str,
    pub out: &'static str,
    pub input: &'static str,
    pub packed: &'static str,
}

pub(crate) const DENSE: Words = Words { into: "into mlp", out: "out of mlp", input: "input", packed: "packed" };

impl Mlp {
    pub fn new(shelf: &Shelf, path: &str, activation: Activation, words: Words) -> Mlp {
        let (fc1, fc2) = (Linear::new(shelf, &format!("{path}.fc1")), Linear::new(shelf, &format!("{path}.fc2")));
        Mlp { fc1, fc2, activation, words }
    }

    pub fn run<R: Real>(&self, cx: &mut Cx<R>, x: Mat<R>, saved: &mut Saved<R>) -> Result<Mat<R>> {
        let x = tensor::enter(cx.rank, self.words.into, x)?;
        let packed = self.fc1.forward(cx, &x);
        let partial = self.fc2.partial(cx, &act::forward(self.activation, &packed));
        let mut y = tensor::leave(cx.rank, self.words.out, partial)?;
        self.fc2.add_bias(cx, &mut y);
        saved.keep(self.words.input, x);
        saved.keep(self.words.packed, packed);
        Ok(y)
    }

    /// Keeps the input once more, after recompute of the norm.
    pub fn restore_input<R: Real>(&self, cx: &Cx<R>, x: Mat<R>, saved: &mut Saved<R>) -> Result<()> {
        saved.keep(self.words.input, tensor::enter(cx.rank, self.words.into, x)?);
        Ok(())
    }

    /// Computes and keeps again all that [`Mlp::run`] kept, without the output.
    pub fn restore_all<R: Real>(&self, cx: &Cx<R>, x: Mat<R>, saved: &mut Saved<R>) -> Result<()> {
        self.restore_input(cx, x, saved)?;
        saved.keep(self.words.packed, self.fc1.forward(cx, saved.get(self.words.input)));
        Ok(())
    }

    /// Transpose of [`Mlp::run`].
    pub fn back<R: Real>(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        self.fc2.bias_back(cx, &dy);
        let dy = tensor::leave_back(cx.rank, self.words.out, dy)?;
        let packed = saved.take(self.words.packed);
        let inner = act::forward(self.activation, &packed);
        let dinner = self.fc2.partial_back(cx, &inner, &dy);
        let dpacked = act::backward(self.activation, &packed, &dinner);
        let dx = self.fc1.backward(cx, &saved.take(self.words.input), &dpacked);
        tensor::enter_back(cx.rank, self.words.into, dx)
    }
}

impl<R: Real> Block<R> for Mlp {
    fn forward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        let y = self.run(cx, x, &mut saved)?;
        Ok((y, saved))
    }

    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()> {
        normed.map_or(Ok(()), |x| self.restore_input(cx, x, saved))
    }

    fn backward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        self.back(cx, &mut saved, dy)
    }
}
