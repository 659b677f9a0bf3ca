//! Side tables beside the token table. Megatron has none: this follows the custom embedding of
//! DatasunriseOU/cppmega (`cppmega/megatron/custom_embedding.py`), whose modules are plain torch
//! and whole on every rank, and whose output is added before tokens are cut along the sequence.

use super::ops::{grad_of, passes, weight_grad};
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

/// Looks every token up in each table, projects what was found onto the hidden width, and adds it.
pub(super) fn add(c: &Rank, x: &Tensor, side: &SideParams) -> Tensor {
    let before = c.tape.origin();
    c.tape.enter(Origin::SideEmbedding);
    let found = lookup(c, side);
    c.torch_product();
    let projected = c.act(c.config.tokens * c.config.hidden, "side projection");
    let (width, weight, scales) = (found.elements(), side.proj.elements, side.scales.as_ref().map(|s| s.elements));
    let edges = [found.edge(), side.proj.edge()].into_iter().chain(side.scales.iter().map(|s| s.edge())).collect();
    c.tape.record(edges, &[&projected], vec![found.clone()], move |t, _, _saved| {
        let dx = grad_of(t, width, BF16, "side gradient");
        let scales = scales.map(|elements| Some(weight_grad(t, elements)));
        [Some(dx), Some(weight_grad(t, weight))].into_iter().chain(scales).collect()
    });
    drop(found);
    c.tape.enter(before);
    let out = c.act(x.elements(), "embedding output");
    passes(c, &[x, &projected], &out);
    out
}

/// Backward is dense over the table, with fp32 partial sums by segment of equal rows
/// (`aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu`).
fn lookup(c: &Rank, side: &SideParams) -> Tensor {
    let (lookups, dim, rows) = (c.config.tokens * side.sizes.tables, side.sizes.dim, side.sizes.rows);
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
