//! Mamba-2: heads that share B and C by group, a short convolution, a gated norm by group. Under context
//! parallelism, if groups divide over cp each rank scans the whole sequence for 1/cp of the heads;
//! otherwise it scans its own spans for all heads, and receives the state and the convolution's tail
//! from the rank before.
//!
//! Step and order of operations: state-spaces/mamba, `mamba_ssm/modules/mamba2.py`.

use super::act::silu;
use super::conv::Conv;
use super::norm::{rms, rms_back};
use super::scan::{Scan, Times};
use super::ssd::Ssd;
use super::{Block, Cx, Linear, restore_input};
use crate::mat::Mat;
use crate::params::{Id, Shelf};
use crate::real::Real;
use crate::saved::Saved;
use crate::split::{heads, tensor, time};
use crate::wide::{map2, wide};
use comm::Result;
use layout::Layout;
use layout::activations::trades_heads;
use recipe::kinds::mamba2::Mamba2 as Kind;

const NAMES: [&str; 2] = ["into mamba", "out of mamba"];

pub(crate) struct Mamba2 {
    in_proj: Linear,
    out_proj: Linear,
    conv: Id,
    conv_bias: Option<Id>,
    dt_bias: Id,
    a_log: Id,
    d: Id,
    norm: Option<Id>,
    /// Local widths of z x B C dt.
    widths: Vec<usize>,
    head: usize,
    state: usize,
    taps: usize,
    /// Ranks that heads are dealt out to: cp where each scans the whole sequence, one otherwise.
    ranks: usize,
    scan: Scan,
    /// Columns the gated norm runs over.
    group: usize,
    /// Added to the mean square of the gated norm.
    eps: f64,
}

impl Mamba2 {
    pub fn new(kind: &Kind, shelf: &Shelf, path: &str, layout: &Layout) -> Mamba2 {
        let at = |name: &str| format!("{path}.{name}");
        let in_proj = Linear::new(shelf, &at("in_proj"));
        let widths = shelf.segments(in_proj.weight());
        let groups = widths[2] / kind.state as usize;
        let (ranks, times) = match trades_heads(kind, layout) {
            true => (layout.cp.get() as usize, Times::Whole),
            false => (1, Times::Parts),
        };
        Mamba2 {
            in_proj,
            out_proj: Linear::new(shelf, &at("out_proj")),
            conv: shelf.id(&at("conv.weight")),
            conv_bias: shelf.find(&at("conv.bias")),
            dt_bias: shelf.id(&at("dt_bias")),
            a_log: shelf.id(&at("A_log")),
            d: shelf.id(&at("D")),
            norm: shelf.find(&at("gate_norm.weight")),
            group: widths[0] / groups,
            eps: shelf.norm_eps,
            widths,
            head: kind.head_dim as usize,
            state: kind.state as usize,
            taps: kind.conv as usize,
            ranks,
            scan: Scan { chunk: kind.chunk as usize, times },
        }
    }

    /// Widths of z x B C dt for the heads this rank scans.
    fn shares(&self) -> Vec<usize> {
        self.widths.iter().map(|w| w / self.ranks).collect()
    }

    /// The elements of a parameter that belong to the heads this rank scans; segments count units of
    /// `unit` elements.
    fn mine<R: Real>(&self, cx: &Cx<R>, id: Id, segments: &[usize], unit: usize) -> Vec<R> {
        match self.scan.times {
            Times::Whole => heads::mine(cx, id, segments, unit),
            Times::Parts => cx.weight(id).data.clone(),
        }
    }

    /// Transpose of [`Mamba2::mine`].
    fn add_mine<R: Real>(&self, cx: &mut Cx<R>, id: Id, segments: &[usize], unit: usize, from: &[R]) {
        match self.scan.times {
            Times::Whole => heads::add_mine(cx, id, segments, unit, from),
            Times::Parts => cx.add_grad(id, from),
        }
    }

    /// From this rank's span of all heads to what it scans: an exchange over cp, or nothing.
    fn trade<R: Real>(&self, cx: &Cx<R>, x: Mat<R>, segments: &[usize]) -> Result<Mat<R>> {
        match self.scan.times {
            Times::Whole => heads::trade(cx.rank, x, segments, cx.sizes.sequences),
            Times::Parts => Ok(x),
        }
    }

