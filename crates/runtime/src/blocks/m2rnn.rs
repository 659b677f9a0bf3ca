//! M2RNN: a matrix state with a non-linear step. Over the context axis the state and the
//! convolution's tail are handed from part to part; over the tensor axis heads are cut, and the
//! norm over all heads sums its squares. Where state runs up the depth, the states at the borders of
//! chunks are handed to the next R block through the context.
//!
//! Step: open-lm-engine/accelerated-model-architectures, `xma/layers/m2rnn`; the block around it:
//! DatasunriseOU/cppmega, `cppmega/megatron/m2rnn_spec.py`.

use super::act::silu;
use super::conv::Conv;
use super::mamba2::gate_back;
use super::norm::inverse_rms;
use super::scan::{ByToken, Scan, Times, Token};
use super::{Block, Cx, Linear, restore_input};
use crate::mat::{Mat, axpy, dot};
use crate::params::{Id, Shelf};
use crate::product::{View, Write, multiply};
use crate::real::Real;
use crate::saved::Saved;
use crate::split::{tensor, time};
use crate::wide::{map2, wide};
use comm::{Call, Op, Result};
use ledger::shardwright::{Link, m2rnn_chunk};
use recipe::kinds::m2rnn::M2rnn as Kind;

const NAMES: [&str; 2] = ["into recurrent", "out of recurrent"];
const SQUARES: Call = Call::new("tp", "squares of the recurrent norm");

/// Widths below which a matrix product costs more to call than to compute by hand.
const SMALL: usize = 16;

pub(crate) struct M2rnn {
    in_proj: Linear,
    out_proj: Linear,
    conv: Id,
    conv_bias: Option<Id>,
    a_log: Id,
    dt_bias: Id,
    square: Id,
    d: Id,
    norm: Id,
    /// Local widths of q k v f g.
    widths: Vec<usize>,
    key: usize,
    value: usize,
    taps: usize,
    /// Columns the norm runs over, on all ranks together.
    whole: usize,
    /// Added to the mean square of the gated norm.
    eps: f64,
    /// What an element of a state's gradient is clipped to; infinite where nothing is clipped.
    clip: f64,
    scan: Scan,
    link: Link,
}

impl M2rnn {
    pub fn new(kind: &Kind, shelf: &Shelf, path: &str, link: Link) -> M2rnn {
        let at = |name: &str| format!("{path}.{name}");
        let in_proj = Linear::new(shelf, &at("in_proj"));
        M2rnn {
            widths: shelf.segments(in_proj.weight()),
            in_proj,
            out_proj: Linear::new(shelf, &at("out_proj")),
            conv: shelf.id(&at("conv.weight")),
            conv_bias: shelf.find(&at("conv.bias")),
            a_log: shelf.id(&at("A_log")),
            dt_bias: shelf.id(&at("dt_bias")),
            square: shelf.id(&at("state_weight")),
            d: shelf.id(&at("D")),
            norm: shelf.id(&at("gate_norm.weight")),
            key: kind.key_dim as usize,
            value: kind.value_dim as usize,
            taps: kind.conv as usize,
            whole: (kind.heads * kind.value_dim) as usize,
            eps: shelf.norm_eps,
            clip: if kind.gradient_clip > 0.0 { kind.gradient_clip } else { f64::INFINITY },
            scan: Scan { chunk: m2rnn_chunk(kind), times: Times::Parts },
            link,
        }
    }

    fn conv_width(&self) -> usize {
        self.widths[..3].iter().sum()
    }

    /// Splits a projection into [q k v], f and g.
    fn three<R: Real>(&self, projected: &Mat<R>) -> [Mat<R>; 3] {
        let parts = projected.split(&[self.conv_width(), self.widths[3], self.widths[4]]);
        parts.try_into().unwrap_or_else(|_| unreachable!("split into three"))
    }

