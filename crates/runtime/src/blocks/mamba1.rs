//! Mamba-1: a selective scan with one small state a channel. Channels are cut over the tensor axis;
//! step size, B and C come from all of them, so that their projection is summed over it, and so are
//! their gradients. A cut in time is refused by legality.
//!
//! Step and block: state-spaces/mamba, `mamba_ssm/modules/mamba_simple.py`; the norms of step size, B
//! and C are Jamba's (`transformers`, `models/jamba/modeling_jamba.py`).

use super::act::silu;
use super::conv::Conv;
use super::mamba2::gate_back;
use super::norm::Norm;
use super::scan::{ByToken, Scan, Times, Token};
use super::{Block, Cx, Linear, restore_input};
use crate::mat::Mat;
use crate::params::{Id, Shelf};
use crate::real::Real;
use crate::saved::Saved;
use crate::split::tensor;
use crate::wide::map2;
use comm::{Call, Op, Result};
use ledger::shardwright::MAMBA1_CHUNK;
use recipe::kinds::mamba1::Mamba1 as Kind;

const NAMES: [&str; 2] = ["into mamba", "out of mamba"];
const SELECTED: Call = Call::new("tp", "step size, B and C of all channels");

pub(crate) struct Mamba1 {
    in_proj: Linear,
    x_proj: Linear,
    dt_proj: Linear,
    out_proj: Linear,
    conv: Id,
    conv_bias: Option<Id>,
    a_log: Id,
    d: Id,
    /// Norms of step size, B and C.
    norms: Option<[Norm; 3]>,
    /// Channels on this rank.
    channels: usize,
    taps: usize,
    /// Widths of step size, B and C.
    selected: [usize; 3],
    scan: Scan,
}

impl Mamba1 {
    pub fn new(kind: &Kind, shelf: &mut Shelf, path: &str) -> Mamba1 {
        let at = |name: &str| format!("{path}.{name}");
        let selected = [kind.dt_rank, kind.state, kind.state].map(|width| width as usize);
        let names = ["dt_norm", "b_norm", "c_norm"];
        let norms = kind.inner_norms.then(|| [0, 1, 2].map(|i| Norm::of_heads(shelf, &at(names[i]), selected[i])));
        let linear = |name: &str| Linear::new(shelf, &at(name));
        let d = shelf.id(&at("D"));
        Mamba1 {
            in_proj: linear("in_proj"),
            x_proj: linear("x_proj"),
            dt_proj: linear("dt_proj"),
            out_proj: linear("out_proj"),
            conv: shelf.id(&at("conv.weight")),
            conv_bias: shelf.find(&at("conv.bias")),
            a_log: shelf.id(&at("A_log")),
            channels: shelf.params[d.0].part.elements() as usize,
            d,
            norms,
            taps: kind.conv as usize,
            selected,
            scan: Scan { chunk: MAMBA1_CHUNK, times: Times::Whole },
        }
    }

    fn conv<R: Real>(&self, cx: &Cx<R>) -> (Conv<R>, Mat<R>) {
        let (batch, bias) = (cx.sizes.sequences, self.conv_bias.map(|bias| cx.weight(bias).data.clone()));
        let conv = Conv::new(&cx.weight(self.conv).data, self.taps, bias, batch, 1);
        (conv, Mat::zeros((self.taps - 1) * batch, self.channels))
    }

    /// Splits the projection into step size, B and C, and norms them.
    fn normed<R: Real>(&self, cx: &Cx<R>, selected: &Mat<R>) -> [Mat<R>; 3] {
        let parts: [Mat<R>; 3] =
            selected.split(&self.selected).try_into().unwrap_or_else(|_| unreachable!("split into three"));
        match &self.norms {
            Some(norms) => [0, 1, 2].map(|i| norms[i].forward(cx, &parts[i])),
            None => parts,
        }
    }

