//! Causal attention over heads, in tiles with running softmax statistics, so that no matrix of
//! scores is ever whole. Over the context axis keys and values go round the ring of ranks; in
//! backward they go round again and each rank sends its part of their gradients to their owner.

use super::Cx;
use crate::mat::{Mat, axpy, dot};
use crate::product::{Stripe, View, Write, multiply};
use crate::rank::Rank;
use crate::real::Real;
use crate::team;
use crate::wide::{exp_over, most, wide};
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
    /// What products of queries and keys are multiplied with.
    pub score: f64,
}

/// Padding in a row of [`Chosen`] whose query sees fewer than `top_k` keys.
pub(crate) const NONE: u64 = u64::MAX;

/// Keys that each query reads, where an indexer chose them.
pub(crate) struct Chosen {
    /// Slots of a row; unused ones hold [`NONE`].
    pub top_k: usize,
    /// Positions of the chosen keys, a row a token, ascending within a row.
    pub positions: Vec<u64>,
}

impl Chosen {
    /// The keys of one token.
    pub fn row(&self, row: usize) -> &[u64] {
        &self.positions[row * self.top_k..(row + 1) * self.top_k]
    }

    /// Keys of one token among those of a tile: for each its slot, and where in the tile it is.
    fn within(&self, row: usize, t: &Tile) -> impl Iterator<Item = (usize, usize)> + '_ {
        let (row, first) = (self.row(row), t.k_position as u64);
        let start = row.partition_point(|p| *p < first);
        let end = row.partition_point(|p| *p < first + t.k.len() as u64);
        (start..end).map(move |slot| (slot, (row[slot] - first) as usize))
    }
}

/// A tile of queries against a tile of keys. The queries are those of all heads that read one head
/// of keys: a token's are side by side, and so a tile's are the rows of one matrix.
struct Tile {
    sequence: usize,
    /// KV head that the tile's queries read.
    group: usize,
    /// Local times of the queries, and the position of the first of them.
    q: Range<usize>,
    q_position: usize,
    k: Range<usize>,
    k_position: usize,
}

impl Tile {
    /// The row of a query's token.
    fn token(&self, query: usize, batch: usize) -> usize {
        (self.q.start + query) * batch + self.sequence
    }
}

impl Core {
    fn scale<R: Real>(&self) -> R {
        R::of(self.score)
    }

    /// Calls `visit` with every tile of one KV head in which some query of ours sees a key of the owner.
    fn tiles(&self, [mine, theirs]: &Spans, batch: usize, group: usize, mut visit: impl FnMut(&Tile)) {
        let mut q_row = 0;
        for q_span in mine {
            for q_at in (0..q_span.len()).step_by(TILE) {
                let q_len = TILE.min(q_span.len() - q_at);
                let mut k_row = 0;
                for k_span in theirs {
                    for k_at in (0..k_span.len()).step_by(TILE) {
                        let k_len = TILE.min(k_span.len() - k_at);
                        let (q_position, k_position) = (q_span.start + q_at, k_span.start + k_at);
                        let too_late = k_position > q_position + q_len - 1;
                        let too_early = self.window.is_some_and(|w| k_position + k_len - 1 + w <= q_position);
                        if too_late || too_early {
                            continue;
                        }
                        for sequence in 0..batch {
                            let (q, k) = (q_row + q_at, k_row + k_at);
                            let (q, k) = (q..q + q_len, k..k + k_len);
                            visit(&Tile { sequence, group, q, q_position, k, k_position });
                        }
                    }
                    k_row += k_span.len();
                }
            }
            q_row += q_span.len();
        }
    }

