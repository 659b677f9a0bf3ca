//! Causal attention over heads, in tiles with running softmax statistics, so that no matrix of
//! scores is ever whole. Over the context axis keys and values go round the ring of ranks; in
//! backward they go round again and each rank sends its part of their gradients to their owner.

use super::Cx;
use crate::mat::{Mat, dot};
use crate::product::{View, Write, multiply};
use crate::rank::Rank;
use crate::real::Real;
use comm::{Call, Result};
use layout::Axis;
use std::ops::Range;

/// Rows of a tile.
const TILE: usize = 64;

const RING: Call = Call::new("cp", "keys and values around the ring");
const HOME: Call = Call::new("cp", "gradients of keys and values to their owner");

/// The shape of attention on one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Core {
    pub heads: usize,
    pub kv_heads: usize,
    /// Width of a query or key.
    pub key: usize,
    /// Width of a value.
    pub value: usize,
    /// Positions a query sees, itself included; all before it when there is none.
    pub window: Option<usize>,
}

/// A tile of queries against a tile of keys.
struct Tile {
    sequence: usize,
    head: usize,
    /// Local rows of time and the position of the first.
    q: Range<usize>,
    q_position: usize,
    k: Range<usize>,
    k_position: usize,
}

impl Core {
    fn scale<R: Real>(&self) -> R {
        R::of(1.0 / (self.key as f64).sqrt())
    }

    /// Every tile with something to see between our queries and the keys of `owner`.
    fn tiles(&self, rank: &Rank, owner: usize, batch: usize, mut visit: impl FnMut(&Tile)) {
        let (mine, theirs) = (rank.timeline.spans(rank.on(Axis::Cp)), rank.timeline.spans(owner));
        let mut q_row = 0;
        for q_span in &mine {
            for q_at in (0..q_span.len()).step_by(TILE) {
                let q_len = TILE.min(q_span.len() - q_at);
                let mut k_row = 0;
                for k_span in &theirs {
                    for k_at in (0..k_span.len()).step_by(TILE) {
                        let k_len = TILE.min(k_span.len() - k_at);
                        let (q_position, k_position) = (q_span.start + q_at, k_span.start + k_at);
                        let too_late = k_position > q_position + q_len - 1;
                        let too_early = self.window.is_some_and(|w| k_position + k_len - 1 + w <= q_position);
                        if too_late || too_early {
                            continue;
                        }
                        for sequence in 0..batch {
                            for head in 0..self.heads {
                                let (q, k) = (q_row + q_at, k_row + k_at);
                                let (q, k) = (q..q + q_len, k..k + k_len);
                                visit(&Tile { sequence, head, q, q_position, k, k_position });
                            }
                        }
                    }
                    k_row += k_span.len();
                }
            }
            q_row += q_span.len();
        }
    }

    /// Scaled scores of a tile; what a query may not see is left at minus infinity.
    fn scores<R: Real>(&self, t: &Tile, batch: usize, q: &Mat<R>, k: &Mat<R>, out: &mut Vec<R>) {
        let (n, m) = (t.q.len(), t.k.len());
        out.clear();
        out.resize(n * m, R::ZERO);
        let queries = rows_of(q, t.q.start, n, t.sequence, batch, t.head * self.key, self.key);
        let keys = rows_of(k, t.k.start, m, t.sequence, batch, self.kv(t.head) * self.key, self.key);
        multiply(out, m, Write::Replace, self.scale(), queries, keys.t());
        let hidden = R::of(f64::NEG_INFINITY);
        for (i, row) in out.chunks_exact_mut(m).enumerate() {
            let position = t.q_position + i;
            let seen = (position + 1).saturating_sub(t.k_position).min(m);
            row[seen..].fill(hidden);
            if let Some(window) = self.window {
                let gone = (position + 1).saturating_sub(window).saturating_sub(t.k_position).min(m);
                row[..gone].fill(hidden);
            }
        }
    }

