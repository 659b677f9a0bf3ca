//! Mamba-2's recurrence a chunk at a time, in products of matrices: within the chunk outputs are a
//! masked product of C, B and x; the chunk before enters through its state.
//!
//! `h ← exp(a·dt) h + dt x⊗B`, `y = h C + D x` (Dao and Gu, "Transformers are SSMs", section 6).

use super::scan::{At, Cell, Rows};
use crate::mat::{Mat, axpy, dot};
use crate::product::{Stripe, View, Write, multiply};
use crate::real::Real;
use crate::wide::{total, wide};
use std::ops::Range;

/// Inputs of a microbatch, and their gradients.
pub(crate) struct Ssd<R> {
    pub head: usize,
    pub state: usize,
    pub inner: usize,
    pub grouped: usize,
    /// Heads of a group.
    pub per_group: usize,
    pub xbc: Mat<R>,
    pub raw: Mat<R>,
    pub step: Mat<R>,
    pub decay: Vec<R>,
    pub skip: Vec<R>,
    pub dxbc: Mat<R>,
    pub dstep: Mat<R>,
    pub ddecay: Vec<R>,
    pub dskip: Vec<R>,
}

/// Terms of a chunk of one head that do not depend on the state before it.
struct Chunk<R> {
    /// `dt · x` of every token.
    u: Vec<R>,
    /// `C Bᵀ` under the decays.
    mix: Vec<R>,
    /// Decay from the start of the chunk to each token, and from each token to the end.
    since: Vec<R>,
    until: Vec<R>,
}

/// Gradients of a chunk of one head.
pub(crate) struct Back<R> {
    /// Of `dt · x`.
    du: Vec<R>,
    db: Vec<R>,
    dc: Vec<R>,
    /// Gradients of the running sums of decays.
    dsums: Vec<R>,
}

/// The rows of a view, each multiplied by its factor.
fn scaled<R: Real>(from: View<R>, by: &[R]) -> Vec<R> {
    from.lines().zip(by).flat_map(|(row, s)| row.iter().map(move |v| *v * *s)).collect()
}

impl<R: Real> Ssd<R> {
    /// Columns of a head's x, B and C.
    fn places(&self, head: usize) -> [Range<usize>; 3] {
        let b = self.inner + head / self.per_group * self.state;
        let c = b + self.grouped;
        [head * self.head..(head + 1) * self.head, b..b + self.state, c..c + self.state]
    }

    /// x, B and C of a chunk.
    fn inputs(&self, rows: Rows, head: usize) -> [View<'_, R>; 3] {
        self.places(head).map(|columns| rows.view(&self.xbc, columns))
    }

    /// `exp` of the decay from token `s` to token `t`, zero where `s > t`; and the running sums.
    fn decays(&self, rows: Rows, head: usize) -> (Vec<R>, Vec<R>) {
        let mut sum = R::ZERO;
        let sums: Vec<R> = (rows.iter())
            .map(|row| {
                sum += self.decay[head] * self.step.row(row)[head];
                sum
            })
            .collect();
        let mut kept = vec![R::ZERO; rows.len * rows.len];
        for (t, row) in kept.chunks_exact_mut(rows.len).enumerate() {
            let now = sums[t];
            wide(|| row[..=t].iter_mut().zip(&sums).for_each(|(k, s)| *k = (now - *s).exp()));
        }
        (sums, kept)
    }

    /// The chunk's own terms; the decays in `kept` are overwritten by them.
    fn chunk(&self, rows: Rows, head: usize, sums: &[R], mut kept: Vec<R>, room: &mut Vec<R>) -> Chunk<R> {
        let [x, b, c] = self.inputs(rows, head);
        room.resize(kept.len().max(room.len()), R::ZERO);
        let scores = &mut room[..kept.len()];
        multiply(scores, rows.len, Write::Replace, R::ONE, c, b.t());
        wide(|| kept.iter_mut().zip(scores.iter()).for_each(|(k, s)| *k *= *s));
        let steps: Vec<R> = rows.iter().map(|row| self.step.row(row)[head]).collect();
        let last = sums[rows.len - 1];
        Chunk {
            u: scaled(x, &steps),
            mix: kept,
            since: sums.iter().map(|s| s.exp()).collect(),
            until: sums.iter().map(|s| (last - *s).exp()).collect(),
        }
    }
}

impl<R: Real> Cell<R> for Ssd<R> {
    type Back = Back<R>;

    fn heads(&self) -> usize {
        self.step.cols
    }

    fn state(&self) -> usize {
        self.head * self.state
    }

    fn width(&self) -> usize {
        self.head
    }

    fn run(&self, rows: Rows, head: usize, state: &mut [R], out: &mut Stripe<R>, room: &mut Vec<R>) {
        let (len, width, n) = (rows.len, self.head, self.state);
        let (sums, kept) = self.decays(rows, head);
        let chunk = self.chunk(rows, head, &sums, kept, room);
        let [x, b, c] = self.inputs(rows, head);
        let u = View::new(&chunk.u, len, width, width);
        let read = scaled(c, &chunk.since);
        out.multiply(rows.first, rows.stride, Write::Replace, R::ONE, View::new(&chunk.mix, len, len, len), u);
        let before = View::new(state, width, n, n);
        out.multiply(rows.first, rows.stride, Write::Add, R::ONE, View::new(&read, len, n, n), before.t());
        let brought = scaled(u, &chunk.until);
        let whole = chunk.since[len - 1];
        state.iter_mut().for_each(|h| *h *= whole);
        multiply(state, n, Write::Add, R::ONE, View::new(&brought, len, width, width).t(), b);
        for (row, x) in rows.iter().zip(x.lines()) {
            axpy(out.row_mut(row), self.skip[head], x);
        }
    }

