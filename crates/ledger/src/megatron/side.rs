//! Side tables beside the token table. Megatron has none: this follows the module that a launch brings along
//! (`launch/assets/megatron/side_embeddings.py`): plain torch, whole on every rank, added to the rank's own
//! part of the sequence. Rows of whole sequences, which the batch finds first, are not replayed.

use super::ops::{grad_of, makes, passes, weight_grad};
use super::params::{Param, Params};
use super::rank::Rank;
use recipe::Role;
use recipe::kinds::side::SideEmbedding;
use replay::line::Origin;
use replay::tape::{BF16, FP32, INT64, Tensor};
use std::rc::Rc;

/// One side channel's parameters.
pub(super) struct SideParams {
    table: Rc<Param>,
    proj: Rc<Param>,
    scales: Option<Rc<Param>>,
    sizes: SideEmbedding,
}

impl SideParams {
    pub fn build(side: &SideEmbedding, hidden: u64, params: &mut Params) -> SideParams {
        SideParams {
            table: params.whole_matrix(Role::Embedding, side.rows, side.dim),
            proj: params.whole_matrix(Role::Embedding, hidden, side.tables * side.dim),
            scales: (side.scales > 0).then(|| params.whole_vector(side.scales)),
            sizes: side.clone(),
        }
    }
}

/// Looks this rank's tokens up, weighs what was found, projects it onto the hidden width, and adds it.
pub(super) fn add(c: &Rank, x: &Tensor, side: &SideParams) -> Tensor {
    let before = c.tape.origin();
    c.tape.enter(Origin::SideEmbedding);
    let tokens = x.elements() / c.config.hidden;
    let mut found = lookup(c, side, tokens);
    if let Some(scales) = &side.scales {
        found = weigh(c, &found, scales);
    }
    if side.sizes.components() > 1 {
        let summed = c.act(tokens * side.sizes.tables * side.sizes.dim, "side sums");
        makes(c, &found, &summed, Vec::new(), found.elements(), BF16);
        found = summed;
    }
    c.torch_product();
    let projected = c.act(x.elements(), "side projection");
    let (width, weight) = (found.elements(), side.proj.elements);
    let edges = vec![found.edge(), side.proj.edge()];
    c.tape.record(edges, &[&projected], vec![found.clone()], move |t, _, _saved| {
        vec![Some(grad_of(t, width, BF16, "side gradient")), Some(weight_grad(t, weight))]
    });
    drop(found);
    c.tape.enter(before);
    let out = c.act(x.elements(), "embedding output");
    passes(c, &[x, &projected], &out);
    out
}

/// Rows times their component's scale; the scales' gradient is a product of the same size, then a sum.
fn weigh(c: &Rank, found: &Tensor, scales: &Rc<Param>) -> Tensor {
    let (elements, count) = (found.elements(), scales.elements);
    let out = c.act(elements, "side rows weighed");
    let edges = vec![found.edge(), scales.edge()];
    c.tape.record(edges, &[&out], vec![found.clone()], move |t, _, _saved| {
        let rows = grad_of(t, elements, BF16, "side gradient");
        let _products = grad_of(t, elements, BF16, "scale products");
        vec![Some(rows), Some(weight_grad(t, count))]
    });
    out
}

/// Backward is dense over the table, with fp32 partial sums by segment of equal rows
/// (`aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu`).
fn lookup(c: &Rank, side: &SideParams, tokens: u64) -> Tensor {
    let (lookups, dim, rows) = (tokens * side.sizes.lookups(), side.sizes.dim, side.sizes.rows);
    let ids = c.act_of(lookups, INT64, "side ids");
    let out = c.act(lookups * dim, "side rows");
    let elements = side.table.elements;
    c.tape.record(vec![side.table.edge()], &[&out], vec![ids], move |t, _, _saved| {
        let dw = weight_grad(t, elements);
        let _sorted = grad_of(t, 2 * lookups, INT64, "sorted side ids");
        let segments = lookups / 10 + lookups.min(rows);
        let _partials = grad_of(t, segments * dim.next_multiple_of(32), FP32, "side partials");
        vec![Some(dw)]
    });
    out
}
