//! `chunked_scan` (`scans.py`): the selective scan in fp32 products of matrices, chunk by chunk. It is
//! checkpointed: its inputs are kept, and everything else is made again in backward.

use super::super::config::Chunks;
use super::super::ops::{add, grad_of, passes};
use super::super::rank::Rank;
use super::steps::{Incoming, Saves, copied, map, matmul, recorded_product, times};
use replay::tape::{FP32, Tensor, checkpoint_stopping_early};
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
    checkpoint_stopping_early(&c.tape, &inputs, move |inputs| chunked(&rank, inputs, sizes))
}

/// Parts that a scan over so many tokens goes through one by one.
pub(crate) fn parts(sequence: u64, which: Chunks) -> u64 {
    let chunks = chunks(sequence);
    match which {
        Chunks::Each => chunks,
        Chunks::Grouped => groups(chunks).len() as u64,
    }
}

fn chunks(sequence: u64) -> u64 {
    sequence.div_ceil(CHUNK.min(sequence).max(1))
}

fn chunked(c: &Rc<Rank>, inputs: &[Tensor], s: Sizes) -> Tensor {
    let config = &c.config;
    let chunk = CHUNK.min(config.sequence);
    let chunks = chunks(config.sequence);
    let positions = config.micro_batch * chunks * chunk * s.heads;
    let states = config.micro_batch * chunks * s.heads * s.width * s.state;
    let [log, u, keys, queries] = [0, 1, 2, 3].map(|i| copied(c, &inputs[i], "chunked input"));
    let total = map(c, &log, Saves::Nothing, "cumulative decay");
    let between = between(c, &total, positions * chunk);
    let scores = matmul(c, [&queries, &keys], positions * chunk, Incoming::Dense);
    let decayed = times(c, &scores, &between, "decayed scores");
    drop(scores);
    let inside = matmul(c, [&decayed, &u], u.elements(), Incoming::Strided);
    drop(decayed);
    let rest = map(c, &map(c, &total, Saves::Nothing, "rest of decay"), Saves::Output, "decay to the end");
    let weighed = times(c, &rest, &keys, "decayed keys");
    let fresh = matmul(c, [&weighed, &u], states, Incoming::Dense);
    drop((rest, weighed));
    let stacked = passed(c, &fresh, &total, chunks);
    let from_start = map(c, &total, Saves::Output, "decay from the start");
    let read = times(c, &from_start, &queries, "decayed queries");
    drop(from_start);
    if c.tape.records() {
        return left_out(c, [&inside, &read, &stacked]);
    }
    let across = matmul(c, [&read, &stacked], u.elements(), Incoming::Strided);
    drop(read);
    add(c, &inside, &across)
}

