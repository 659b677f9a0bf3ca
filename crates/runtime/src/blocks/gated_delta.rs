//! A gated delta net: linear attention whose state decays, and is corrected by the difference between a
//! value and what the state returns for its key. Under context parallelism each rank scans the whole
//! sequence for 1/cp of the heads (`split::heads`).
//!
//! Step and block: Megatron-Core `ssm/gated_delta_net/gdn.py` and its torch reference there.

use super::act::silu;
use super::conv::Conv;
use super::mamba2::gate_back;
use super::norm::Norm;
use super::scan::{ByToken, Scan, Times, Token};
use super::{Block, Cx, Linear, restore_input};
use crate::mat::{Mat, axpy, dot};
use crate::params::{Id, Shelf};
use crate::real::Real;
use crate::saved::Saved;
use crate::split::{heads, tensor};
use comm::Result;
use ledger::shardwright::DELTA_CHUNK;
use recipe::kinds::gated_delta::GatedDelta as Kind;

const NAMES: [&str; 2] = ["into gated_delta", "out of gated_delta"];
/// Added to a key's squared length.
const EPSILON: f64 = 1e-6;

pub(crate) struct GatedDelta {
    in_proj: Linear,
    out_proj: Linear,
    conv: Id,
    dt_bias: Id,
    a_log: Id,
    norm: Norm,
    /// Local widths of q k v z beta alpha.
    widths: Vec<usize>,
    key: usize,
    value: usize,
    taps: usize,
    scan: Scan,
}

impl GatedDelta {
    pub fn new(kind: &Kind, shelf: &mut Shelf, path: &str) -> GatedDelta {
        let at = |name: &str| format!("{path}.{name}");
        let in_proj = Linear::new(shelf, &at("in_proj"));
        GatedDelta {
            widths: shelf.segments(in_proj.weight()),
            in_proj,
            out_proj: Linear::new(shelf, &at("out_proj")),
            conv: shelf.id(&at("conv.weight")),
            dt_bias: shelf.id(&at("dt_bias")),
            a_log: shelf.id(&at("A_log")),
            norm: Norm::of_heads(shelf, &at("out_norm"), kind.value_dim as usize),
            key: kind.key_dim as usize,
            value: kind.value_dim as usize,
            taps: kind.conv as usize,
            scan: Scan { chunk: DELTA_CHUNK, times: Times::Whole },
        }
    }

    /// Splits a projection into [q k v], z, beta and alpha, of the heads that one of `cp` ranks has.
    fn four<R: Real>(&self, projected: &Mat<R>, cp: usize) -> [Mat<R>; 4] {
        let w: Vec<usize> = self.widths.iter().map(|w| w / cp).collect();
        let parts = projected.split(&[w[0] + w[1] + w[2], w[3], w[4], w[5]]);
        parts.try_into().unwrap_or_else(|_| unreachable!("split into four"))
    }

    fn conv<R: Real>(&self, cx: &Cx<R>) -> (Conv<R>, Mat<R>) {
        let weight = heads::mine(cx, self.conv, &self.widths[..3], self.taps);
        let batch = cx.sizes.sequences;
        let width = weight.len() / self.taps;
        (Conv::new(&weight, self.taps, None, batch, 1), Mat::zeros((self.taps - 1) * batch, width))
    }

    /// The cell over convolved q k v; queries and keys are scaled to unit length.
    fn cell<R: Real>(&self, cx: &Cx<R>, mut qkv: Mat<R>, beta: &Mat<R>, alpha: &Mat<R>) -> Delta<R> {
        let keys = 2 * self.widths[0] / cx.sizes.cp;
        for row in 0..qkv.rows {
            for key in qkv.row_mut(row)[..keys].chunks_exact_mut(self.key) {
                let inverse = inverse_length(key);
                key.iter_mut().for_each(|k| *k *= inverse);
            }
        }
        let by_head = &self.widths[4..5];
        let rate: Vec<R> = heads::mine(cx, self.a_log, by_head, 1).iter().map(|a| -a.exp()).collect();
        let mut raw = alpha.clone();
        raw.add_row(&heads::mine(cx, self.dt_bias, by_head, 1));
        let mut keep = raw.clone();
        for row in keep.data.chunks_exact_mut(rate.len()) {
            row.iter_mut().zip(&rate).for_each(|(k, a)| *k = (*a * k.softplus()).exp());
        }
        Delta {
            key: self.key,
            value: self.value,
            keys: keys / 2,
            shared: rate.len() / (keys / 2 / self.key),
            dqkv: Mat::zeros(qkv.rows, qkv.cols),
            dkeep: Mat::zeros(raw.rows, raw.cols),
            dbeta: Mat::zeros(raw.rows, raw.cols),
            beta: Mat { data: beta.data.iter().map(|b| b.sigmoid()).collect(), ..*beta },
            qkv,
            keep,
            raw,
            rate,
        }
    }

