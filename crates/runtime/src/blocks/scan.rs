//! Recurrences over time. A cell says what one step does to a head's state and the step's
//! transpose; this file runs it over a microbatch, keeps states at the borders of chunks only,
//! computes those between again in backward, and hands the state from part to part of the
//! timeline where the context axis cuts it.

use super::Cx;
use crate::mat::Mat;
use crate::real::Real;
use crate::saved::Sizes;
use crate::split::time;
use comm::{Call, Result};
use layout::Axis;

const STATE: Call = Call::new("cp", "recurrent state handed on");

/// One step of one head. Rows are tokens of the microbatch.
pub(crate) trait Cell<R: Real> {
    fn heads(&self) -> usize;
    /// State of one head.
    fn state(&self) -> usize;
    /// Output of one head.
    fn width(&self) -> usize;
    /// Moves the state over a token and writes the token's output.
    fn step(&self, row: usize, head: usize, state: &mut [R], out: &mut [R]);
    /// Transpose of `step`: turns the gradient of the state after into that of the state before,
    /// and adds gradients of inputs to the cell's own.
    fn back(&mut self, row: usize, head: usize, states: [&[R]; 2], dout: &[R], dstate: &mut [R]);
}

/// Which times a rank scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// All of them.
    Whole,
    /// Its parts; the state is handed on between them.
    Parts,
}

/// How a recurrence is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    /// Tokens between kept states.
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

    /// Output of every token, and kept states: chunk by chunk, sequence by sequence, head by head.
    pub fn forward<R: Real>(&self, cx: &Cx<R>, cell: &impl Cell<R>) -> Result<(Mat<R>, Mat<R>)> {
        let (batch, heads, len) = (cx.sizes.sequences, cell.heads(), cell.state());
        let spans = self.spans(&cx.sizes);
        let parts = self.parts(cx);
        let mut out = Mat::zeros(spans.iter().sum::<usize>() * batch, heads * cell.width());
        let borders: usize = spans.iter().map(|span| span.div_ceil(self.chunk)).sum();
        let mut kept = Vec::with_capacity(borders * batch * heads * len);
        let mut first = 0;
        for (i, span) in spans.iter().enumerate() {
            let size = batch * heads * len;
            let mut states: Vec<R> = match &parts {
                Some(parts) => time::from_before(cx.rank, parts[i], STATE, size)?,
                None => vec![R::ZERO; size],
            };
            for start in (0..*span).step_by(self.chunk) {
                kept.extend_from_slice(&states);
                for (at, state) in states.chunks_exact_mut(len).enumerate() {
                    let (sequence, head) = (at / heads, at % heads);
                    for t in start..(start + self.chunk).min(*span) {
                        let row = (first + t) * batch + sequence;
                        let columns = head * cell.width()..(head + 1) * cell.width();
                        cell.step(row, head, state, &mut out.row_mut(row)[columns]);
                    }
                }
            }
            if let Some(parts) = &parts {
                time::to_after(cx.rank, parts[i], STATE, states)?;
            }
            first += span;
        }
        Ok((out, Mat::of(len, kept)))
    }

    /// Runs the cell's transposes backwards in time.
    pub fn backward<R: Real>(&self, cx: &Cx<R>, cell: &mut impl Cell<R>, kept: &Mat<R>, dout: &Mat<R>) -> Result<()> {
        let (batch, heads, len) = (cx.sizes.sequences, cell.heads(), cell.state());
        let spans = self.spans(&cx.sizes);
        let parts = self.parts(cx);
        let size = batch * heads * len;
        let mut border = kept.data.len();
        let mut first: usize = spans.iter().sum();
        let mut between = vec![R::ZERO; (self.chunk + 1) * len];
        let mut unused = vec![R::ZERO; cell.width()];
        for (i, span) in spans.iter().enumerate().rev() {
            first -= span;
            let mut dstates: Vec<R> = match &parts {
                Some(parts) => time::from_after(cx.rank, parts[i], STATE, size)?,
                None => vec![R::ZERO; size],
            };
            for start in (0..*span).step_by(self.chunk).rev() {
                border -= size;
                let times = start..(start + self.chunk).min(*span);
                for (at, dstate) in dstates.chunks_exact_mut(len).enumerate() {
                    let (sequence, head) = (at / heads, at % heads);
                    let row = |t: usize| (first + t) * batch + sequence;
                    between[..len].copy_from_slice(&kept.data[border + at * len..border + (at + 1) * len]);
                    for (n, t) in times.clone().enumerate() {
                        let (before, after) = between.split_at_mut((n + 1) * len);
                        after[..len].copy_from_slice(&before[n * len..]);
                        cell.step(row(t), head, &mut after[..len], &mut unused);
                    }
                    for (n, t) in times.clone().enumerate().rev() {
                        let states = [&between[n * len..(n + 1) * len], &between[(n + 1) * len..(n + 2) * len]];
                        let columns = head * cell.width()..(head + 1) * cell.width();
                        cell.back(row(t), head, states, &dout.row(row(t))[columns], dstate);
                    }
                }
            }
            if let Some(parts) = &parts {
                time::to_before(cx.rank, parts[i], STATE, dstates)?;
            }
        }
        Ok(())
    }
}
