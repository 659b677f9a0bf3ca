//! `chunked_scan` (`scans.py`): the selective scan in fp32 products of matrices, chunk by chunk. It is
//! checkpointed: its inputs are kept, and everything else is made again in backward.

use super::super::ops::{add, grad_of, passes};
use super::super::rank::Rank;
use super::steps::{Incoming, Saves, copied, map, matmul, times};
use replay::tape::{FP32, Tensor, checkpoint_stopping_early, checkpoint_within};
use std::rc::Rc;

/// `CHUNK`.
const CHUNK: u64 = 64;

/// Sizes of one scan on one rank.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub heads: u64,
    pub width: u64,
    pub state: u64,
}

/// `[log_decay, u, b, c]` in, outputs as large as `u`.
pub(super) fn scan(c: &Rc<Rank>, inputs: [&Tensor; 4], sizes: Sizes) -> Tensor {
    let rank = c.clone();
    let run = move |inputs: &[Tensor]| chunked(&rank, inputs, sizes);
    match c.config.checkpoints {
        true => checkpoint_within(&c.tape, &inputs, run),
        false => checkpoint_stopping_early(&c.tape, &inputs, run),
    }
}

fn chunked(c: &Rc<Rank>, inputs: &[Tensor], s: Sizes) -> Tensor {
    let config = &c.config;
    // The last product's gradient is laid out by head before backward asks for what was saved, and all is made again.
    let laid = c.tape.records().then(|| grad_of(&c.tape, inputs[1].elements(), FP32, "gradient by head"));
    let chunk = CHUNK.min(config.sequence);
    let chunks = config.sequence.div_ceil(chunk.max(1));
    let positions = config.micro_batch * chunks * chunk * s.heads;
    let states = config.micro_batch * chunks * s.heads * s.width * s.state;
    let [log, u, keys, queries] = [0, 1, 2, 3].map(|i| copied(c, &inputs[i], "chunked input"));
    let total = map(c, &log, Saves::Nothing, "cumulative decay");
    let scores = matmul(c, [&queries, &keys], positions * chunk, Incoming::Dense);
    let decays = between(c, &total, positions * chunk);
    let decayed = times(c, &scores, &decays, "decayed scores");
    drop((scores, decays));
    let inside = matmul(c, [&decayed, &u], u.elements(), Incoming::Strided);
    drop(decayed);
    let rest = map(c, &map(c, &total, Saves::Nothing, "rest of decay"), Saves::Output, "decay to the end");
    let weighed = times(c, &rest, &keys, "decayed keys");
    let fresh = matmul(c, [&weighed, &u], states, Incoming::Dense);
    drop((rest, weighed));
    let heads = config.micro_batch * s.heads;
    let over = sliced(c, &total, heads * chunks);
    let stacked = handed(c, Row { heads, count: chunks, decays: &over, fresh: &fresh });
    let from_start = map(c, &total, Saves::Output, "decay from the start");
    let read = times(c, &from_start, &queries, "decayed queries");
    drop(from_start);
    if let Some(laid) = laid {
        return left_out(c, [&inside, &read, &stacked], laid);
    }
    let across = matmul(c, [&read, &stacked], u.elements(), Incoming::Strided);
    drop(read);
    add(c, &inside, &across)
}

/// The last product and sum when the scan is computed again: it stops once the product has saved
/// its inputs, before it runs (`torch/utils/checkpoint.py`, `_StopRecomputationError`).
fn left_out(c: &Rc<Rank>, [inside, read, stacked]: [&Tensor; 3], laid: Tensor) -> Tensor {
    let (across, out, rank) = (Tensor::empty(), Tensor::empty(), c.clone());
    let sizes = [read, stacked].map(Tensor::elements);
    c.tape.record(
        vec![read.edge(), stacked.edge()],
        &[&across],
        vec![read.clone(), stacked.clone(), laid],
        move |t, _, _saved| {
            rank.product();
            sizes.map(|size| Some(grad_of(t, size, FP32, "matrix gradient"))).to_vec()
        },
    );
    passes(c, &[inside, &across], &out);
    out
}

