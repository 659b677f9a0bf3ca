//! What stands between attention's core and its projections besides positions: norms over all heads
//! together, sinks, and gates.

use super::Cx;
use crate::mat::{Mat, dot};
use crate::params::{Id, Shelf};
use crate::real::Real;
use comm::{Call, Op, Result};

const SUMS: Call = Call::new("tp", "sums of attention's norms");

/// Norms of queries and of keys, each over the heads of all tensor-parallel ranks.
pub(crate) struct WholeNorms([WholeNorm; 2]);

/// A norm over the heads of all ranks together; with a bias it is a LayerNorm.
struct WholeNorm {
    weight: Id,
    bias: Option<Id>,
    /// Columns over all ranks.
    whole: usize,
    /// Ranks that hold each column: KV heads below the degree are copied.
    copies: usize,
    /// Added to the mean square under the root.
    eps: f64,
}

/// Mean and inverse deviation of a row over the heads of all ranks.
#[derive(Clone, Copy)]
struct Known<R> {
    mean: R,
    inverse: R,
}

impl WholeNorm {
    fn new(shelf: &Shelf, path: &str, ranks: usize) -> WholeNorm {
        let weight = shelf.id(&format!("{path}.weight"));
        let param = &shelf.params[weight.0];
        let whole = param.row.tensor.elements() as usize;
        let copies = (param.part.elements() as usize * ranks / whole).max(1);
        WholeNorm { weight, bias: shelf.find(&format!("{path}.bias")), whole, copies, eps: shelf.norm_eps }
    }

    /// Sums a row contributes: of squares, and under LayerNorm of the values too.
    fn per_row(&self) -> usize {
        1 + usize::from(self.bias.is_some())
    }

    fn sums<R: Real>(&self, row: &[R], into: &mut Vec<R>) {
        let share = R::of(1.0 / self.copies as f64);
        into.push(dot(row, row) * share);
        if self.bias.is_some() {
            into.push(row.iter().copied().sum::<R>() * share);
        }
    }

    fn known<R: Real>(&self, sums: &[R]) -> Known<R> {
        let n = R::of(self.whole as f64);
        let mean = sums.get(1).map_or(R::ZERO, |sum| *sum / n);
        Known { mean, inverse: R::ONE / (sums[0] / n - mean * mean + R::of(self.eps)).sqrt() }
    }

    fn forward<R: Real>(&self, cx: &Cx<R>, sums: &[R], row: &mut [R]) {
        let Known { mean, inverse } = self.known(sums);
        row.iter_mut().zip(&cx.weight(self.weight).data).for_each(|(v, w)| *v = (*v - mean) * inverse * *w);
        if let Some(bias) = self.bias {
            row.iter_mut().zip(&cx.weight(bias).data).for_each(|(v, b)| *v += *b);
        }
    }

    /// Adds the gradients of scale and bias, multiplies `d` by the scale, and pushes the row sums that
    /// [`WholeNorm::input_back`] needs.
    fn weigh_back<R: Real>(&self, cx: &mut Cx<R>, sums: &[R], x: &[R], d: &mut [R], into: &mut Vec<R>) {
        let Known { mean, inverse } = self.known(sums);
        if let Some(bias) = self.bias {
            cx.add_grad(bias, d);
        }
        let (mut along, mut level) = (R::ZERO, R::ZERO);
        let (weight, grad) = (&cx.weights[self.weight.0].data, &mut cx.grads[self.weight.0].data);
        for (((d, x), weight), grad) in d.iter_mut().zip(x).zip(weight).zip(grad) {
            let unit = (*x - mean) * inverse;
            *grad += *d * unit;
            *d *= *weight;
            along += *d * unit;
            level += *d;
        }
        into.push(along);
        if self.bias.is_some() {
            into.push(level);
        }
    }

    /// Gradient of the input from the scaled one. Where `copies` ranks hold a column each subtracts its
    /// share of the row's common terms, since their gradients are added later.
    fn input_back<R: Real>(&self, sums: &[R], pulls: &[R], x: &[R], d: &mut [R]) {
        let Known { mean, inverse } = self.known(sums);
        let each = R::of(1.0 / (self.whole * self.copies) as f64);
        let (along, level) = (pulls[0] * each, pulls.get(1).map_or(R::ZERO, |level| *level * each));
        for (d, x) in d.iter_mut().zip(x) {
            *d = (*d - level - (*x - mean) * inverse * along) * inverse;
        }
    }
}

impl WholeNorms {
    /// The norms of the attention at `path`, over `ranks` of the tensor axis.
    pub fn new(shelf: &Shelf, path: &str, ranks: usize) -> WholeNorms {
        WholeNorms(["q_norm", "k_norm"].map(|name| WholeNorm::new(shelf, &format!("{path}.{name}"), ranks)))
    }

    fn per_row(&self) -> usize {
        self.0.iter().map(WholeNorm::per_row).sum()
    }