    /// The scan's cell over convolved channels, and the step size of each channel before softplus.
    fn cell<R: Real>(&self, cx: &Cx<R>, u: Mat<R>, [low, b, c]: [Mat<R>; 3]) -> (Selective<R>, Mat<R>) {
        let raw = self.dt_proj.forward(cx, &low);
        let like = |m: &Mat<R>| Mat::zeros(m.rows, m.cols);
        let log = cx.weight(self.a_log);
        let rate = Mat { data: log.data.iter().map(|a| -a.exp()).collect(), ..*log };
        let cell = Selective {
            du: like(&u),
            dstep: like(&raw),
            db: like(&b),
            dc: like(&c),
            drate: like(&rate),
            dskip: vec![R::ZERO; self.channels],
            skip: cx.weight(self.d).data.clone(),
            step: Mat { data: raw.data.iter().map(|v| v.softplus()).collect(), ..raw },
            u,
            b,
            c,
            rate,
        };
        (cell, raw)
    }

    fn gated<R: Real>(&self, y: &Mat<R>, z: &Mat<R>) -> Mat<R> {
        Mat { data: map2(&y.data, &z.data, |y, z| y * silu(z).0), ..*y }
    }

    /// The gradient of the projection of step size, B and C, summed over the channels of all ranks; adds
    /// the gradients of the scan's parameters.
    fn selected_back<R: Real>(&self, cx: &mut Cx<R>, cell: &Selective<R>, raw: &Mat<R>, of: &Mat<R>) -> Result<Mat<R>> {
        let drate = cell.drate.data.iter().zip(&cell.rate.data).map(|(d, a)| *d * *a);
        let dlog: Vec<R> = drate.collect();
        cx.add_grad(self.a_log, &dlog);
        cx.add_grad(self.d, &cell.dskip);
        let draw = map2(&cell.dstep.data, &raw.data, |d, v| d * v.sigmoid());
        let [low, ..] = self.normed(cx, of);
        let dlow = self.dt_proj.backward(cx, &low, &Mat { data: draw, ..*raw });
        let mut grads = [dlow, cell.db.clone(), cell.dc.clone()];
        if let Some(norms) = &self.norms {
            let parts = of.split(&self.selected);
            for ((d, norm), x) in grads.iter_mut().zip(norms).zip(&parts) {
                *d = norm.backward(cx, x, d);
            }
        }
        let joined = Mat::join(&[&grads[0], &grads[1], &grads[2]]);
        sum(cx, joined)
    }
}

/// Sums over the tensor axis what every rank computed from its own channels.
fn sum<R: Real>(cx: &Cx<R>, part: Mat<R>) -> Result<Mat<R>> {
    let cols = part.cols;
    Ok(Mat::of(cols, cx.rank.comm.all_reduce(&cx.rank.tp, SELECTED, Op::Sum, part.data)?))
}