    /// Output of the scan, normed and multiplied by its gate; and the norm's output alone.
    fn gated<R: Real>(&self, cx: &Cx<R>, scanned: &Mat<R>, z: &Mat<R>) -> (Mat<R>, Mat<R>) {
        let normed = self.norm.forward(cx, scanned);
        let data = normed.data.iter().zip(&z.data).map(|(y, z)| *y * silu(*z).0).collect();
        (Mat { data, ..normed }, normed)
    }

    /// Gradients of what was projected, before convolution and the scalars of every head.
    fn inputs_back<R: Real>(&self, cx: &mut Cx<R>, cell: &Delta<R>, qkv: &Mat<R>, dz: &Mat<R>) -> Mat<R> {
        let heads = cell.rate.len();
        let (conv, tails) = self.conv(cx);
        let convolved = conv.forward(qkv, &tails);
        let mut dqkv = cell.dqkv.clone();
        for row in 0..dqkv.rows {
            let (from, unit) = (convolved.row(row), cell.qkv.row(row));
            for (i, d) in dqkv.row_mut(row)[..2 * cell.keys].chunks_exact_mut(self.key).enumerate() {
                let range = i * self.key..(i + 1) * self.key;
                let (inverse, unit) = (inverse_length(&from[range.clone()]), &unit[range]);
                let along = dot(d, unit);
                d.iter_mut().zip(unit).for_each(|(d, u)| *d = (*d - *u * along) * inverse);
            }
        }
        let back = conv.backward(qkv, &tails, &dqkv);
        heads::add_mine(cx, self.conv, &self.widths[..3], self.taps, &back.weight);
        let (mut dalpha, mut dlog) = (cell.dkeep.clone(), vec![R::ZERO; heads]);
        for (row, (keep, raw)) in dalpha
            .data
            .chunks_exact_mut(heads)
            .zip(cell.keep.data.chunks_exact(heads).zip(cell.raw.data.chunks_exact(heads)))
        {
            for h in 0..heads {
                // keep = exp(rate · softplus(raw)), and rate is minus the exponential of its parameter.
                let d = row[h] * keep[h] * cell.rate[h];
                dlog[h] += d * raw[h].softplus();
                row[h] = d * raw[h].sigmoid();
            }
        }
        let mut dbias = vec![R::ZERO; heads];
        dalpha.sum_rows(&mut dbias);
        heads::add_mine(cx, self.dt_bias, &self.widths[4..5], 1, &dbias);
        heads::add_mine(cx, self.a_log, &self.widths[4..5], 1, &dlog);
        let data = cell.dbeta.data.iter().zip(&cell.beta.data).map(|(d, b)| *d * *b * (R::ONE - *b)).collect();
        Mat::join(&[&back.input, dz, &Mat { data, ..cell.dbeta }, &dalpha])
    }
}

fn inverse_length<R: Real>(x: &[R]) -> R {
    R::ONE / (dot(x, x) + R::of(EPSILON)).sqrt()
}

impl<R: Real> Block<R> for GatedDelta {
    fn forward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        let (rank, batch) = (cx.rank, cx.sizes.sequences);
        let x = tensor::enter(rank, NAMES[0], x)?;
        let projected = heads::trade(rank, self.in_proj.forward(cx, &x), &self.widths, batch)?;
        let [qkv, z, beta, alpha] = self.four(&projected, cx.sizes.cp);
        let (conv, tails) = self.conv(cx);
        let cell = self.cell(cx, conv.forward(&qkv, &tails), &beta, &alpha);
        let (scanned, states) = self.scan.forward(cx, &ByToken(cell))?;
        let (gated, _) = self.gated(cx, &scanned, &z);
        let gated = heads::trade_back(rank, gated, &self.widths[2..3], batch)?;
        let y = tensor::leave(rank, NAMES[1], self.out_proj.partial(cx, &gated))?;
        let kept = [("input", x), ("projected", projected), ("states", states), ("scanned", scanned), ("gated", gated)];
        kept.into_iter().for_each(|(name, value)| saved.keep(name, value));
        Ok((y, saved))
    }

    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()> {
        restore_input(cx, saved, NAMES[0], normed)?;
        if saved.lacks("gated") {
            let [_, z, ..] = self.four(saved.get("projected"), cx.sizes.cp);
            let (gated, _) = self.gated(cx, saved.get("scanned"), &z);
            saved.keep("gated", heads::trade_back(cx.rank, gated, &self.widths[2..3], cx.sizes.sequences)?);
        }
        Ok(())
    }

    fn backward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        let (rank, batch) = (cx.rank, cx.sizes.sequences);
        let dy = tensor::leave_back(rank, NAMES[1], dy)?;
        let dgated = self.out_proj.partial_back(cx, &saved.take("gated"), &dy);
        let dgated = heads::trade(rank, dgated, &self.widths[2..3], batch)?;
        let [qkv, z, beta, alpha] = self.four(&saved.take("projected"), cx.sizes.cp);
        let scanned = saved.take("scanned");
        let (_, normed) = self.gated(cx, &scanned, &z);
        let (dnormed, dz) = gate_back(&normed, &z, &dgated);
        let dscanned = self.norm.backward(cx, &scanned, &dnormed);
        let (conv, tails) = self.conv(cx);
        let mut cell = ByToken(self.cell(cx, conv.forward(&qkv, &tails), &beta, &alpha));
        self.scan.backward(cx, &mut cell, &saved.take("states"), &dscanned)?;
        let cell = cell.0;
        let dprojected = self.inputs_back(cx, &cell, &qkv, &dz);
        let dprojected = heads::trade_back(rank, dprojected, &self.widths, batch)?;
        let dx = self.in_proj.backward(cx, &saved.take("input"), &dprojected);
        tensor::enter_back(rank, NAMES[0], dx)
    }
}

