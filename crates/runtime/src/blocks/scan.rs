//! Recurrences over time. A cell says what a chunk of tokens, or one token, does to a head's state, and
//! the transpose of it. This file runs a cell over a microbatch and keeps states at chunk borders only;
//! backward recomputes those in between. Where a rank holds spans of the sequence, it receives the state
//! at the start of each and sends it on at the end.

use super::Cx;
use crate::mat::{Mat, axpy};
use crate::product::{Stripe, View};
use crate::real::Real;
use crate::saved::Sizes;
use crate::split::time;
use crate::team;
use comm::{Call, Result};
use layout::Axis;
use std::ops::Range;

const STATE: Call = Call::new("cp", "recurrent state handed on");

/// Tokens of one sequence, as rows of the microbatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub first: usize,
    pub stride: usize,
    pub len: usize,
}

impl Rows {
    pub fn iter(self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        (0..self.len).map(move |t| self.first + t * self.stride)
    }

    /// Some columns of them.
    pub fn view<R: Real>(self, of: &Mat<R>, columns: Range<usize>) -> View<'_, R> {
        View::new(&of.data[self.first * of.cols + columns.start..], self.len, columns.len(), self.stride * of.cols)
    }
}

/// A recurrence over a chunk of one head. `room` is scratch that calls reuse.
pub(crate) trait Cell<R: Real>: Sync {
    /// What [`Cell::back`] computes in parallel and [`Cell::add`] adds up.
    type Back: Send;
    fn heads(&self) -> usize;
    /// Elements of one head's state.
    fn state(&self) -> usize;
    /// Columns of one head's output.
    fn width(&self) -> usize;
    /// Advances the state over the tokens and writes their outputs into the head's columns.
    fn run(&self, rows: Rows, head: usize, state: &mut [R], out: &mut Stripe<R>, room: &mut Vec<R>);
    /// The part of the transpose that touches nothing heads share, from state `before`; may turn the
    /// gradient of the state after the chunk into that of the state before.
    fn back(&self, at: At, before: &[R], dout: &Mat<R>, dstate: &mut [R], room: &mut Vec<R>) -> Self::Back;
    /// The rest of the transpose: adds to the gradients of inputs that heads share. Called head by head,
    /// in order.
    fn add(&mut self, at: At, back: Self::Back, dout: &Mat<R>, dstate: &mut [R]);
}

/// A chunk of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub rows: Rows,
    pub head: usize,
}

/// A recurrence given token by token.
pub(crate) trait Token<R: Real>: Sync {
    fn heads(&self) -> usize;
    /// Elements of one head's state.
    fn state(&self) -> usize;
    /// Columns of one head's output.
    fn width(&self) -> usize;
    /// Advances the state over a token and writes its output.
    fn step(&self, row: usize, head: usize, state: &mut [R], out: &mut [R]);
    /// Transpose of `step`: turns the gradient of the state after the token into that of the state
    /// before, and adds to the gradients of inputs.
    fn back(&mut self, row: usize, head: usize, states: [&[R]; 2], dout: &[R], dstate: &mut [R]);
}

/// Runs a [`Token`] as a [`Cell`].
pub(crate) struct ByToken<T>(pub T);

impl<R: Real, T: Token<R>> Cell<R> for ByToken<T> {
    type Back = Vec<R>;

    fn heads(&self) -> usize {
        self.0.heads()
    }

    fn state(&self) -> usize {
        self.0.state()
    }

    fn width(&self) -> usize {
        self.0.width()
    }

    fn run(&self, rows: Rows, head: usize, state: &mut [R], out: &mut Stripe<R>, _: &mut Vec<R>) {
        rows.iter().for_each(|row| self.0.step(row, head, state, out.row_mut(row)));
    }