impl<R: Real> Block<R> for Mamba1 {
    fn forward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        let x = tensor::enter(cx.rank, NAMES[0], x)?;
        let projected = self.in_proj.forward(cx, &x);
        let parts = projected.split(&[self.channels; 2]);
        let (conv, tails) = self.conv(cx);
        let u = conv.forward(&parts[0], &tails);
        let selected = sum(cx, self.x_proj.partial(cx, &u))?;
        let (cell, _) = self.cell(cx, u, self.normed(cx, &selected));
        let (scanned, states) = self.scan.forward(cx, &ByToken(cell))?;
        let gated = self.gated(&scanned, &parts[1]);
        let mut y = tensor::leave(cx.rank, NAMES[1], self.out_proj.partial(cx, &gated))?;
        self.out_proj.add_bias(cx, &mut y);
        let kept = [("input", x), ("projected", projected), ("selected", selected), ("states", states)];
        kept.into_iter().for_each(|(name, value)| saved.keep(name, value));
        saved.keep("scanned", scanned);
        Ok((y, saved))
    }

    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()> {
        restore_input(cx, saved, NAMES[0], normed)
    }

    fn backward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        self.out_proj.bias_back(cx, &dy);
        let dy = tensor::leave_back(cx.rank, NAMES[1], dy)?;
        let parts = saved.take("projected").split(&[self.channels; 2]);
        let scanned = saved.take("scanned");
        let dgated = self.out_proj.partial_back(cx, &self.gated(&scanned, &parts[1]), &dy);
        let (dscanned, dz) = gate_back(&scanned, &parts[1], &dgated);
        let (conv, tails) = self.conv(cx);
        let selected = saved.take("selected");
        let (cell, raw) = self.cell(cx, conv.forward(&parts[0], &tails), self.normed(cx, &selected));
        let mut cell = ByToken(cell);
        self.scan.backward(cx, &mut cell, &saved.take("states"), &dscanned)?;
        let mut cell = cell.0;
        let dselected = self.selected_back(cx, &cell, &raw, &selected)?;
        cell.du.add(&self.x_proj.partial_back(cx, &cell.u, &dselected));
        let back = conv.backward(&parts[0], &tails, &cell.du);
        cx.add_grad(self.conv, &back.weight);
        if let Some(bias) = self.conv_bias {
            cx.add_grad(bias, &back.bias);
        }
        let dx = self.in_proj.backward(cx, &saved.take("input"), &Mat::join(&[&back.input, &dz]));
        tensor::enter_back(cx.rank, NAMES[0], dx)
    }
}

/// `h ← exp(step · rate) h + step · u · B`, `y = C h + D u`, a channel at a time.
struct Selective<R> {
    u: Mat<R>,
    step: Mat<R>,
    b: Mat<R>,
    c: Mat<R>,
    /// By channel and element of its state; negative.
    rate: Mat<R>,
    skip: Vec<R>,
    du: Mat<R>,
    dstep: Mat<R>,
    db: Mat<R>,
    dc: Mat<R>,
    drate: Mat<R>,
    dskip: Vec<R>,
}

impl<R: Real> Token<R> for Selective<R> {
    fn heads(&self) -> usize {
        self.u.cols
    }

    fn state(&self) -> usize {
        self.b.cols
    }

    fn width(&self) -> usize {
        1
    }

    fn step(&self, row: usize, channel: usize, state: &mut [R], out: &mut [R]) {
        let (step, u) = (self.step.row(row)[channel], self.u.row(row)[channel]);
        let inputs = self.rate.row(channel).iter().zip(self.b.row(row).iter().zip(self.c.row(row)));
        out[0] = self.skip[channel] * u;
        for (h, (rate, (b, c))) in state.iter_mut().zip(inputs) {
            *h = (step * *rate).exp() * *h + step * u * *b;
            out[0] += *c * *h;
        }
    }

    fn back(&mut self, row: usize, channel: usize, [before, after]: [&[R]; 2], dout: &[R], dstate: &mut [R]) {
        let (step, u, d) = (self.step.row(row)[channel], self.u.row(row)[channel], dout[0]);
        self.dskip[channel] += d * u;
        let (mut du, mut dstep) = (d * self.skip[channel], R::ZERO);
        for (n, dh) in dstate.iter_mut().enumerate() {
            let (rate, b) = (self.rate.row(channel)[n], self.b.row(row)[n]);
            let keep = (step * rate).exp();
            self.dc.row_mut(row)[n] += d * after[n];
            *dh += d * self.c.row(row)[n];
            dstep += *dh * (before[n] * keep * rate + u * b);
            self.drate.row_mut(channel)[n] += *dh * before[n] * keep * step;
            self.db.row_mut(row)[n] += *dh * step * u;
            du += *dh * step * b;
            *dh *= keep;
        }
        self.du.row_mut(row)[channel] += du;
        self.dstep.row_mut(row)[channel] += dstep;
    }
}