    /// Transpose and inverse of [`Mamba2::trade`].
    fn trade_back<R: Real>(&self, cx: &Cx<R>, x: Mat<R>, segments: &[usize]) -> Result<Mat<R>> {
        match self.scan.times {
            Times::Whole => heads::trade_back(cx.rank, x, segments, cx.sizes.sequences),
            Times::Parts => Ok(x),
        }
    }

    fn conv<R: Real>(&self, cx: &Cx<R>) -> Conv<R> {
        let channels = &self.widths[1..4];
        let weight = self.mine(cx, self.conv, channels, self.taps);
        let bias = self.conv_bias.map(|b| self.mine(cx, b, channels, 1));
        let parts = if self.scan.times == Times::Whole { 1 } else { cx.sizes.spans().len() };
        Conv::new(&weight, self.taps, bias, cx.sizes.sequences, parts)
    }

    /// What the convolution reads before the first token: zeros where the whole sequence is scanned, the
    /// end of the span before otherwise.
    fn tails<R: Real>(&self, cx: &Cx<R>, xbc: &Mat<R>) -> Result<Mat<R>> {
        let batch = cx.sizes.sequences;
        match self.scan.times {
            Times::Whole => Ok(Mat::zeros((self.taps - 1) * batch, xbc.cols)),
            Times::Parts => time::tails(cx.rank, xbc, batch, self.taps - 1),
        }
    }

    fn cell<R: Real>(&self, cx: &Cx<R>, xbc: Mat<R>, dt: &Mat<R>) -> Ssd<R> {
        let by_head = &self.widths[4..5];
        let shares = self.shares();
        let decay: Vec<R> = self.mine(cx, self.a_log, by_head, 1).iter().map(|a| -a.exp()).collect();
        let bias = self.mine(cx, self.dt_bias, by_head, 1);
        let raw = {
            let mut raw = dt.clone();
            raw.add_row(&bias);
            raw
        };
        let step = Mat { data: raw.data.iter().map(|v| v.softplus()).collect(), ..raw.clone() };
        Ssd {
            head: self.head,
            state: self.state,
            inner: shares[1],
            grouped: shares[2],
            per_group: shares[4] / (shares[2] / self.state),
            dxbc: Mat::zeros(xbc.rows, xbc.cols),
            dstep: Mat::zeros(step.rows, step.cols),
            ddecay: vec![R::ZERO; decay.len()],
            dskip: vec![R::ZERO; decay.len()],
            skip: self.mine(cx, self.d, by_head, 1),
            xbc,
            raw,
            step,
            decay,
        }
    }

    /// The gated output, and the same normed, which is what the projection out reads.
    fn gate<R: Real>(&self, cx: &Cx<R>, y: &Mat<R>, z: &Mat<R>) -> (Mat<R>, Mat<R>) {
        let data = map2(&y.data, &z.data, |y, z| y * silu(z).0);
        let gated = Mat { data, ..*y };
        let normed = match self.norm {
            Some(id) => rms(&gated, &self.mine(cx, id, &self.widths[..1], 1), self.group, self.eps),
            None => gated.clone(),
        };
        (gated, normed)
    }
}

