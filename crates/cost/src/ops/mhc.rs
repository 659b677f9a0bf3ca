//! Residual streams: bytes over bandwidth and kernels that the host starts one by one, as the emitted program runs
//! them (`launch/assets/fsdp2/mhc.py`). The projection of all streams is a product of the ownership table. A token's
//! own products (a few weights by its streams) read and write as much as a copy does, and are taken to run like one;
//! none of this was measured.

use super::linear::Product;
use super::{Op, Shape, Work};
use crate::part::Part;
use case::options::Format;
use recipe::kinds::mhc::Mhc;

/// Bytes of an element of a stream, and of a weight of one.
const STREAM: f64 = 2.0;
const WEIGHT: f64 = 4.0;

/// Sizes of a rank's tokens: elements of one stream and of all, weights of a kind, and of a mixing.
struct Sizes {
    one: f64,
    all: f64,
    weights: f64,
    mixing: f64,
    sinkhorn: f64,
}

impl Sizes {
    fn of(shape: Shape, mhc: &Mhc) -> Sizes {
        let (n, one) = (mhc.streams as f64, shape.local * shape.recipe.hidden as f64);
        let weights = shape.local * n;
        Sizes { one, all: n * one, weights, mixing: n * weights, sinkhorn: mhc.sinkhorn as f64 }
    }
}

/// What runs around a block instead of the residual sum.
pub(super) fn around(shape: Shape, mhc: &Mhc, ops: &mut Vec<Op>) {
    let Sizes { one, all, weights, mixing, sinkhorn } = Sizes::of(shape, mhc);
    // Streams read for their norm, collapsed, mixed, and added to. Backward: the norm's quotient and product, a product
    // for each side of the collapse and of the mixing, those of the sum, which are summed down, and three sums of four
    // gradients.
    let (ahead, behind) = (STREAM * (5.0 * all + 2.0 * one), STREAM * (25.0 * all + 5.0 * one));
    // Logits behind the product, in some twenty kernels of one pass each.
    let logits = WEIGHT * (2.0 * weights + mixing);
    ops.push(Op::bytes(&[], (ahead + 16.0 * logits, 24.0), (behind + 20.0 * logits, 32.0)));
    // A quotient: sum, sum and epsilon, division. Backward runs all of them again, and each one's gradient in seven
    // kernels that move a mixing fifteen times.
    let quotients = 2.0 * sinkhorn - 1.0;
    let (once, back) = (WEIGHT * (3.0 * mixing + 5.0 * weights), WEIGHT * 15.0 * mixing);
    let forward = (quotients * once, 2.0 + 3.0 * quotients);
    ops.push(Op::bytes(&[], forward, (forward.0 + quotients * back, forward.1 + 7.0 * quotients)));
}

/// Copies of token embeddings for every stream; backward sums.
pub(super) fn spread(shape: Shape, mhc: &Mhc) -> Op {
    let Sizes { one, all, .. } = Sizes::of(shape, mhc);
    let bytes = STREAM * (one + all);
    Op::bytes(&[], (bytes, 1.0), (bytes, 1.0))
}

/// What makes one stream of all behind the last layer.
pub(super) fn collapse(shape: Shape, mhc: &Mhc, ops: &mut Vec<Op>) {
    let Sizes { one, all, weights, .. } = Sizes::of(shape, mhc);
    let (m, n, k) = (shape.local, mhc.streams as f64, (mhc.streams * shape.recipe.hidden) as f64);
    ops.push(Product { part: Part::Gemm, format: Format::Bf16, modules: &[], groups: 1.0, m, n, k }.op(shape));
    let logits = WEIGHT * weights;
    let (ahead, behind) = (STREAM * (2.0 * all + one), STREAM * (12.0 * all + 2.0 * one));
    ops.push(Op::streams(
        &[],
        vec![Work::bytes(ahead + 16.0 * logits, 14.0)],
        vec![Work::bytes(behind + 20.0 * logits, 20.0)],
    ));
}
