//! Muon beside AdamW (`megatron/core/optimizer/layer_wise_optimizer.py`, `emerging_optimizers.py`;
//! `emerging_optimizers/orthogonalized_optimizers` for the step itself).
//!
//! Newton–Schulz needs whole matrices, so data-parallel ranks share out *tensors*, not bytes. A launch
//! deals all of them out by size ([`dealt`]), which traces show, the step's operations among them.
//!
//! With a layout (from source alone) the buffers of matrices are cut into one shard a rank, the largest tensor going to the least loaded
//! shard, and every shard is padded to the largest. What is replayed is the asked-for rank's own
//! assignment; ranks of one stage may therefore differ by a tensor. Parameter and gradient buffers
//! stay whole on every rank, padding included. All other tensors have buffers of their own, whose
//! bytes the distributed optimizer shares out.
//!
//! Which tensors are Muon's is the recipe's word; Megatron's own rule, which a launch has, takes every
//! two-dimensional tensor that is no embedding and no head, routers too. The defaults of `OptimizerConfig` apply:
//! no Nesterov, five steps in bf16, each tensor-parallel part by itself, queries, keys and values
//! apart.

use super::params::{Matrix, Param};
use super::rank::Rank;
use super::setup::{Buffers, Key, Placed, bucket_step};
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage};
use std::ops::Range;
use std::rc::Rc;

/// Newton–Schulz iterations (`muon_num_ns_steps`).
const ITERATIONS: usize = 5;
/// A bucket dominated by one tensor is filled until so much of it is used (`PADDING_FLOOR`).
const LEAST_FILL: (u64, u64) = (9, 10);

/// Places whole tensors (`_compute_per_buffer_param_layout`): backward's order into buckets, each
/// bucket packed largest first into one shard a rank.
pub(super) fn place(c: &Rank, params: &[&Rc<Param>], key: Key, size: u64) -> (Vec<Placed>, Vec<Range<u64>>) {
    let ranks = key.group(c).0;
    let each = [ranks, shard_step(ranks, bucket_step(c, ranks))];
    let (mut placed, mut buckets) = (Vec::new(), Vec::new());
    let mut chunk: Vec<Rc<Param>> = Vec::new();
    let (mut elements, mut largest) = (0, 0);
    for param in params.iter().rev() {
        chunk.push(Rc::clone(param));
        elements += param.elements;
        largest = largest.max(param.elements);
        if elements >= size.max(ranks * largest * LEAST_FILL.0 / LEAST_FILL.1) && size != u64::MAX {
            pack(std::mem::take(&mut chunk), each, &mut placed, &mut buckets);
            (elements, largest) = (0, 0);
        }
    }
    pack(chunk, each, &mut placed, &mut buckets);
    (placed, buckets)
}

/// Packs one bucket over so many ranks, whose parts are multiples of `step`, and appends it.
fn pack(mut chunk: Vec<Rc<Param>>, [ranks, step]: [u64; 2], placed: &mut Vec<Placed>, buckets: &mut Vec<Range<u64>>) {
    if chunk.is_empty() {
        return;
    }
    // Stable, as Python's sort is.
    chunk.sort_by_key(|param| std::cmp::Reverse(param.elements));
    let mut ends = vec![0_u64; ranks as usize];
    let mut assigned = Vec::new();
    for param in chunk {
        let shard = (0..ends.len()).min_by_key(|&shard| ends[shard]).unwrap_or(0);
        let start = ends[shard].next_multiple_of(64);
        ends[shard] = start + param.elements;
        assigned.push((param, shard as u64, start));
    }
    let most = ends.iter().copied().max().unwrap_or(0);
    let part = most.next_multiple_of(step);
    let begin = buckets.last().map_or(0, |bucket| bucket.end);
    for (param, shard, start) in assigned {
        let start = begin + shard * part + start;
        placed.push(Placed { range: start..start + param.elements, param, bucket: buckets.len() });
    }
    buckets.push(begin..begin + ranks * part);
}

/// Deals whole tensors out by size, there and back again (`_shard_params_ping_pong`), dense ones and
/// experts apart; returns this rank's, Muon's before AdamW's, each from small to large.
pub(super) fn dealt(c: &Rank, buffers: &[Buffers]) -> Vec<Rc<Param>> {
    let mut own = Vec::new();
    for is_expert in [false, true] {
        let of_kind = buffers.iter().filter(|buffers| buffers.key.is_expert == is_expert);
        let mut params: Vec<_> = of_kind.flat_map(|buffers| buffers.placed.iter().map(|p| p.param.clone())).collect();
        params.sort_by_key(|param| param.elements);
        let (ranks, rank) = Key { is_expert, by_tensor: false, quantized: None }.group(c);
        let loop_of = |index: u64| {
            let at = index % (2 * ranks);
            at.min(2 * ranks - 1 - at)
        };
        own.extend(params.into_iter().zip(0..).filter(|(_, index)| loop_of(*index) == rank).map(|(param, _)| param));
    }
    let (matrices, rest): (Vec<_>, Vec<_>) = own.into_iter().partition(|param| param.muon.is_some());
    matrices.into_iter().chain(rest).collect()
}