/// The last product and sum when the scan is computed again: it stops once the product has saved
/// its inputs, before it runs (`torch/utils/checkpoint.py`, `_StopRecomputationError`).
fn left_out(c: &Rc<Rank>, [inside, read, stacked]: [&Tensor; 3]) -> Tensor {
    let (across, out) = (Tensor::empty(), Tensor::empty());
    recorded_product(c, [read, stacked], &across, (inside.elements(), Incoming::Strided));
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

/// States handed from chunk to chunk, then stacked.
fn passed(c: &Rc<Rank>, fresh: &Tensor, total: &Tensor, chunks: u64) -> Tensor {
    let (all, one) = (fresh.elements(), fresh.elements() / chunks);
    let decays = last_of_each(c, total, chunks);
    let sizes: Vec<u64> = match c.config.chunks {
        Chunks::Each => vec![one; chunks as usize],
        Chunks::Grouped => groups(chunks).into_iter().map(|count| count * one).collect(),
    };
    let parts: Vec<Tensor> = sizes.iter().map(|size| fresh.part(*size)).collect();
    let outputs: Vec<&Tensor> = parts.iter().collect();
    c.tape.record(vec![fresh.edge()], &outputs, Vec::new(), move |t, _, _| {
        vec![Some(grad_of(t, all, FP32, "stacked state gradients"))]
    });
    let mut state = c.act_of(one, FP32, "first state");
    let mut before = Vec::new();
    for part in parts {
        before.push(state.clone());
        let kept = decayed_state(c, &state, &decays, one);
        state = handed(c, &kept, &part);
    }
    drop(state);
    let stacked = c.act_of(all, FP32, "stacked states");
    let edges = before.iter().map(Tensor::edge).collect();
    let sizes: Vec<u64> = before.iter().map(Tensor::elements).collect();
    c.tape.record(edges, &[&stacked], Vec::new(), move |_, grads, _| {
        let part = |size: &u64| grads[0].as_ref().map(|grad| grad.part(*size));
        sizes.iter().map(part).collect()
    });
    stacked
}

/// Chunks in groups that grow towards the middle of the sequence. At both ends they are one by one: there
/// the walk's peaks are, forward and backward, and one chunk's share of what comes and goes with it.
fn groups(chunks: u64) -> Vec<u64> {
    let (mut front, mut back, mut left) = (Vec::new(), Vec::new(), chunks);
    let mut taken = 0;
    while left > 0 {
        let size = (taken / GROWTH).clamp(1, left.div_ceil(2));
        front.push(size);
        left -= size;
        if left > 0 {
            let size = size.min(left);
            back.push(size);
            left -= size;
        }
        taken += size;
    }
    front.into_iter().chain(back.into_iter().rev()).collect()
}

/// Chunks between a group and the nearer end of the sequence, for each of its own.
const GROWTH: u64 = 4;

/// The state a chunk hands on: what is kept of the one before and the chunk's own part, which is as large.
fn handed(c: &Rc<Rank>, kept: &Tensor, part: &Tensor) -> Tensor {
    let out = c.act_of(part.elements(), FP32, "state");
    passes(c, &[kept, part], &out);
    out
}

/// The decay over each chunk; the slice's gradient is as large as what it was cut from.
fn last_of_each(c: &Rc<Rank>, total: &Tensor, chunks: u64) -> Tensor {
    let (all, few) = (total.elements(), total.elements() * chunks / c.config.sequence.max(chunks));
    let out = c.act_of(few, FP32, "chunk decays");
    c.tape.record(vec![total.edge()], &[&out], vec![out.alias()], move |t, _, _saved| {
        let _exponential = grad_of(t, few, FP32, "chunk decay gradient");
        vec![Some(grad_of(t, all, FP32, "decay gradient"))]
    });
    out
}

/// A state times a number a head, for one chunk; saves the state.
fn decayed_state(c: &Rc<Rank>, state: &Tensor, decays: &Tensor, one: u64) -> Tensor {
    let (elements, needs) = (state.elements(), state.edge().is_some());
    let out = c.act_of(one, FP32, "decayed state");
    let saved = vec![state.clone(), decays.clone()];
    c.tape.record(vec![state.edge(), decays.edge()], &[&out], saved, move |t, _, _saved| {
        let dx = needs.then(|| grad_of(t, elements, FP32, "state gradient"));
        let _product = grad_of(t, one, FP32, "decay product");
        vec![dx, Some(grad_of(t, 1, FP32, "decay gradient"))]
    });
    out
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn groups_grow_towards_the_middle_and_hold_every_chunk() {
        for chunks in [1, 2, 3, 7, 8, 64, 127, 128, 1 << 12, 1 << 26] {
            let found = groups(chunks);
            assert_eq!(found.iter().sum::<u64>(), chunks);
            assert!(found[0] == 1 && found[found.len() - 1] == 1, "{found:?}");
            assert!(found.len() <= 160, "{chunks} chunks in {} groups", found.len());
        }
        assert_eq!(groups(8), [1; 8]);
        assert!(groups(128).len() < 50);
    }
}