    fn conv<R: Real>(&self, cx: &Cx<R>) -> Conv<R> {
        let bias = self.conv_bias.map(|b| cx.weight(b).data.clone());
        Conv::new(&cx.weight(self.conv).data, self.taps, bias, cx.sizes.sequences, cx.sizes.spans().len())
    }

    fn cell<R: Real>(&self, cx: &Cx<R>, qkv: Mat<R>, f: &Mat<R>) -> Matrix<R> {
        let heads = f.cols;
        let rate: Vec<R> = cx.weight(self.a_log).data.iter().map(|a| a.exp()).collect();
        let mut raw = f.clone();
        raw.add_row(&cx.weight(self.dt_bias).data);
        let mut forget = raw.clone();
        for row in forget.data.chunks_exact_mut(heads) {
            row.iter_mut().zip(&rate).for_each(|(f, a)| *f = (-*a * f.softplus()).exp());
        }
        Matrix {
            key: self.key,
            value: self.value,
            widths: [self.widths[0], self.widths[1]],
            shared: heads / (self.widths[0] / self.key),
            dqkv: Mat::zeros(qkv.rows, qkv.cols),
            dforget: Mat::zeros(f.rows, heads),
            square: cx.weight(self.square).clone(),
            dsquare: Mat::zeros(heads * self.value, self.value),
            skip: cx.weight(self.d).clone(),
            clip: R::of(self.clip),
            dskip: Mat::zeros(heads, self.value),
            qkv,
            forget,
            raw,
            rate,
        }
    }

    /// One over each token's root mean square over the heads of all ranks.
    fn inverse<R: Real>(&self, cx: &Cx<R>, gated: &Mat<R>) -> Result<Mat<R>> {
        let squares: Vec<R> = gated.data.chunks_exact(gated.cols).map(|row| dot(row, row)).collect();
        let squares = cx.rank.comm.all_reduce(&cx.rank.tp, SQUARES, Op::Sum, squares)?;
        Ok(Mat::of(1, squares.into_iter().map(|s| inverse_rms(s, self.whole, self.eps)).collect()))
    }

    fn normed<R: Real>(&self, cx: &Cx<R>, gated: &Mat<R>, inverse: &Mat<R>) -> Mat<R> {
        let mut out = gated.clone();
        let scale = &cx.weight(self.norm).data;
        for (row, inverse) in out.data.chunks_exact_mut(gated.cols).zip(&inverse.data) {
            row.iter_mut().zip(scale).for_each(|(v, w)| *v = *v * *inverse * *w);
        }
        out
    }

    fn norm_back<R: Real>(&self, cx: &mut Cx<R>, gated: &Mat<R>, inverse: &Mat<R>, mut d: Mat<R>) -> Result<Mat<R>> {
        let scale = cx.weight(self.norm).data.clone();
        let mut dscale = vec![R::ZERO; scale.len()];
        let mut along = Vec::with_capacity(d.rows);
        for (i, row) in d.data.chunks_exact_mut(gated.cols).enumerate() {
            let (x, inverse) = (gated.row(i), inverse.data[i]);
            dscale.iter_mut().zip(row.iter().zip(x)).for_each(|(s, (d, x))| *s += *d * *x * inverse);
            row.iter_mut().zip(&scale).for_each(|(d, w)| *d *= *w);
            along.push(dot(row, x));
        }
        let along = cx.rank.comm.all_reduce(&cx.rank.tp, SQUARES, Op::Sum, along)?;
        let width = R::of(self.whole as f64);
        for (i, row) in d.data.chunks_exact_mut(gated.cols).enumerate() {
            let inverse = inverse.data[i];
            let pull = along[i] * inverse * inverse / width;
            row.iter_mut().zip(gated.row(i)).for_each(|(d, x)| *d = (*d - *x * pull) * inverse);
        }
        cx.add_grad(self.norm, &dscale);
        Ok(d)
    }

    fn gated<R: Real>(&self, y: &Mat<R>, g: &Mat<R>) -> Mat<R> {
        Mat { data: map2(&y.data, &g.data, |y, g| y * silu(g).0), ..*y }
    }