    /// Row sums over the heads of all ranks, a row a token: all that backward needs besides the inputs.
    pub fn sums<R: Real>(&self, cx: &Cx<R>, [q, k]: [&Mat<R>; 2]) -> Result<Mat<R>> {
        let mut sums = Vec::with_capacity(q.rows * self.per_row());
        for row in 0..q.rows {
            self.0[0].sums(q.row(row), &mut sums);
            self.0[1].sums(k.row(row), &mut sums);
        }
        Ok(Mat::of(self.per_row(), cx.rank.comm.all_reduce(&cx.rank.tp, SUMS, Op::Sum, sums)?))
    }

    /// Norms queries and keys in place.
    pub fn forward<R: Real>(&self, cx: &Cx<R>, sums: &Mat<R>, [q, k]: [&mut Mat<R>; 2]) {
        let at = self.0[0].per_row();
        for row in 0..sums.rows {
            self.0[0].forward(cx, &sums.row(row)[..at], q.row_mut(row));
            self.0[1].forward(cx, &sums.row(row)[at..], k.row_mut(row));
        }
    }

    /// Transpose of [`WholeNorms::forward`] at inputs `x`, in place.
    pub fn backward<R: Real>(&self, cx: &mut Cx<R>, sums: &Mat<R>, x: [&Mat<R>; 2], d: [&mut Mat<R>; 2]) -> Result<()> {
        let at = self.0[0].per_row();
        let halves = |row: usize| [&sums.row(row)[..at], &sums.row(row)[at..]];
        let mut pulls = Vec::with_capacity(sums.data.len());
        let [dq, dk] = d;
        for row in 0..sums.rows {
            let [of_q, of_k] = halves(row);
            self.0[0].weigh_back(cx, of_q, x[0].row(row), dq.row_mut(row), &mut pulls);
            self.0[1].weigh_back(cx, of_k, x[1].row(row), dk.row_mut(row), &mut pulls);
        }
        let pulls = Mat::of(self.per_row(), cx.rank.comm.all_reduce(&cx.rank.tp, SUMS, Op::Sum, pulls)?);
        for row in 0..sums.rows {
            let [of_q, of_k] = halves(row);
            self.0[0].input_back(of_q, &pulls.row(row)[..at], x[0].row(row), dq.row_mut(row));
            self.0[1].input_back(of_k, &pulls.row(row)[at..], x[1].row(row), dk.row_mut(row));
        }
        Ok(())
    }
}

/// A score that every query of a head gives to nothing at all: part of the softmax, without a value
/// (gpt-oss, `model.py`: `sinks`).
#[derive(Clone, Copy)]
pub(crate) struct Sinks(Id);

impl Sinks {
    /// The sinks of the attention at `path`, if it has any.
    pub fn new(shelf: &Shelf, path: &str) -> Option<Sinks> {
        shelf.find(&format!("{path}.sinks")).map(Sinks)
    }

    /// Scales each head's output by what its sink leaves of the softmax, and adds the sink to its
    /// logarithm of sums.
    pub fn forward<R: Real>(&self, cx: &Cx<R>, out: &mut Mat<R>, log: &mut Mat<R>) {
        let sinks = &cx.weight(self.0).data;
        let width = out.cols / sinks.len();
        for (i, (out, log)) in out.data.chunks_exact_mut(width).zip(&mut log.data).enumerate() {
            let sink = sinks[i % sinks.len()];
            let most = if sink > *log { sink } else { *log };
            let whole = most + ((*log - most).exp() + (sink - most).exp()).ln();
            let share = (*log - whole).exp();
            out.iter_mut().for_each(|o| *o *= share);
            *log = whole;
        }
    }

    /// Adds the sinks' gradients: each is a key whose value is zero.
    pub fn backward<R: Real>(&self, cx: &mut Cx<R>, out: &Mat<R>, log: &Mat<R>, dout: &Mat<R>) {
        let width = out.cols / log.cols;
        let heads = log.cols;
        let rows = out.data.chunks_exact(width).zip(dout.data.chunks_exact(width)).zip(&log.data);
        for (i, ((out, dout), log)) in rows.enumerate() {
            let at = i % heads;
            let share = (cx.weights[self.0.0].data[at] - *log).exp();
            cx.grads[self.0.0].data[at] -= share * dot(out, dout);
        }
    }
}

/// Heads' outputs times the sigmoid of a gate (Qwen3-Next's attention).
pub(crate) fn gated<R: Real>(out: &Mat<R>, gate: &Mat<R>) -> Mat<R> {
    Mat::of(out.cols, out.data.iter().zip(&gate.data).map(|(o, g)| *o * g.sigmoid()).collect())
}

/// Transpose of [`gated`]: gradients of the outputs, in place of `d`, and of the gate.
pub(crate) fn gated_back<R: Real>(out: &Mat<R>, gate: &Mat<R>, d: &mut Mat<R>) -> Mat<R> {
    let pairs = d.data.iter_mut().zip(out.data.iter().zip(&gate.data));
    let dgate = pairs.map(|(d, (o, g))| {
        let open = g.sigmoid();
        let dgate = *d * *o * open * (R::ONE - open);
        *d *= open;
        dgate
    });
    Mat::of(out.cols, dgate.collect())
}