/// What lies between two positions of a chunk: differences, their lower triangle, exponentials and
/// the triangle again.
fn between(c: &Rc<Rank>, total: &Tensor, elements: u64) -> Tensor {
    let size = total.elements();
    let difference = c.act_of(elements, FP32, "decay differences");
    c.tape.record(vec![total.edge()], &[&difference], Vec::new(), move |t, _, _| {
        let _negative = grad_of(t, elements, FP32, "negative gradient");
        vec![Some(grad_of(t, size, FP32, "decay gradient"))]
    });
    let lower = map(c, &difference, Saves::Nothing, "lower differences");
    drop(difference);
    let exponential = map(c, &lower, Saves::Output, "exponentials");
    drop(lower);
    map(c, &exponential, Saves::Nothing, "decay between positions")
}

/// Decays over chunks, and what each chunk hands on: of `heads` heads of all sequences, `count` chunks.
struct Row<'a> {
    heads: u64,
    count: u64,
    decays: &'a Tensor,
    fresh: &'a Tensor,
}

/// `handed`: states before each chunk.
fn handed(c: &Rc<Rank>, row: Row) -> Tensor {
    let Row { heads, count, decays, fresh } = row;
    let state = fresh.elements() / count;
    if count <= CHUNK {
        let total = map(c, decays, Saves::Nothing, "decay over chunks");
        let after = matmul(c, [&between(c, &total, heads * count * count), fresh], fresh.elements(), Incoming::Dense);
        return map(c, &after, Saves::Nothing, "states before chunks");
    }
    let groups = count.div_ceil(CHUNK);
    let is_padded = groups * CHUNK > count;
    let grown = |x: &Tensor, each: u64| match is_padded {
        true => resized(c, x, groups * CHUNK * each, "padded chunks"),
        false => x.clone(),
    };
    let total = map(c, &grown(decays, heads), Saves::Nothing, "decay over chunks");
    let fresh = grown(fresh, state);
    let decays = between(c, &total, heads * groups * CHUNK * CHUNK);
    let inside = matmul(c, [&decays, &fresh], fresh.elements(), Incoming::Dense);
    drop(decays);
    let [over, last] = [&total, &inside].map(|x| sliced(c, x, x.elements() / CHUNK));
    let before = handed(c, Row { heads, count: groups, decays: &over, fresh: &last });
    let left = map(c, &total, Saves::Output, "decay from the start");
    let carried = spread(c, &left, &before, inside.elements());
    let after = add(c, &inside, &carried);
    drop(carried);
    resized(c, &after, count * state, "states before chunks")
}

/// A view of every so many elements, whose gradient is as large as what it was cut from.
fn sliced(c: &Rank, x: &Tensor, elements: u64) -> Tensor {
    let (all, out) = (x.elements(), x.part(elements));
    c.tape.record(vec![x.edge()], &[&out], Vec::new(), move |t, _, _| {
        vec![Some(grad_of(t, all, FP32, "gradient of a slice"))]
    });
    out
}

/// `F.pad`: a copy with rows more or fewer; its gradient is one too.
fn resized(c: &Rank, x: &Tensor, elements: u64, name: &'static str) -> Tensor {
    let (size, out) = (x.elements(), c.act_of(elements, FP32, name));
    c.tape.record(vec![x.edge()], &[&out], Vec::new(), move |t, _, _| {
        vec![Some(grad_of(t, size, FP32, "gradient of a copy"))]
    });
    out
}

/// A product of two tensors that are both broadcast; saves both, and each has its gradient summed down.
fn spread(c: &Rank, x: &Tensor, y: &Tensor, elements: u64) -> Tensor {
    let (sizes, out) = ([x.elements(), y.elements()], c.act_of(elements, FP32, "carried states"));
    c.tape.record(vec![x.edge(), y.edge()], &[&out], vec![x.clone(), y.clone()], move |t, _, _saved| {
        let gradient = |size| {
            let _product = grad_of(t, elements, FP32, "product gradient");
            Some(grad_of(t, size, FP32, "summed gradient"))
        };
        sizes.map(gradient).to_vec()
    });
    out
}