    fn back(&self, at: At, before: &[R], dout: &Mat<R>, dstate: &mut [R], room: &mut Vec<R>) -> Back<R> {
        let At { rows, head } = at;
        let (len, width, n) = (rows.len, self.head, self.state);
        let (sums, mut dscores) = self.decays(rows, head);
        let chunk = self.chunk(rows, head, &sums, dscores.clone(), room);
        let [_, b, c] = self.inputs(rows, head);
        let dy = rows.view(dout, head * width..(head + 1) * width);
        let (u, mix) = (View::new(&chunk.u, len, width, width), View::new(&chunk.mix, len, len, len));
        let after = dstate.to_vec();
        let after = View::new(&after, width, n, n);
        let fresh = |size: usize| vec![R::ZERO; size];

        // Of dt · x: what the state was given, then what the chunk's own outputs say.
        let mut du = fresh(len * width);
        multiply(&mut du, width, Write::Replace, R::ONE, b, after.t());
        let given: Vec<R> = (du.chunks_exact_mut(width).zip(u.lines()).zip(&chunk.until))
            .map(|((d, u), left)| {
                d.iter_mut().for_each(|d| *d *= *left);
                dot(d, u)
            })
            .collect();
        multiply(&mut du, width, Write::Add, R::ONE, mix.t(), dy);

        // Gradients of the decays: a decay scales what passes from `s` to `t`.
        let scores = &mut room[..len * len];
        multiply(scores, len, Write::Replace, R::ONE, dy, u.t());
        wide(|| dscores.iter_mut().zip(scores.iter()).for_each(|(k, s)| *k *= *s));
        let mut dsums: Vec<R> = given.iter().map(|g| -*g).collect();
        for (t, (d, mix)) in scores.chunks_exact_mut(len).zip(chunk.mix.chunks_exact(len)).enumerate() {
            let through = wide(|| {
                d[..=t].iter_mut().zip(mix).for_each(|(d, m)| *d *= *m);
                dsums[..=t].iter_mut().zip(d.iter()).for_each(|(sum, d)| *sum -= *d);
                total(&d[..=t])
            });
            dsums[t] += through;
        }

        // Of C and B, and of the state before.
        let (mut dc, mut db) = (fresh(len * n), fresh(len * n));
        multiply(&mut dc, n, Write::Replace, R::ONE, dy, View::new(before, width, n, n));
        for (t, (dc, c)) in dc.chunks_exact_mut(n).zip(c.lines()).enumerate() {
            dc.iter_mut().for_each(|d| *d *= chunk.since[t]);
            dsums[t] += dot(dc, c);
        }
        let dmix = View::new(&dscores, len, len, len);
        multiply(&mut dc, n, Write::Add, R::ONE, dmix, b);
        let brought = scaled(u, &chunk.until);
        multiply(&mut db, n, Write::Replace, R::ONE, View::new(&brought, len, width, width), after);
        multiply(&mut db, n, Write::Add, R::ONE, dmix.t(), c);
        let whole = chunk.since[len - 1];
        dsums[len - 1] += whole * dot(dstate, before) + given.iter().copied().sum();
        dstate.iter_mut().for_each(|d| *d *= whole);
        let read = scaled(c, &chunk.since);
        multiply(dstate, n, Write::Add, R::ONE, dy.t(), View::new(&read, len, n, n));
        Back { du, db, dc, dsums }
    }

    fn add(&mut self, at: At, back: Back<R>, dout: &Mat<R>, _: &mut [R]) {
        let (At { rows, head }, width, n) = (at, self.head, self.state);
        let x = rows.view(&self.xbc, head * width..(head + 1) * width);
        let dy = rows.view(dout, head * width..(head + 1) * width);
        let own: Vec<R> = back.du.chunks_exact(width).zip(x.lines()).map(|(d, x)| dot(d, x)).collect();
        let skipped = dy.lines().zip(x.lines()).map(|(d, x)| dot(d, x)).sum::<R>();
        self.dskip[head] += skipped;
        self.steps_back(rows, head, &own, &back.dsums);
        let [xs, bs, cs] = self.places(head);
        for (t, row) in rows.iter().enumerate() {
            let (dt, grads) = (self.step.row(row)[head], self.dxbc.row_mut(row));
            axpy(&mut grads[xs.clone()], dt, &back.du[t * width..(t + 1) * width]);
            axpy(&mut grads[xs.clone()], self.skip[head], dy.line(t));
            axpy(&mut grads[bs.clone()], R::ONE, &back.db[t * n..(t + 1) * n]);
            axpy(&mut grads[cs.clone()], R::ONE, &back.dc[t * n..(t + 1) * n]);
        }
    }
}

impl<R: Real> Ssd<R> {
    /// Gradients of the steps and of the decay rate: a running sum's gradient goes to all its terms.
    fn steps_back(&mut self, rows: Rows, head: usize, own: &[R], dsums: &[R]) {
        let mut later = R::ZERO;
        for (t, row) in rows.iter().enumerate().rev() {
            later += dsums[t];
            self.ddecay[head] += later * self.step.row(row)[head];
            self.dstep.row_mut(row)[head] += own[t] + later * self.decay[head];
        }
    }
}