    /// Adds the gradients of the scalars of every head; gives the gradient of the raw forget gates.
    fn scalars_back<R: Real>(&self, cx: &mut Cx<R>, cell: &Matrix<R>) -> Mat<R> {
        let heads = cell.rate.len();
        let mut df = cell.dforget.clone();
        let mut dlog = vec![R::ZERO; heads];
        for (row, (forget, raw)) in df
            .data
            .chunks_exact_mut(heads)
            .zip(cell.forget.data.chunks_exact(heads).zip(cell.raw.data.chunks_exact(heads)))
        {
            for h in 0..heads {
                // forget = exp(−rate · softplus(raw)), and rate is the exponential of its parameter.
                let d = -row[h] * forget[h] * cell.rate[h];
                dlog[h] += d * raw[h].softplus();
                row[h] = d * raw[h].sigmoid();
            }
        }
        df.sum_rows(&mut cx.grad(self.dt_bias).data);
        cx.add_grad(self.a_log, &dlog);
        cx.add_grad(self.square, &cell.dsquare.data);
        cx.add_grad(self.d, &cell.dskip.data);
        df
    }
}

impl<R: Real> Block<R> for M2rnn {
    fn forward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        let x = tensor::enter(cx.rank, NAMES[0], x)?;
        let projected = self.in_proj.forward(cx, &x);
        let [qkv, f, g] = self.three(&projected);
        let tails = time::tails(cx.rank, &qkv, cx.sizes.sequences, self.taps - 1)?;
        let cell = self.cell(cx, self.conv(cx).forward(&qkv, &tails), &f);
        let below = if self.link.takes { cx.carried.take() } else { None };
        let (scanned, states) = self.scan.forward_with(cx, &ByToken(cell), below.as_ref())?;
        drop(below);
        if self.link.gives {
            cx.carried = Some(states.clone());
        }
        let gated = self.gated(&scanned, &g);
        let inverse = self.inverse(cx, &gated)?;
        let normed = self.normed(cx, &gated, &inverse);
        let y = tensor::leave(cx.rank, NAMES[1], self.out_proj.partial(cx, &normed))?;
        let kept = [("input", x), ("projected", projected), ("tails", tails), ("states", states)];
        kept.into_iter().for_each(|(name, value)| saved.keep(name, value));
        saved.keep("scanned", scanned);
        saved.keep("inverse", inverse);
        Ok((y, saved))
    }

    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()> {
        restore_input(cx, saved, NAMES[0], normed)
    }

    fn backward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        let dy = tensor::leave_back(cx.rank, NAMES[1], dy)?;
        let [qkv, f, g] = self.three(&saved.take("projected"));
        let (scanned, inverse) = (saved.take("scanned"), saved.take("inverse"));
        let gated = self.gated(&scanned, &g);
        let dnormed = self.out_proj.partial_back(cx, &self.normed(cx, &gated, &inverse), &dy);
        let dgated = self.norm_back(cx, &gated, &inverse, dnormed)?;
        let (dscanned, dg) = gate_back(&scanned, &g, &dgated);
        let (conv, tails) = (self.conv(cx), saved.take("tails"));
        let mut cell = ByToken(self.cell(cx, conv.forward(&qkv, &tails), &f));
        let states = saved.take("states");
        let dabove = if self.link.gives { cx.carried.take() } else { None };
        let mut dbelow = self.link.takes.then(|| Mat::zeros(states.rows, states.cols));
        self.scan.backward_with(cx, &mut cell, &states, &dscanned, dabove.as_ref(), dbelow.as_mut())?;
        drop((states, dabove));
        if self.link.takes {
            cx.carried = dbelow;
        }
        let cell = cell.0;
        let df = self.scalars_back(cx, &cell);
        let mut back = conv.backward(&qkv, &tails, &cell.dqkv);
        time::tails_back(cx.rank, &back.tails, &mut back.input)?;
        cx.add_grad(self.conv, &back.weight);
        if let Some(bias) = self.conv_bias {
            cx.add_grad(bias, &back.bias);
        }
        let dprojected = Mat::join(&[&back.input, &df, &dg]);
        let dx = self.in_proj.backward(cx, &saved.take("input"), &dprojected);
        tensor::enter_back(cx.rank, NAMES[0], dx)
    }
}