/// Each shard starts aligned, and all of them end where a bucket may (`_shard_divisor`).
fn shard_step(ranks: u64, bucket_step: u64) -> u64 {
    let each = bucket_step / ranks;
    64 / units::gcd(64, each) * each
}

fn state(c: &Rank, elements: u64, width: u64, name: &'static str) -> Rc<Storage> {
    c.tape.storage(Line::MatrixOptimizer, elements * width, name)
}

/// Muon's state on one rank.
pub(super) struct Muon {
    matrices: Vec<Matrix>,
    _main: Vec<Rc<Storage>>,
    momenta: Vec<Rc<Storage>>,
    gradients: Vec<Rc<Storage>>,
}

impl Muon {
    /// Makes the fp32 main weights of the tensors this rank owns, each copied in bf16 first
    /// (`optimizer.py` Float16OptimizerWithFloat16Params).
    pub fn new(c: &Rank, owned: Vec<Matrix>) -> Muon {
        let main = owned.iter().map(|matrix| {
            let _copy = state(c, matrix.elements(), BF16, "weight copy");
            state(c, matrix.elements(), FP32, "main weight")
        });
        Muon { _main: main.collect(), matrices: owned, momenta: Vec::new(), gradients: Vec::new() }
    }

    /// Forgets the gradients of the last step.
    pub fn zero_grad(&mut self) {
        self.gradients.clear();
    }

    /// Whether it has stepped before.
    pub fn is_stepped(&self) -> bool {
        !self.momenta.is_empty()
    }

    /// fp32 copies of bf16 gradients.
    pub fn copy_gradients(&mut self, c: &Rank) {
        if c.config.grad_width == BF16 {
            let copies = self.matrices.iter().map(|matrix| state(c, matrix.elements(), FP32, "fp32 gradient"));
            self.gradients = copies.collect();
        }
    }

    /// One temporary a tensor, as in the distributed optimizer.
    pub fn clip(&self, c: &Rank) {
        self.matrices.iter().for_each(|matrix| drop(state(c, matrix.elements(), FP32, "clipped gradient")));
    }

    /// Momenta at first, then one matrix after the other.
    pub fn step(&mut self, c: &Rank) {
        if self.momenta.is_empty() {
            let momenta = self.matrices.iter().map(|matrix| state(c, matrix.elements(), FP32, "momentum"));
            self.momenta = momenta.collect();
        }
        // The last update is a local of the step until the next one takes its place.
        let mut _update = None;
        for matrix in &self.matrices {
            _update = Some(match matrix.parts {
                Some(parts) => orthogonalize_apart(c, parts, matrix.columns),
                None => orthogonalize(c, matrix.rows, matrix.columns),
            });
        }
    }
}

impl Matrix {
    fn elements(&self) -> u64 {
        self.rows * self.columns
    }
}

/// Copies of queries, keys and values, their results, then both put together again.
fn orthogonalize_apart(c: &Rank, parts: [u64; 3], columns: u64) -> Rc<Storage> {
    let rows: u64 = parts.iter().sum();
    let split: Vec<_> = parts.iter().map(|part| state(c, part * columns, FP32, "momentum part")).collect();
    let results: Vec<_> = parts.iter().filter(|&&part| part > 0).map(|&part| orthogonalize(c, part, columns)).collect();
    drop(split);
    let whole = state(c, rows * columns, FP32, "orthogonal update");
    drop(results);
    whole
}

/// `newton_schulz` on bf16 copies, and its two scales; the update is what is left.
fn orthogonalize(c: &Rank, rows: u64, columns: u64) -> Rc<Storage> {
    c.torch_product();
    let (elements, short) = (rows * columns, rows.min(columns));
    let normalized = state(c, elements, FP32, "normalised momentum");
    let mut x = state(c, elements, BF16, "newton-schulz iterate");
    drop(normalized);
    for _ in 0..ITERATIONS {
        let gram = state(c, short * short, BF16, "newton-schulz product");
        let polynomial = state(c, short * short, BF16, "newton-schulz product");
        x = state(c, elements, BF16, "newton-schulz iterate");
        drop((gram, polynomial));
    }
    let wide = state(c, elements, FP32, "orthogonal update");
    drop(x);
    let scaled = state(c, elements, FP32, "orthogonal update");
    let out = state(c, elements, FP32, "orthogonal update");
    drop((wide, scaled));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_aligned_and_end_where_buckets_may() {
        for ranks in [1, 2, 3, 8, 24, 128, 256] {
            let step = shard_step(ranks, ranks / units::gcd(ranks, 128) * 128);
            assert_eq!(step % 64, 0, "{ranks}");
            assert_eq!((step * ranks) % 128, 0, "{ranks}");
        }
    }
}