    /// Query heads that read one KV head.
    fn shared(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Scaled scores of a tile's queries; what a query may not see is left at minus infinity.
    fn scores<R: Real>(
        &self,
        t: &Tile,
        batch: usize,
        queries: &[R],
        k: &Mat<R>,
        chosen: Option<&Chosen>,
        out: &mut Vec<R>,
    ) {
        let (rows, m) = (t.q.len() * self.shared(), t.k.len());
        out.resize(rows * m, R::ZERO);
        let keys = rows_of(k, t.k.start, m, t.sequence, batch, t.group * self.key, self.key);
        multiply(out, m, Write::Replace, self.scale(), View::new(queries, rows, self.key, self.key), keys.t());
        let hidden = R::of(f64::NEG_INFINITY);
        for (i, row) in out.chunks_exact_mut(m).enumerate() {
            let position = t.q_position + i / self.shared();
            let seen = (position + 1).saturating_sub(t.k_position).min(m);
            row[seen..].fill(hidden);
            if let Some(window) = self.window {
                let gone = (position + 1).saturating_sub(window).saturating_sub(t.k_position).min(m);
                row[..gone].fill(hidden);
            }
            if let Some(chosen) = chosen {
                let mut from = 0;
                for (_, at) in chosen.within(t.token(i / self.shared(), batch), t) {
                    row[from..at].fill(hidden);
                    from = at + 1;
                }
                row[from..].fill(hidden);
            }
        }
    }

    /// Adds the attention that a tile's queries give to their chosen keys, summed over heads, slot by
    /// slot.
    fn reading<R: Real>(&self, t: &Tile, batch: usize, chosen: &Chosen, shares: &[R], sum: &mut Mat<R>) {
        for (i, row) in shares.chunks_exact(t.k.len()).enumerate() {
            let token = t.token(i / self.shared(), batch);
            chosen.within(token, t).for_each(|(slot, at)| sum.row_mut(token)[slot] += row[at]);
        }
    }

    /// Output and the logarithm of each query's sum of exponentials.
    pub fn forward<R: Real>(
        &self,
        cx: &Cx<R>,
        [q, k, v]: [&Mat<R>; 3],
        chosen: Option<&Chosen>,
    ) -> Result<(Mat<R>, Mat<R>)> {
        let (rank, batch, shared) = (cx.rank, cx.sizes.sequences, self.shared());
        let mut out = Mat::zeros(q.rows, self.heads * self.value);
        let (mut tops, mut sums) = (Mat::zeros(q.rows, self.heads), Mat::zeros(q.rows, self.heads));
        tops.data.fill(R::of(f64::NEG_INFINITY));
        self.around(rank, k, v, |owner, k, v| {
            let spans = spans(rank, owner);
            let widths = [shared * self.value, shared, shared];
            let groups = by_group([&mut out, &mut tops, &mut sums], widths);
            team::each(groups, <[Vec<R>; 3]>::default, |room, (group, mut to)| {
                self.tiles(&spans, batch, group, |t| self.tile(t, batch, [q, k, v], chosen, room, &mut to));
            });
        })?;
        for (out, (top, sum)) in out.data.chunks_exact_mut(self.value).zip(tops.data.iter_mut().zip(&sums.data)) {
            let share = R::ONE / *sum;
            out.iter_mut().for_each(|o| *o *= share);
            *top += sum.ln();
        }
        Ok((out, tops))
    }

    /// A tile's part of the outputs, with the running statistics of its queries.
    fn tile<R: Real>(
        &self,
        t: &Tile,
        batch: usize,
        [q, k, v]: [&Mat<R>; 3],
        chosen: Option<&Chosen>,
        [queries, scores, part]: &mut [Vec<R>; 3],
        [out, tops, sums]: &mut [Stripe<R>; 3],
    ) {
        let (m, shared) = (t.k.len(), self.shared());
        let rows = t.q.len() * shared;
        gather(q, t, batch, shared * self.key, queries);
        self.scores(t, batch, queries, k, chosen, scores);
        for (i, rows) in scores.chunks_exact_mut(m * shared).enumerate() {
            let at = t.token(i, batch);
            soften(rows, m, tops.row_mut(at), sums.row_mut(at), out.row_mut(at));
        }
        part.resize(rows * self.value, R::ZERO);
        let values = rows_of(v, t.k.start, m, t.sequence, batch, t.group * self.value, self.value);
        multiply(part, self.value, Write::Replace, R::ONE, View::new(scores, rows, m, m), values);
        scatter(part, t, batch, shared * self.value, out);
    }

    /// Transpose of [`Core::forward`]; `kept` is what that had and gave.
    pub fn backward<R: Real>(&self, cx: &Cx<R>, kept: Kept<R>, dout: &Mat<R>) -> Result<Back<R>> {
        let (rank, batch) = (cx.rank, cx.sizes.sequences);
        let mut read = kept.chosen.map(|chosen| Mat::zeros(kept.q.rows, chosen.top_k));
        let along = self.along(kept.out, dout);
        let mut dq = Mat::zeros(kept.q.rows, kept.q.cols);
        let (mut own_k, mut own_v) = (Mat::zeros(kept.k.rows, kept.k.cols), Mat::zeros(kept.v.rows, kept.v.cols));
        self.around(rank, kept.k, kept.v, |owner, k, v| {
            let mut grads = [Mat::zeros(k.rows, k.cols), Mat::zeros(v.rows, v.cols)];
            let spans = spans(rank, owner);
            let [dk, dv] = &mut grads;
            let groups = by_group([&mut dq, dk, dv], [self.shared() * self.key, self.key, self.value]);
            let back = |room: &mut Room<R>, (group, mut to): Group<R>, read: &mut Option<Mat<R>>| {
                self.tiles(&spans, batch, group, |t| {
                    gather(kept.q, t, batch, self.shared() * self.key, &mut room.queries);
                    gather(dout, t, batch, self.shared() * self.value, &mut room.dout);
                    self.scores(t, batch, &room.queries, k, kept.chosen, &mut room.shares);
                    self.tile_back(t, batch, [k, v], [kept.log, &along], room, &mut to);
                    if let (Some(chosen), Some(sum)) = (kept.chosen, &mut *read) {
                        self.reading(t, batch, chosen, &room.shares, sum);
                    }
                });
            };
            if read.is_some() {
                // What queries read is summed over heads, one after the other.
                let mut room = Room::default();
                groups.into_iter().for_each(|group| back(&mut room, group, &mut read));
            } else {
                team::each(groups, Room::default, |room, group| back(room, group, &mut None));
            }
            let [dk, dv] = grads;
            self.go_home(rank, owner, (dk, dv), (&mut own_k, &mut own_v))
        })?;
        self.come_home(rank, &mut own_k, &mut own_v)?;
        Ok(Back { heads: [dq, own_k, own_v], read })
    }

    /// A tile's part of the gradients, from its scores.
    fn tile_back<R: Real>(
        &self,
        t: &Tile,
        batch: usize,
        [k, v]: [&Mat<R>; 2],
        [log, along]: [&Mat<R>; 2],
        room: &mut Room<R>,
        [dq, dk, dv]: &mut [Stripe<R>; 3],
    ) {
        let (shared, m) = (self.shared(), t.k.len());
        let n = t.q.len() * shared;
        let stat = |of: &Mat<R>, i: usize| {
            of.row((t.q.start + i / shared) * batch + t.sequence)[t.group * shared + i % shared]
        };
        for (i, row) in room.shares.chunks_exact_mut(m).enumerate() {
            let log = stat(log, i);
            wide(|| row.iter_mut().for_each(|s| *s = (*s - log).exp()));
        }
        let d = View::new(&room.dout, n, self.value, self.value);
        let first = t.k.start * batch + t.sequence;
        dv.multiply(first, batch, Write::Add, R::ONE, View::new(&room.shares, n, m, m).t(), d);
        room.dscores.resize(n * m, R::ZERO);
        let values = rows_of(v, t.k.start, m, t.sequence, batch, t.group * self.value, self.value);
        multiply(&mut room.dscores, m, Write::Replace, R::ONE, d, values.t());
        for (i, (row, p)) in room.dscores.chunks_exact_mut(m).zip(room.shares.chunks_exact(m)).enumerate() {
            let along = stat(along, i);
            wide(|| row.iter_mut().zip(p).for_each(|(s, p)| *s = (*s - along) * *p));
        }
        let ds = View::new(&room.dscores, n, m, m);
        room.dqueries.resize(n * self.key, R::ZERO);
        let keys = rows_of(k, t.k.start, m, t.sequence, batch, t.group * self.key, self.key);
        multiply(&mut room.dqueries, self.key, Write::Replace, self.scale(), ds, keys);
        scatter(&room.dqueries, t, batch, shared * self.key, dq);
        let queries = View::new(&room.queries, n, self.key, self.key);
        dk.multiply(first, batch, Write::Add, self.scale(), ds.t(), queries);
    }

    /// Dot product of each query's output with its gradient: the term that softmax's backward subtracts.
    fn along<R: Real>(&self, out: &Mat<R>, dout: &Mat<R>) -> Mat<R> {
        let heads = out.data.chunks_exact(self.value).zip(dout.data.chunks_exact(self.value));
        Mat::of(self.heads, heads.map(|(o, d)| dot(o, d)).collect())
    }

    /// Passes keys and values round the context ring and calls `visit` with each rank's, our own first.
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

    /// Adds the gradients of our keys and values that the other ranks of the ring computed, in rank
    /// order.
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

/// What attention's backward gives.
pub(crate) struct Back<R> {
    /// Gradients of queries, keys and values.
    pub heads: [Mat<R>; 3],
    /// With an indexer: how much attention this rank's heads gave each chosen key.
    pub read: Option<Mat<R>>,
}

/// What attention's backward reads.
pub(crate) struct Kept<'a, R> {
    pub q: &'a Mat<R>,
    pub k: &'a Mat<R>,
    pub v: &'a Mat<R>,
    pub out: &'a Mat<R>,
    pub log: &'a Mat<R>,
    pub chosen: Option<&'a Chosen>,
}

/// Buffers of one tile in backward, reused from tile to tile.
#[derive(Default)]
struct Room<R> {
    queries: Vec<R>,
    dout: Vec<R>,
    shares: Vec<R>,
    dscores: Vec<R>,
    dqueries: Vec<R>,
}

/// Turns one token's scores into exponentials relative to the running maximum of each head, and rescales
/// what was summed under an older maximum.
fn soften<R: Real>(scores: &mut [R], m: usize, tops: &mut [R], sums: &mut [R], outs: &mut [R]) {
    let lowest = R::of(f64::NEG_INFINITY);
    let width = outs.len() / tops.len();
    let stats = tops.iter_mut().zip(sums).zip(outs.chunks_exact_mut(width));
    for (row, ((top, sum), out)) in scores.chunks_exact_mut(m).zip(stats) {
        let old = *top;
        *top = most(row, old);
        if *top == lowest {
            row.fill(R::ZERO);
            continue;
        }
        let shrink = (old - *top).exp();
        *sum = *sum * shrink + exp_over(row, *top);
        out.iter_mut().for_each(|o| *o *= shrink);
    }
}

/// Copies `width` columns of a tile's tokens (queries, or their gradients) into one dense buffer.
fn gather<R: Real>(from: &Mat<R>, t: &Tile, batch: usize, width: usize, to: &mut Vec<R>) {
    to.clear();
    let columns = t.group * width..(t.group + 1) * width;
    t.q.clone().for_each(|s| to.extend_from_slice(&from.row(s * batch + t.sequence)[columns.clone()]));
}

/// Transpose of [`gather`], into the columns of the tile's group.
fn scatter<R: Real>(from: &[R], t: &Tile, batch: usize, width: usize, to: &mut Stripe<R>) {
    for (s, part) in t.q.clone().zip(from.chunks_exact(width)) {
        axpy(to.row_mut(s * batch + t.sequence), R::ONE, part);
    }
}

/// Columns of three matrices that belong to a head of keys, with its number.
type Group<'a, R> = (usize, [Stripe<'a, R>; 3]);

/// Columns of three matrices by head of keys.
fn by_group<'a, R: Real>(of: [&'a mut Mat<R>; 3], widths: [usize; 3]) -> Vec<Group<'a, R>> {
    let [a, b, c] = of;
    let (a, b, c) = (Stripe::all(a, widths[0]), Stripe::all(b, widths[1]), Stripe::all(c, widths[2]));
    a.into_iter().zip(b).zip(c).map(|((a, b), c)| [a, b, c]).enumerate().collect()
}

/// Stretches of time: of our queries, and of an owner's keys.
type Spans = [Vec<Range<usize>>; 2];

fn spans(rank: &Rank, owner: usize) -> Spans {
    [rank.timeline.spans(rank.on(Axis::Cp)), rank.timeline.spans(owner)]
}

/// What a visit returns: `()` or a `Result`, so that visits that cannot fail need no `Ok(())`.
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

/// Rows of `len` times of one sequence from local time `start`, columns `column..column + width`.
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