/// `h ← f h + (1 − f) tanh(h W + k⊗v)`, `y = q h + D v`.
struct Matrix<R> {
    key: usize,
    value: usize,
    /// Widths of q and of k.
    widths: [usize; 2],
    /// Heads that read one q and k.
    shared: usize,
    qkv: Mat<R>,
    forget: Mat<R>,
    raw: Mat<R>,
    rate: Vec<R>,
    square: Mat<R>,
    skip: Mat<R>,
    clip: R,
    dqkv: Mat<R>,
    dforget: Mat<R>,
    dsquare: Mat<R>,
    dskip: Mat<R>,
}

impl<R: Real> Matrix<R> {
    /// Columns of a head's q, k and v.
    fn places(&self, head: usize) -> [std::ops::Range<usize>; 3] {
        let q = head / self.shared * self.key;
        let k = self.widths[0] + q;
        let v = self.widths[0] + self.widths[1] + head * self.value;
        [q..q + self.key, k..k + self.key, v..v + self.value]
    }

    fn weight(&self, head: usize) -> View<'_, R> {
        let size = self.value * self.value;
        View::new(&self.square.data[head * size..(head + 1) * size], self.value, self.value, self.value)
    }

    /// Adds `h W`.
    fn through(&self, out: &mut [R], state: &[R], head: usize) {
        let width = self.value;
        if width >= SMALL {
            return multiply(
                out,
                width,
                Write::Add,
                R::ONE,
                View::new(state, self.key, width, width),
                self.weight(head),
            );
        }
        let weight = self.weight(head);
        for (out, h) in out.chunks_exact_mut(width).zip(state.chunks_exact(width)) {
            h.iter().zip(weight.lines()).for_each(|(h, w)| axpy(out, *h, w));
        }
    }

    /// Transpose of [`Matrix::through`]: adds to the weight's gradient and to the state's.
    fn through_back(&mut self, du: &[R], before: &[R], dstate: &mut [R], head: usize) {
        let (width, size) = (self.value, self.value * self.value);
        let dsquare = &mut self.dsquare.data[head * size..(head + 1) * size];
        let weight = View::new(&self.square.data[head * size..(head + 1) * size], width, width, width);
        if width >= SMALL {
            let du = View::new(du, self.key, width, width);
            multiply(dsquare, width, Write::Add, R::ONE, View::new(before, self.key, width, width).t(), du);
            return multiply(dstate, width, Write::Add, R::ONE, du, weight.t());
        }
        for (i, du) in du.chunks_exact(width).enumerate() {
            let row = i * width..(i + 1) * width;
            let given = dsquare.chunks_exact_mut(width).zip(&before[row.clone()]);
            given.for_each(|(to, h)| axpy(to, *h, du));
            dstate[row].iter_mut().zip(weight.lines()).for_each(|(d, w)| *d += dot(du, w));
        }
    }

    /// `tanh(h W + k⊗v)`.
    fn candidate(&self, row: usize, head: usize, state: &[R]) -> Vec<R> {
        let [_, k, v] = self.places(head).map(|r| &self.qkv.row(row)[r]);
        let mut out: Vec<R> = k.iter().flat_map(|k| v.iter().map(move |v| *k * *v)).collect();
        self.through(&mut out, state, head);
        wide(|| out.iter_mut().for_each(|x| *x = x.tanh()));
        out
    }
}

impl<R: Real> Token<R> for Matrix<R> {
    fn heads(&self) -> usize {
        self.forget.cols
    }

    fn state(&self) -> usize {
        self.key * self.value
    }

