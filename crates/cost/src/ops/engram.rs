//! Engram branches beside the products of their two projections (`launch/assets/fsdp2/engram.py`): rows looked up, norms,
//! the gate, the convolution and two sums. Bytes over bandwidth; none of it was measured.

use super::{Op, Shape, Stream, Work, elementwise};
use recipe::kinds::engram::Engram;

/// Bytes of an activation, and of a place.
const ACTIVATION: f64 = 2.0;
const PLACE: f64 = 8.0;

/// What runs before a layer with a branch.
pub(super) fn before(shape: Shape, engram: &Engram, ops: &mut Vec<Op>) {
    let hidden = shape.recipe.hidden;
    let stream = shape.local * hidden as f64;
    for _ in 0..3 {
        elementwise::norm(shape, stream, hidden, &[], ops);
    }
    let found = ACTIVATION * shape.local * engram.found() as f64;
    // A place is multiplied, shifted, mixed and divided by its lookup, a kernel each, and all are put together.
    let places = PLACE * shape.local * engram.lookups() as f64;
    let hashed = (12.0 * places, 6.0 * engram.lookups() as f64 + 3.0 * engram.ngrams as f64);
    // Backward writes a gradient as large as the table, and adds rows into it.
    let table = ACTIVATION * (engram.rows * (engram.dim / engram.heads)) as f64;
    ops.push(Op::streams(
        &[],
        vec![Work::bytes(hashed.0, hashed.1), Work::stream(Stream::Indexed, 2.0 * found, 1.0)],
        vec![Work::bytes(table, 1.0), Work::stream(Stream::Indexed, 3.0 * found, 2.0)],
    ));
    // Key by stream (3) and its sum (1), the gate by value (2), two sums (6); backward twice as much and half.
    let all = ACTIVATION * stream;
    ops.push(Op::bytes(&[], (12.0 * all, 12.0), (20.0 * all, 20.0)));
    // A padded copy, the convolution and SiLU.
    let work = |passes: f64, kernels: f64| vec![Work::stream(Stream::Convolved, passes * all, kernels)];
    ops.push(Op::streams(&[], work(6.0, 3.0), work(11.0, 5.0)));
}