impl<R: Real> Block<R> for Mamba2 {
    fn forward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        let x = tensor::enter(cx.rank, NAMES[0], x)?;
        let projected = self.trade(cx, self.in_proj.forward(cx, &x), &self.widths)?;
        let [z, xbc, dt] = self.three(&projected);
        let tails = self.tails(cx, &xbc)?;
        let cell = self.cell(cx, self.conv(cx).forward(&xbc, &tails), &dt);
        let (scanned, states) = self.scan.forward(cx, &cell)?;
        let (_, normed) = self.gate(cx, &scanned, &z);
        let normed = self.trade_back(cx, normed, &self.widths[..1])?;
        let mut y = tensor::leave(cx.rank, NAMES[1], self.out_proj.partial(cx, &normed))?;
        self.out_proj.add_bias(cx, &mut y);
        let kept =
            [("input", x), ("projected", projected), ("states", states), ("scanned", scanned), ("normed", normed)];
        kept.into_iter().for_each(|(name, value)| saved.keep(name, value));
        if self.scan.times == Times::Parts {
            saved.keep("tails", tails);
        }
        Ok((y, saved))
    }

    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()> {
        restore_input(cx, saved, NAMES[0], normed)
    }

    fn backward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        self.out_proj.bias_back(cx, &dy);
        let dy = tensor::leave_back(cx.rank, NAMES[1], dy)?;
        let dnormed = self.out_proj.partial_back(cx, &saved.take("normed"), &dy);
        let dnormed = self.trade(cx, dnormed, &self.widths[..1])?;
        let [z, xbc, dt] = self.three(&saved.take("projected"));
        let scanned = saved.take("scanned");
        let dgated = self.norm_back(cx, &scanned, &z, dnormed);
        let (dscanned, dz) = gate_back(&scanned, &z, &dgated);
        let conv = self.conv(cx);
        let tails = match self.scan.times {
            Times::Whole => self.tails(cx, &xbc)?,
            Times::Parts => saved.take("tails"),
        };
        let mut cell = self.cell(cx, conv.forward(&xbc, &tails), &dt);
        self.scan.backward(cx, &mut cell, &saved.take("states"), &dscanned)?;
        let ddt = self.scalars_back(cx, &cell);
        let mut back = conv.backward(&xbc, &tails, &cell.dxbc);
        if self.scan.times == Times::Parts {
            time::tails_back(cx.rank, &back.tails, &mut back.input)?;
        }
        self.add_mine(cx, self.conv, &self.widths[1..4], self.taps, &back.weight);
        if let Some(bias) = self.conv_bias {
            self.add_mine(cx, bias, &self.widths[1..4], 1, &back.bias);
        }
        let dprojected = Mat::join(&[&dz, &back.input, &ddt]);
        let dprojected = self.trade_back(cx, dprojected, &self.widths)?;
        let dx = self.in_proj.backward(cx, &saved.take("input"), &dprojected);
        tensor::enter_back(cx.rank, NAMES[0], dx)
    }
}

impl Mamba2 {
    /// Splits a projection into z, [x B C] and dt.
    fn three<R: Real>(&self, projected: &Mat<R>) -> [Mat<R>; 3] {
        let w = self.shares();
        let parts = projected.split(&[w[0], w[1] + w[2] + w[3], w[4]]);
        parts.try_into().unwrap_or_else(|_| unreachable!("split into three"))
    }

    fn norm_back<R: Real>(&self, cx: &mut Cx<R>, scanned: &Mat<R>, z: &Mat<R>, dnormed: Mat<R>) -> Mat<R> {
        let Some(id) = self.norm else { return dnormed };
        let (gated, _) = self.gate(cx, scanned, z);
        let scale = self.mine(cx, id, &self.widths[..1], 1);
        let mut dscale = vec![R::ZERO; scale.len()];
        let dgated = rms_back(&gated, &scale, (self.group, self.eps), &dnormed, &mut dscale);
        self.add_mine(cx, id, &self.widths[..1], 1, &dscale);
        dgated
    }

    /// Adds the gradients of the scalars of every head; gives the gradient of the steps before softplus.
    fn scalars_back<R: Real>(&self, cx: &mut Cx<R>, cell: &Ssd<R>) -> Mat<R> {
        let by_head = &self.widths[4..5];
        let data = cell.dstep.data.iter().zip(&cell.raw.data).map(|(d, raw)| *d * raw.sigmoid()).collect();
        let ddt = Mat { data, ..cell.dstep };
        let mut dbias = vec![R::ZERO; ddt.cols];
        ddt.sum_rows(&mut dbias);
        // `decay` is minus the exponential of its parameter, so its derivative is itself.
        let dlog: Vec<R> = cell.ddecay.iter().zip(&cell.decay).map(|(d, a)| *d * *a).collect();
        self.add_mine(cx, self.dt_bias, by_head, 1, &dbias);
        self.add_mine(cx, self.a_log, by_head, 1, &dlog);
        self.add_mine(cx, self.d, by_head, 1, &cell.dskip);
        ddt
    }
}

/// Transpose of `y · silu(z)`: gradients of both.
pub(crate) fn gate_back<R: Real>(y: &Mat<R>, z: &Mat<R>, d: &Mat<R>) -> (Mat<R>, Mat<R>) {
    let (mut dy, mut dz) = (d.clone(), d.clone());
    let inputs = y.data.iter().zip(&z.data);
    let outputs = dy.data.iter_mut().zip(&mut dz.data);
    wide(|| {
        for ((y, z), (dy, dz)) in inputs.zip(outputs) {
            let (value, slope) = silu(*z);
            *dy *= value;
            *dz *= *y * slope;
        }
    });
    (dy, dz)
}