/// `P = keep · S`, `d = beta (v − k P)`, `S ← P + k⊗d`, `y = q S / √key`.
struct Delta<R> {
    key: usize,
    value: usize,
    /// Width of all queries, and of all keys.
    keys: usize,
    /// Value heads that read one query and key.
    shared: usize,
    qkv: Mat<R>,
    keep: Mat<R>,
    beta: Mat<R>,
    raw: Mat<R>,
    rate: Vec<R>,
    dqkv: Mat<R>,
    dkeep: Mat<R>,
    dbeta: Mat<R>,
}

impl<R: Real> Delta<R> {
    fn scale(&self) -> R {
        R::of(1.0 / (self.key as f64).sqrt())
    }

    /// Columns of a head's q, k and v.
    fn places(&self, head: usize) -> [std::ops::Range<usize>; 3] {
        let q = head / self.shared * self.key;
        let (k, v) = (self.keys + q, 2 * self.keys + head * self.value);
        [q..q + self.key, k..k + self.key, v..v + self.value]
    }

    /// The correction before `beta`: the value minus what the decayed state returns for the key.
    fn missing(&self, row: usize, head: usize, decayed: &[R]) -> Vec<R> {
        let [_, k, v] = self.places(head).map(|r| &self.qkv.row(row)[r]);
        let mut missing = v.to_vec();
        decayed.chunks_exact(self.value).zip(k).for_each(|(s, k)| axpy(&mut missing, -*k, s));
        missing
    }
}

impl<R: Real> Token<R> for Delta<R> {
    fn heads(&self) -> usize {
        self.keep.cols
    }

    fn state(&self) -> usize {
        self.key * self.value
    }

    fn width(&self) -> usize {
        self.value
    }

    fn step(&self, row: usize, head: usize, state: &mut [R], out: &mut [R]) {
        let (keep, beta, scale) = (self.keep.row(row)[head], self.beta.row(row)[head], self.scale());
        state.iter_mut().for_each(|s| *s *= keep);
        let missing = self.missing(row, head, state);
        let [q, k, _] = self.places(head).map(|r| &self.qkv.row(row)[r]);
        out.fill(R::ZERO);
        for ((s, k), q) in state.chunks_exact_mut(self.value).zip(k).zip(q) {
            axpy(s, *k * beta, &missing);
            axpy(out, *q * scale, s);
        }
    }

    fn back(&mut self, row: usize, head: usize, [before, after]: [&[R]; 2], dout: &[R], dstate: &mut [R]) {
        let (keep, beta, scale, width) = (self.keep.row(row)[head], self.beta.row(row)[head], self.scale(), self.value);
        let decayed: Vec<R> = before.iter().map(|s| *s * keep).collect();
        let missing = self.missing(row, head, &decayed);
        let [qs, ks, vs] = self.places(head);
        let inputs = self.qkv.row(row);
        let (q, k) = (&inputs[qs.clone()], &inputs[ks.clone()]);
        let grads = self.dqkv.row_mut(row);
        let mut dmissing = vec![R::ZERO; width];
        for (i, ds) in dstate.chunks_exact_mut(width).enumerate() {
            grads[qs.start + i] += scale * dot(&after[i * width..(i + 1) * width], dout);
            axpy(ds, scale * q[i], dout);
            axpy(&mut dmissing, k[i], ds);
            grads[ks.start + i] += beta * dot(ds, &missing);
        }
        // `dmissing` is the gradient of the corrected value `beta (v − k P)` here.
        let dbeta = dot(&dmissing, &missing);
        dmissing.iter_mut().for_each(|d| *d *= beta);
        axpy(&mut grads[vs.clone()], R::ONE, &dmissing);
        let mut dkeep = R::ZERO;
        for (i, ds) in dstate.chunks_exact_mut(width).enumerate() {
            let range = i * width..(i + 1) * width;
            grads[ks.start + i] -= dot(&decayed[range.clone()], &dmissing);
            axpy(ds, -k[i], &dmissing);
            dkeep += dot(ds, &before[range]);
            ds.iter_mut().for_each(|d| *d *= keep);
        }
        self.dbeta.row_mut(row)[head] += dbeta;
        self.dkeep.row_mut(row)[head] += dkeep;
    }
}
