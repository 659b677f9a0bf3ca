//! Entering and leaving tensor-parallel regions. With SP entering is an all-gather, whose transpose is a
//! reduce-scatter, and leaving is the reverse. Without SP entering is free in forward and an all-reduce
//! in backward, and leaving is the reverse.

use crate::mat::Mat;
use crate::rank::Rank;
use crate::real::Real;
use comm::{Call, Op, Result};

/// Gathers the sequence before column-parallel projections.
pub(crate) fn enter<R: Real>(rank: &Rank, name: &'static str, x: Mat<R>) -> Result<Mat<R>> {
    if !rank.layout.sp {
        return Ok(x);
    }
    let cols = x.cols;
    Ok(Mat::of(cols, rank.comm.all_gather(&rank.tp, Call::new("sp", name), x.data)?))
}

/// Transpose of [`enter`]: sums partial gradients of the input; each rank gets those of its own tokens.
pub(crate) fn enter_back<R: Real>(rank: &Rank, name: &'static str, dx: Mat<R>) -> Result<Mat<R>> {
    let (cols, call) = (dx.cols, Call::new(rank.tensor_axis(), name));
    let data = if rank.layout.sp {
        rank.comm.reduce_scatter(&rank.tp, call, dx.data)?
    } else {
        rank.comm.all_reduce(&rank.tp, call, Op::Sum, dx.data)?
    };
    Ok(Mat::of(cols, data))
}

/// Sums partial outputs of row-parallel projections; each rank gets those of its own tokens.
pub(crate) fn leave<R: Real>(rank: &Rank, name: &'static str, y: Mat<R>) -> Result<Mat<R>> {
    enter_back(rank, name, y)
}

/// Transpose of [`leave`].
pub(crate) fn leave_back<R: Real>(rank: &Rank, name: &'static str, dy: Mat<R>) -> Result<Mat<R>> {
    enter(rank, name, dy)
}
