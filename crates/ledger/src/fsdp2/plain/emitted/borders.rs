//! Where tensor-parallel regions begin and end (`collectives.py` Enter and Leave): one collective
//! along the sequence, whose buffer is in rank order, so that several sequences are copied once
//! more.

use super::super::ops;
use super::super::rank::Rank;
use replay::line::Line;
use replay::tape::{Tape, Tensor};

/// `gather_along`: the collective's output and, of several sequences, a copy in their order.
fn gathered(t: &Tape, line: Line, elements: u64, width: u64, batch: u64) -> Tensor {
    let whole = t.tensor(line, elements, width, "gathered in rank order");
    if batch == 1 { whole } else { t.tensor(line, elements, width, "gathered tokens") }
}

/// `scatter_sum_along`: of several sequences a copy in rank order, then the part that is left.
fn scattered(t: &Tape, line: Line, elements: u64, width: u64, (batch, tp): (u64, u64)) -> Tensor {
    let _copy = (batch > 1).then(|| t.tensor(line, elements, width, "in rank order"));
    t.tensor(line, elements / tp, width, "scattered sum")
}

/// Into a region: the sequence made whole, or a copy whose gradient is summed.
pub(in super::super) fn enter(c: &Rank, x: &Tensor) -> Tensor {
    let (tp, batch) = (c.config.tp, c.config.micro_batch);
    if !c.config.sp {
        return ops::enter(c, x);
    }
    let (whole, width) = (x.elements() * tp, x.width());
    let out = gathered(&c.tape, Line::Communication, whole, width, batch);
    c.tape.record(vec![x.edge()], &[&out], Vec::new(), move |t, _, _| {
        vec![Some(scattered(t, Line::ActivationGradients, whole, width, (batch, tp)))]
    });
    out
}

/// Out of a region: partial sums added up and dealt out along the sequence.
pub(super) fn leave(c: &Rank, x: Tensor) -> Tensor {
    let (tp, batch) = (c.config.tp, c.config.micro_batch);
    if !c.config.sp {
        return ops::leave(c, x);
    }
    let (whole, width) = (x.elements(), x.width());
    let out = scattered(&c.tape, Line::Communication, whole, width, (batch, tp));
    c.tape.record(vec![x.edge()], &[&out], Vec::new(), move |t, _, _| {
        vec![Some(gathered(t, Line::ActivationGradients, whole, width, batch))]
    });
    out
}
