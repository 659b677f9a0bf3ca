//! Messages from each span of the sequence to the next: values in forward, their gradients the other way
//! in backward. The first span gets zeros.

use crate::mat::Mat;
use crate::rank::Rank;
use crate::real::Real;
use comm::{Call, Result};
use diag::{Blame, Finding};
use layout::Axis;

fn owner(rank: &Rank, part: usize) -> usize {
    rank.cp.ranks()[rank.timeline.owner(part)]
}

/// What the span before sent.
pub(crate) fn from_before<R: Real>(rank: &Rank, part: usize, call: Call, len: usize) -> Result<Vec<R>> {
    if part == 0 { Ok(vec![R::ZERO; len]) } else { rank.comm.receive(owner(rank, part - 1), call, len) }
}

/// Sends something to the span after.
pub(crate) fn to_after<R: Real>(rank: &Rank, part: usize, call: Call, values: Vec<R>) -> Result<()> {
    if part + 1 == rank.timeline.parts() { Ok(()) } else { rank.comm.send(owner(rank, part + 1), call, values) }
}

/// Transpose of [`to_after`]: the gradient of what was sent.
pub(crate) fn from_after<R: Real>(rank: &Rank, part: usize, call: Call, len: usize) -> Result<Vec<R>> {
    if part + 1 == rank.timeline.parts() {
        Ok(vec![R::ZERO; len])
    } else {
        rank.comm.receive(owner(rank, part + 1), call, len)
    }
}

/// Transpose of [`from_before`].
pub(crate) fn to_before<R: Real>(rank: &Rank, part: usize, call: Call, values: Vec<R>) -> Result<()> {
    if part == 0 { Ok(()) } else { rank.comm.send(owner(rank, part - 1), call, values) }
}

const TAIL: Call = Call::new("cp", "tails of the convolution");

/// For every span this rank holds, the `taps` times before it: one matrix, span after span.
pub(crate) fn tails<R: Real>(rank: &Rank, x: &Mat<R>, batch: usize, taps: usize) -> Result<Mat<R>> {
    let parts = rank.timeline.held(rank.on(Axis::Cp));
    let (len, rows) = (x.rows / parts.len(), taps * batch);
    if rows > len {
        let message = format!("a part of {} tokens is shorter than the {taps} a convolution looks back", len / batch);
        let cut = rank.timeline.parts();
        let seq = format!("sequences of {} tokens or more: --seq", taps * cut);
        let (object, hint) = if cut > 1 { ("cp", format!("ask for less cp, or {seq}")) } else { ("seq", seq) };
        return Err(Finding::error("runtime/short-part", Blame::Layout, object, message).hint(hint));
    }
    for (i, &part) in parts.iter().enumerate() {
        let end = (i + 1) * len * x.cols;
        to_after(rank, part, TAIL, x.data[end - rows * x.cols..end].to_vec())?;
    }
    let mut data = Vec::with_capacity(parts.len() * rows * x.cols);
    for &part in &parts {
        data.extend(from_before::<R>(rank, part, TAIL, rows * x.cols)?);
    }
    Ok(Mat { rows: parts.len() * rows, cols: x.cols, data })
}

/// Transpose of [`tails`]: adds the gradients of what other spans read of ours to `dx`.
pub(crate) fn tails_back<R: Real>(rank: &Rank, dtails: &Mat<R>, dx: &mut Mat<R>) -> Result<()> {
    let parts = rank.timeline.held(rank.on(Axis::Cp));
    let (len, rows) = (dx.rows / parts.len(), dtails.rows / parts.len());
    let width = rows * dx.cols;
    for (i, &part) in parts.iter().enumerate() {
        to_before(rank, part, TAIL, dtails.data[i * width..(i + 1) * width].to_vec())?;
    }
    for (i, &part) in parts.iter().enumerate() {
        let came = from_after::<R>(rank, part, TAIL, width)?;
        let end = (i + 1) * len * dx.cols;
        dx.data[end - width..end].iter_mut().zip(came).for_each(|(a, b)| *a += b);
    }
    Ok(())
}