    fn kv(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads)
    }

    /// Output and the logarithm of each query's sum of exponentials.
    pub fn forward<R: Real>(&self, cx: &Cx<R>, q: &Mat<R>, k: &Mat<R>, v: &Mat<R>) -> Result<(Mat<R>, Mat<R>)> {
        let (rank, batch) = (cx.rank, cx.sizes.sequences);
        let lowest = R::of(f64::NEG_INFINITY);
        let mut out = Mat::zeros(q.rows, self.heads * self.value);
        let (mut most, mut sum) = (Mat::zeros(q.rows, self.heads), Mat::zeros(q.rows, self.heads));
        most.data.fill(lowest);
        let mut scores = Vec::new();
        self.around(rank, k, v, |owner, k, v| {
            self.tiles(rank, owner, batch, |t| {
                self.scores(t, batch, q, k, &mut scores);
                let m = t.k.len();
                for (i, row) in scores.chunks_exact_mut(m).enumerate() {
                    let at = (t.q.start + i) * batch + t.sequence;
                    let old = most.row(at)[t.head];
                    let top = row.iter().fold(old, |a, b| if *b > a { *b } else { a });
                    if top == lowest {
                        row.fill(R::ZERO);
                        continue;
                    }
                    let shrink = (old - top).exp();
                    row.iter_mut().for_each(|s| *s = (*s - top).exp());
                    sum.row_mut(at)[t.head] = sum.row(at)[t.head] * shrink + row.iter().copied().sum();
                    most.row_mut(at)[t.head] = top;
                    let start = t.head * self.value;
                    out.row_mut(at)[start..start + self.value].iter_mut().for_each(|o| *o *= shrink);
                }
                let values = rows_of(v, t.k.start, m, t.sequence, batch, self.kv(t.head) * self.value, self.value);
                let (to, stride) = offset(&mut out, t.q.start, t.sequence, batch, t.head * self.value);
                multiply(to, stride, Write::Add, R::ONE, View::new(&scores, t.q.len(), m, m), values);
            });
        })?;
        for at in 0..q.rows {
            for head in 0..self.heads {
                let total = sum.row(at)[head];
                let start = head * self.value;
                out.row_mut(at)[start..start + self.value].iter_mut().for_each(|o| *o = *o / total);
                most.row_mut(at)[head] += total.ln();
            }
        }
        Ok((out, most))
    }

    /// Gradients of queries, keys and values. `kept` is what forward had and gave.
    pub fn backward<R: Real>(&self, cx: &Cx<R>, kept: Kept<R>, dout: &Mat<R>) -> Result<[Mat<R>; 3]> {
        let (rank, batch) = (cx.rank, cx.sizes.sequences);
        let Kept { q, k, v, out, log } = kept;
        let along = self.along(out, dout);
        let mut dq = Mat::zeros(q.rows, q.cols);
        let (mut own_k, mut own_v) = (Mat::zeros(k.rows, k.cols), Mat::zeros(v.rows, v.cols));
        let (mut p, mut ds) = (Vec::new(), Vec::new());
        self.around(rank, k, v, |owner, k, v| {
            let (mut dk, mut dv) = (Mat::zeros(k.rows, k.cols), Mat::zeros(v.rows, v.cols));
            self.tiles(rank, owner, batch, |t| {
                let (n, m, kv) = (t.q.len(), t.k.len(), self.kv(t.head));
                self.scores(t, batch, q, k, &mut p);
                for (i, row) in p.chunks_exact_mut(m).enumerate() {
                    let log = log.row((t.q.start + i) * batch + t.sequence)[t.head];
                    row.iter_mut().for_each(|s| *s = (*s - log).exp());
                }
                let d = rows_of(dout, t.q.start, n, t.sequence, batch, t.head * self.value, self.value);
                let values = rows_of(v, t.k.start, m, t.sequence, batch, kv * self.value, self.value);
                let (to, stride) = offset(&mut dv, t.k.start, t.sequence, batch, kv * self.value);
                multiply(to, stride, Write::Add, R::ONE, View::new(&p, n, m, m).t(), d);
                ds.clear();
                ds.resize(n * m, R::ZERO);
                multiply(&mut ds, m, Write::Replace, R::ONE, d, values.t());
                for (i, (row, p)) in ds.chunks_exact_mut(m).zip(p.chunks_exact(m)).enumerate() {
                    let along = along.row((t.q.start + i) * batch + t.sequence)[t.head];
                    row.iter_mut().zip(p).for_each(|(s, p)| *s = (*s - along) * *p);
                }
                let ds = View::new(&ds, n, m, m);
                let keys = rows_of(k, t.k.start, m, t.sequence, batch, kv * self.key, self.key);
                let queries = rows_of(q, t.q.start, n, t.sequence, batch, t.head * self.key, self.key);
                let (to, stride) = offset(&mut dq, t.q.start, t.sequence, batch, t.head * self.key);
                multiply(to, stride, Write::Add, self.scale(), ds, keys);
                let (to, stride) = offset(&mut dk, t.k.start, t.sequence, batch, kv * self.key);
                multiply(to, stride, Write::Add, self.scale(), ds.t(), queries);
            });
            self.go_home(rank, owner, (dk, dv), (&mut own_k, &mut own_v))
        })?;
        self.come_home(rank, &mut own_k, &mut own_v)?;
        Ok([dq, own_k, own_v])
    }

    /// Each query's output along its gradient.
    fn along<R: Real>(&self, out: &Mat<R>, dout: &Mat<R>) -> Mat<R> {
        let heads = out.data.chunks_exact(self.value).zip(dout.data.chunks_exact(self.value));
        Mat::of(self.heads, heads.map(|(o, d)| dot(o, d)).collect())
    }

    /// Visits the keys and values of every rank of the ring, our own first, each with its owner.
    fn around<R: Real, T: Done>(
        &self,
        rank: &Rank,
        k: &Mat<R>,
        v: &Mat<R>,
        mut visit: impl FnMut(usize, &Mat<R>, &Mat<R>) -> T,
    ) -> Result<()> {
        let (ring, me) = (rank.cp.len(), rank.on(Axis::Cp));
        visit(me, k, v).done()?;
        let mut held = None;
        for step in 1..ring {
            let (next, last) = (rank.cp.ranks()[(me + 1) % ring], rank.cp.ranks()[(me + ring - 1) % ring]);
            let packed = held.take().unwrap_or_else(|| Mat::join(&[k, v]));
            let cols = packed.cols;
            let len = packed.data.len();
            rank.comm.send(next, RING, packed.data)?;
            let came = Mat::of(cols, rank.comm.receive(last, RING, len)?);
            let parts = came.split(&[k.cols, v.cols]);
            held = Some(came);
            visit((me + ring - step) % ring, &parts[0], &parts[1]).done()?;
        }
        Ok(())
    }

    fn go_home<R: Real>(
        &self,
        rank: &Rank,
        owner: usize,
        (dk, dv): (Mat<R>, Mat<R>),
        own: (&mut Mat<R>, &mut Mat<R>),
    ) -> Result<()> {
        if owner == rank.on(Axis::Cp) {
            own.0.add(&dk);
            own.1.add(&dv);
            return Ok(());
        }
        rank.comm.send(rank.cp.ranks()[owner], HOME, Mat::join(&[&dk, &dv]).data)
    }

    /// Adds what every other rank computed of our keys' and values' gradients, in rank order.
    fn come_home<R: Real>(&self, rank: &Rank, dk: &mut Mat<R>, dv: &mut Mat<R>) -> Result<()> {
        for other in (0..rank.cp.len()).filter(|o| *o != rank.on(Axis::Cp)) {
            let cols = dk.cols + dv.cols;
            let came = rank.comm.receive(rank.cp.ranks()[other], HOME, dk.rows * cols)?;
            let parts = Mat::of(cols, came).split(&[dk.cols, dv.cols]);
            dk.add(&parts[0]);
            dv.add(&parts[1]);
        }
        Ok(())
    }
}

