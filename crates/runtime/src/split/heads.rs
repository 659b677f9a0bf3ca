//! Exchange over the context axis for mixers whose heads divide over it: each rank gives its spans of
//! all heads and gets the whole sequence of 1/cp of the heads. The way back is the transpose.

use crate::blocks::Cx;
use crate::mat::Mat;
use crate::params::Id;
use crate::rank::Rank;
use crate::real::Real;
use comm::{Call, Result};
use layout::Axis;
use std::ops::Range;

const IN: Call = Call::new("cp", "time traded for heads");
const OUT: Call = Call::new("cp", "heads traded for time");

/// Column ranges of a rank's share: the same fraction of every segment.
pub(crate) fn share(segments: &[usize], ranks: usize, place: usize) -> Vec<Range<usize>> {
    let mut start = 0;
    let range = |width: &usize| {
        let (from, each) = (start, width / ranks);
        start += width;
        from + place * each..from + (place + 1) * each
    };
    segments.iter().map(range).collect()
}

/// From this rank's spans of all columns to the whole sequence of its share of every segment.
pub(crate) fn trade<R: Real>(rank: &Rank, x: Mat<R>, segments: &[usize], batch: usize) -> Result<Mat<R>> {
    let ranks = rank.cp.len();
    if ranks == 1 {
        return Ok(x);
    }
    let width = x.cols / ranks;
    let mut sent = Vec::with_capacity(x.data.len());
    for place in 0..ranks {
        let ranges = share(segments, ranks, place);
        for row in x.data.chunks_exact(x.cols) {
            ranges.iter().for_each(|r| sent.extend_from_slice(&row[r.clone()]));
        }
    }
    let counts = vec![x.rows * width; ranks];
    let came = rank.comm.all_to_all(&rank.cp, IN, sent, &counts, &counts)?;
    let mut out = Mat::zeros(x.rows * ranks, width);
    for (place, rows) in came.chunks_exact(counts[0]).enumerate() {
        let mut from = rows.chunks_exact(batch * width);
        for position in rank.timeline.spans(place).into_iter().flatten() {
            let at = position * batch * width;
            out.data[at..at + batch * width].copy_from_slice(from.next().unwrap_or_default());
        }
    }
    Ok(out)
}

/// Transpose and inverse of [`trade`]; `segments` are those of the whole width.
pub(crate) fn trade_back<R: Real>(rank: &Rank, x: Mat<R>, segments: &[usize], batch: usize) -> Result<Mat<R>> {
    let ranks = rank.cp.len();
    if ranks == 1 {
        return Ok(x);
    }
    let mut sent = Vec::with_capacity(x.data.len());
    for place in 0..ranks {
        for position in rank.timeline.spans(place).into_iter().flatten() {
            let at = position * batch * x.cols;
            sent.extend_from_slice(&x.data[at..at + batch * x.cols]);
        }
    }
    let rows = x.rows / ranks;
    let counts = vec![rows * x.cols; ranks];
    let came = rank.comm.all_to_all(&rank.cp, OUT, sent, &counts, &counts)?;
    let mut out = Mat::zeros(rows, x.cols * ranks);
    for (place, from) in came.chunks_exact(counts[0]).enumerate() {
        let ranges = share(segments, ranks, place);
        for (row, from) in from.chunks_exact(x.cols).enumerate() {
            let mut start = 0;
            for range in &ranges {
                out.row_mut(row)[range.clone()].copy_from_slice(&from[start..start + range.len()]);
                start += range.len();
            }
        }
    }
    Ok(out)
}

/// This rank's share of a parameter; segments count units of `unit` elements.
pub(crate) fn mine<R: Real>(cx: &Cx<R>, id: Id, segments: &[usize], unit: usize) -> Vec<R> {
    let (data, ranges) = (&cx.weight(id).data, share(segments, cx.rank.cp.len(), cx.rank.on(Axis::Cp)));
    ranges.iter().flat_map(|r| data[r.start * unit..r.end * unit].iter().copied()).collect()
}

/// Transpose of [`mine`]: adds to the gradient of the parameter.
pub(crate) fn add_mine<R: Real>(cx: &mut Cx<R>, id: Id, segments: &[usize], unit: usize, from: &[R]) {
    let ranges = share(segments, cx.rank.cp.len(), cx.rank.on(Axis::Cp));
    let into = &mut cx.grad(id).data;
    let places = ranges.iter().flat_map(|r| r.start * unit..r.end * unit);
    places.zip(from).for_each(|(at, value)| into[at] += *value);
}
