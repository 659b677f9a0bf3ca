//! Layers that take some tokens only: what chooses, gathers and adds them (`launch/assets/fsdp2/depths.py`), beside the
//! layer's own operations over the tokens that are taken. Bytes over bandwidth; none of it was measured.

use super::linear::Product;
use super::{Op, Shape, Stream, Work};
use crate::part::Part;
use case::options::Format;
use recipe::kinds::depths::Depths;

/// Bytes of an activation.
const ACTIVATION: f64 = 2.0;

/// The router's product over all tokens; tokens gathered, subtracted from what the layer made of them, weighed, and added
/// into a copy of the stream. Backward: the same the other way, and two sums of three gradients of the stream.
pub(super) fn around(shape: Shape, depths: &Depths, ops: &mut Vec<Op>) {
    let hidden = shape.recipe.hidden as f64;
    let (m, n, k) = (shape.local, 1.0, hidden);
    ops.push(Product { part: Part::Gemm, format: Format::Bf16, modules: &[], groups: 1.0, m, n, k }.op(shape));
    let taken = (shape.layout.micro_batch * depths.tokens(shape.layout.sequence)) as f64;
    let (all, some) = (ACTIVATION * shape.local * hidden, ACTIVATION * taken * hidden);
    let moved = |plain: f64, indexed: f64, kernels: f64| {
        vec![Work::bytes(plain, kernels), Work::stream(Stream::Indexed, indexed, 2.0)]
    };
    // Scores are sorted in a few passes over eight bytes a token.
    let sorted = 64.0 * shape.local;
    ops.push(Op::streams(
        &[],
        moved(2.0 * all + 6.0 * some + sorted, 5.0 * some, 8.0),
        moved(7.0 * all + 11.0 * some, 5.0 * some, 10.0),
    ));
}