/// What attention's backward reads.
pub(crate) struct Kept<'a, R> {
    pub q: &'a Mat<R>,
    pub k: &'a Mat<R>,
    pub v: &'a Mat<R>,
    pub out: &'a Mat<R>,
    pub log: &'a Mat<R>,
}

/// A visit that may fail, or not.
trait Done {
    fn done(self) -> Result<()>;
}

impl Done for () {
    fn done(self) -> Result<()> {
        Ok(())
    }
}

impl Done for Result<()> {
    fn done(self) -> Result<()> {
        self
    }
}

/// `len` times of one sequence from local time `start`, columns `column..column + width`.
fn rows_of<R: Real>(
    m: &Mat<R>,
    start: usize,
    len: usize,
    sequence: usize,
    batch: usize,
    column: usize,
    width: usize,
) -> View<'_, R> {
    View::new(&m.data[(start * batch + sequence) * m.cols + column..], len, width, batch * m.cols)
}

/// The same place, to write, with the distance of rows.
fn offset<R: Real>(m: &mut Mat<R>, start: usize, sequence: usize, batch: usize, column: usize) -> (&mut [R], usize) {
    let stride = batch * m.cols;
    let from = (start * batch + sequence) * m.cols + column;
    (&mut m.data[from..], stride)
}