    /// States before, between and after the tokens.
    fn back(&self, at: At, before: &[R], _: &Mat<R>, _: &mut [R], room: &mut Vec<R>) -> Vec<R> {
        let (At { rows, head }, len) = (at, self.0.state());
        room.resize(self.0.width().max(room.len()), R::ZERO);
        let unused = &mut room[..self.0.width()];
        let mut between = vec![R::ZERO; (rows.len + 1) * len];
        between[..len].copy_from_slice(before);
        for (n, row) in rows.iter().enumerate() {
            between.copy_within(n * len..(n + 1) * len, (n + 1) * len);
            self.0.step(row, head, &mut between[(n + 1) * len..(n + 2) * len], unused);
        }
        between
    }

    fn add(&mut self, at: At, between: Vec<R>, dout: &Mat<R>, dstate: &mut [R]) {
        let (At { rows, head }, len, width) = (at, self.0.state(), self.0.width());
        for (n, row) in rows.iter().enumerate().rev() {
            let states = [&between[n * len..(n + 1) * len], &between[(n + 1) * len..(n + 2) * len]];
            self.0.back(row, head, states, &dout.row(row)[head * width..(head + 1) * width], dstate);
        }
    }
}

/// Which part of the sequence a rank scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// All of it, for its share of heads.
    Whole,
    /// Its own spans, for all heads; ranks hand the state on.
    Parts,
}

/// How a recurrence is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    /// Tokens from one kept state to the next.
    pub chunk: usize,
    pub times: Times,
}

impl Scan {
    fn spans(&self, sizes: &Sizes) -> Vec<usize> {
        match self.times {
            Times::Whole => vec![sizes.sequence],
            Times::Parts => sizes.spans(),
        }
    }

    fn parts<R: Real>(&self, cx: &Cx<R>) -> Option<Vec<usize>> {
        (self.times == Times::Parts).then(|| cx.rank.timeline.held(cx.rank.on(Axis::Cp)))
    }

    /// The rows of the chunk that begins at `start` of a stretch whose first time is `first`.
    fn rows(&self, first: usize, start: usize, span: usize, batch: usize, sequence: usize) -> Rows {
        Rows { first: (first + start) * batch + sequence, stride: batch, len: self.chunk.min(span - start) }
    }

    /// Output of every token, and the kept states, by chunk, sequence and head.
    pub fn forward<R: Real>(&self, cx: &Cx<R>, cell: &impl Cell<R>) -> Result<(Mat<R>, Mat<R>)> {
        self.forward_with(cx, cell, None)
    }

    /// The same where at every chunk border the state becomes the mean of its own and of the one in
    /// `below`, which is shaped like the kept states.
    pub fn forward_with<R: Real>(
        &self,
        cx: &Cx<R>,
        cell: &impl Cell<R>,
        below: Option<&Mat<R>>,
    ) -> Result<(Mat<R>, Mat<R>)> {
        let (batch, heads, len) = (cx.sizes.sequences, cell.heads(), cell.state());
        let spans = self.spans(&cx.sizes);
        let parts = self.parts(cx);
        let mut out = Mat::zeros(spans.iter().sum::<usize>() * batch, heads * cell.width());
        let borders: usize = spans.iter().map(|span| span.div_ceil(self.chunk)).sum();
        let mut kept = Mat::zeros(borders * batch, heads * len);
        let (mut first, mut border) = (0, 0);
        for (i, span) in spans.iter().enumerate() {
            let size = batch * heads * len;
            let states: Vec<R> = match &parts {
                Some(parts) => time::from_before(cx.rank, parts[i], STATE, size)?,
                None => vec![R::ZERO; size],
            };
            let mut states = Mat::of(heads * len, states);
            for start in (0..*span).step_by(self.chunk) {
                let at = border * size..(border + 1) * size;
                if let Some(below) = below {
                    let theirs = &below.data[at.clone()];
                    states.data.iter_mut().zip(theirs).for_each(|(own, below)| *own = (*own + *below) * R::of(0.5));
                }
                kept.data[at].copy_from_slice(&states.data);
                border += 1;
                let heads = Stripe::all(&mut states, len).into_iter().zip(Stripe::all(&mut out, cell.width()));
                team::each(heads.enumerate().collect(), Vec::new, |room, (head, (mut states, mut out))| {
                    for sequence in 0..batch {
                        let rows = self.rows(first, start, *span, batch, sequence);
                        cell.run(rows, head, states.row_mut(sequence), &mut out, room);
                    }
                });
            }
            if let Some(parts) = &parts {
                time::to_after(cx.rank, parts[i], STATE, states.data)?;
            }
            first += span;
        }
        Ok((out, Mat::of(len, kept.data)))
    }

