//! A block that several layers share, at one of its uses: products of weights that stand outside of the layer, attention, norms and
//! the function between projections. What a layer has of its own is in its rows of the ownership table.

use super::attention::{Heads, Walk, kernel, turned};
use super::elementwise::{activation, norm};
use super::linear::Product;
use super::{Op, Shape, Work};
use crate::flops::Convention;
use crate::part::Part;
use recipe::kinds::shared::Shared;

/// Everything of a use but the layer's own products.
pub(super) fn block(shape: Shape, ops: &mut Vec<Op>) {
    let Some(shared) = &shape.recipe.shared else { return };
    let (tokens, hidden) = (shape.tokens, shape.recipe.hidden);
    // The stream and the embeddings are read and written side by side, and their gradients handed on as they lie.
    let beside = 2.0 * tokens * 2.0 * hidden as f64;
    ops.push(Op::streams(&[], vec![Work::bytes(2.0 * beside, 1.0)], Vec::new()));
    norm(shape, tokens * 2.0 * hidden as f64, 2 * hidden, &[], ops);
    for (rows, columns) in products(shared, hidden) {
        let (format, n, k) = (shape.options.format, rows as f64, columns as f64);
        ops.push(Product { part: Part::Gemm, format, modules: &[], groups: 1.0, m: tokens, n, k }.op(shape));
    }
    // Sums of a projection and what the layer's factors add, and of what the block gives and the stream.
    let summed: u64 = shared.adapted(hidden).iter().map(|(_, rows, _)| rows).sum::<u64>() + hidden;
    let bytes = 2.0 * tokens * summed as f64;
    ops.push(Op::bytes(&[], (3.0 * bytes, 1.0), (bytes, 1.0)));
    let heads = heads(shared);
    let walk = Walk::whole(flops(shape, Convention::MaskedScores), flops(shape, Convention::AllScores));
    kernel(shape, &heads, walk, ops);
    turned(shape, (heads.heads + heads.kv_heads) * heads.qk_dim, ops);
    norm(shape, tokens * hidden as f64, hidden, &[], ops);
    activation(shape, shared.activation, tokens * shared.ffn as f64, &[], ops);
}

/// Rows and columns of the shared projections.
fn products(shared: &Shared, hidden: u64) -> [(u64, u64); 6] {
    let (inner, kv) = (shared.inner(), shared.kv());
    [
        (inner, 2 * hidden),
        (kv, 2 * hidden),
        (kv, 2 * hidden),
        (hidden, inner),
        (shared.fc1(), hidden),
        (hidden, shared.ffn),
    ]
}

fn heads(shared: &Shared) -> Heads {
    let width = shared.head_dim as f64;
    Heads { heads: shared.heads as f64, kv_heads: shared.kv_heads as f64, qk_dim: width, v_dim: width }
}

/// Operations of its attention in forward under a counting convention.
pub(super) fn flops(shape: Shape, convention: Convention) -> f64 {
    let Some(shared) = &shape.recipe.shared else { return 0.0 };
    let sequence = shape.layout.sequence as f64;
    let causal = match shape.options.documents {
        Some(documents) => documents.mean(shape.layout.sequence, |length| length / 2.0),
        None => sequence / 2.0,
    };
    let seen = if convention == Convention::MaskedScores { causal } else { sequence };
    4.0 * shape.tokens * seen * shared.inner() as f64
}
