//! Column- and row-parallel products in reduce-scatter mode
//! (`parallel/tensor_parallel/functional.py`, `tp_recompute_allgather` on).

use super::ops::{grad, weight_grad};
use super::rank::{Gather, Rank};
use replay::line::Line;
use replay::tape::Tensor;
use std::rc::Rc;

/// `_ColumnLinearAsyncCommunication`: saves this rank's part of the input, not the gathered whole;
/// backward gathers again, and scatters the whole input gradient.
pub(super) fn column(c: &Rc<Rank>, x: &Tensor, weight: &Tensor, width: u64, line: Line) -> Tensor {
    let config = &c.config;
    let (whole, part) = (config.tokens * config.hidden, config.local_tokens * config.hidden);
    c.product();
    c.gather(Gather::Input);
    let out = c.tape.tensor(line, config.tokens * width, replay::tape::BF16, "column product");
    let (rank, elements) = (c.clone(), weight.elements());
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], vec![x.clone()], move |t, _, _saved| {
        rank.product();
        rank.gather(Gather::Input);
        let gathered = grad(t, whole, "column input gradient");
        let scattered = (rank.config.tp > 1).then(|| grad(t, part, "scattered input gradient"));
        let dw = weight_grad(t, elements);
        vec![Some(scattered.unwrap_or(gathered)), Some(dw)]
    });
    out
}

/// Whether a row-parallel product is given its input as it lies in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Contiguous,
    /// `matmul` copies it to fold its dims, and backward copies it for the weight's gradient.
    Transposed,
}

/// `_RowLinearAsyncCommunication`: saves its input; the product of all tokens stands until it has
/// been scattered.
pub(super) fn row(c: &Rc<Rank>, x: &Tensor, weight: &Tensor, input: Input) -> Tensor {
    let config = &c.config;
    let (whole, part) = (config.tokens * config.hidden, config.local_tokens * config.hidden);
    let (inner, elements) = (x.elements(), weight.elements());
    c.product();
    let copied = (input == Input::Transposed).then(|| c.act(inner, "folded input"));
    let mut out = c.act(whole, "row product");
    drop(copied);
    if config.tp > 1 {
        out = c.act(part, "scattered row product");
    }
    let rank = c.clone();
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], vec![x.clone()], move |t, _, _saved| {
        rank.product();
        rank.gather(Gather::OutputGradient);
        let dx = grad(t, inner, "row input gradient");
        let _copied = (input == Input::Transposed).then(|| grad(t, inner, "folded input"));
        vec![Some(dx), Some(weight_grad(t, elements))]
    });
    out
}