    /// Runs the cell's transposes backwards in time.
    pub fn backward<R: Real>(&self, cx: &Cx<R>, cell: &mut impl Cell<R>, kept: &Mat<R>, dout: &Mat<R>) -> Result<()> {
        self.backward_with(cx, cell, kept, dout, None, None)
    }

    /// Transpose of [`Scan::forward_with`]: `dabove` is the gradient of the kept states from the R block
    /// above, and the gradient of the states below is written to `dbelow`.
    pub fn backward_with<R: Real>(
        &self,
        cx: &Cx<R>,
        cell: &mut impl Cell<R>,
        kept: &Mat<R>,
        dout: &Mat<R>,
        dabove: Option<&Mat<R>>,
        mut dbelow: Option<&mut Mat<R>>,
    ) -> Result<()> {
        let (batch, heads, len) = (cx.sizes.sequences, cell.heads(), cell.state());
        let spans = self.spans(&cx.sizes);
        let parts = self.parts(cx);
        let size = batch * heads * len;
        let mut border = kept.data.len();
        let mut first: usize = spans.iter().sum();
        let mut room = Vec::new();
        for (i, span) in spans.iter().enumerate().rev() {
            first -= span;
            let mut dstates: Vec<R> = match &parts {
                Some(parts) => time::from_after(cx.rank, parts[i], STATE, size)?,
                None => vec![R::ZERO; size],
            };
            for start in (0..*span).step_by(self.chunk).rev() {
                border -= size;
                let before = &kept.data[border..border + size];
                let at = |i: usize| At { rows: self.rows(first, start, *span, batch, i / heads), head: i % heads };
                chunk_back(cell, at, before, dout, dstates.chunks_exact_mut(len), &mut room);
                if let Some(dabove) = dabove {
                    axpy(&mut dstates, R::ONE, &dabove.data[border..border + size]);
                }
                if let Some(dbelow) = &mut dbelow {
                    dstates.iter_mut().for_each(|d| *d *= R::of(0.5));
                    dbelow.data[border..border + size].copy_from_slice(&dstates);
                }
            }
            if let Some(parts) = &parts {
                time::to_before(cx.rank, parts[i], STATE, dstates)?;
            }
        }
        Ok(())
    }
}

/// Transposes of one chunk of every sequence and head: [`Cell::back`] in parallel, then [`Cell::add`] in
/// a fixed order, so that results do not depend on the number of threads.
fn chunk_back<'a, R: Real, C: Cell<R>>(
    cell: &mut C,
    at: impl Fn(usize) -> At + Sync + Send,
    before: &[R],
    dout: &Mat<R>,
    dstates: std::slice::ChunksExactMut<'a, R>,
    room: &mut Vec<R>,
) {
    let len = cell.state();
    let before = |i: usize| &before[i * len..(i + 1) * len];
    if team::threads() == 1 {
        for (i, dstate) in dstates.enumerate() {
            let back = cell.back(at(i), before(i), dout, dstate, room);
            cell.add(at(i), back, dout, dstate);
        }
        return;
    }
    let shared: &C = cell;
    let backs = team::map(dstates.enumerate().collect(), Vec::new, |room, (i, dstate): (usize, &'a mut [R])| {
        (shared.back(at(i), before(i), dout, dstate, room), dstate)
    });
    backs.into_iter().enumerate().for_each(|(i, (back, dstate))| cell.add(at(i), back, dout, dstate));
}