    fn width(&self) -> usize {
        self.value
    }

    fn step(&self, row: usize, head: usize, state: &mut [R], out: &mut [R]) {
        let f = self.forget.row(row)[head];
        let new = self.candidate(row, head, state);
        state.iter_mut().zip(&new).for_each(|(h, n)| *h = f * *h + (R::ONE - f) * *n);
        let [q, _, v] = self.places(head).map(|r| &self.qkv.row(row)[r]);
        out.iter_mut().zip(v.iter().zip(self.skip.row(head))).for_each(|(o, (v, d))| *o = *v * *d);
        state.chunks_exact(self.value).zip(q).for_each(|(h, q)| axpy(out, *q, h));
    }

    fn back(&mut self, row: usize, head: usize, [before, after]: [&[R]; 2], dout: &[R], dstate: &mut [R]) {
        let (f, width) = (self.forget.row(row)[head], self.value);
        let [qs, ks, vs] = self.places(head);
        let new = self.candidate(row, head, before);
        let inputs = self.qkv.row(row);
        let (q, k, v) = (&inputs[qs.clone()], &inputs[ks.clone()], &inputs[vs.clone()]);
        let grads = self.dqkv.row_mut(row);
        let mut dforget = R::ZERO;
        let mut du = vec![R::ZERO; new.len()];
        for i in 0..self.key {
            let range = i * width..(i + 1) * width;
            let dh = &mut dstate[range.clone()];
            grads[qs.start + i] += dot(&after[range.clone()], dout);
            axpy(dh, q[i], dout);
            dh.iter_mut().for_each(|d| *d = d.within(self.clip));
            let (h, n) = (&before[range.clone()], &new[range.clone()]);
            dforget += dot(dh, h) - dot(dh, n);
            let du = &mut du[range];
            du.iter_mut().zip(dh.iter().zip(n)).for_each(|(u, (d, n))| *u = (R::ONE - f) * *d * (R::ONE - *n * *n));
            grads[ks.start + i] += dot(du, v);
            axpy(&mut grads[vs.clone()], k[i], du);
            dh.iter_mut().for_each(|d| *d *= f);
        }
        let dv = &mut grads[vs.clone()];
        dv.iter_mut().zip(dout.iter().zip(self.skip.row(head))).for_each(|(g, (o, d))| *g += *o * *d);
        self.dskip.row_mut(head).iter_mut().zip(dout.iter().zip(v)).for_each(|(g, (o, v))| *g += *o * *v);
        self.dforget.row_mut(row)[head] += dforget;
        self.through_back(&du, before, dstate, head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One head of one key and one value, whose weight is nothing: a step back of a state's gradient.
    fn gradient_before(clip: f64) -> (f64, f64) {
        let of = |values: &[f64]| Mat::of(values.len(), values.to_vec());
        let mut cell = Matrix {
            key: 1,
            value: 1,
            widths: [1, 1],
            shared: 1,
            qkv: of(&[2.0, 1.0, 0.0]),
            forget: of(&[0.25]),
            raw: of(&[0.0]),
            rate: vec![1.0],
            square: of(&[0.0]),
            skip: of(&[0.0]),
            clip,
            dqkv: Mat::zeros(1, 3),
            dforget: Mat::zeros(1, 1),
            dsquare: Mat::zeros(1, 1),
            dskip: Mat::zeros(1, 1),
        };
        let mut dstate = [10.0];
        cell.back(0, 0, [&[0.0], &[0.0]], &[3.0], &mut dstate);
        (dstate[0], cell.dqkv.data[2])
    }

    #[test]
    fn a_states_gradient_is_clipped_before_it_goes_on() {
        // 10 came from behind, and 3 · 2 from what is read.
        assert_eq!(gradient_before(f64::INFINITY), (0.25 * 16.0, 0.75 * 16.0));
        assert_eq!(gradient_before(1.5), (0.25 * 1.5, 0.75 * 1.5));
    }
}
