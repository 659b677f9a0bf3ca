//! What stands before the first step: weights, then the buffers of distributed data parallel
//! (`megatron/core/distributed/param_and_grad_buffer.py`, `optimizer/distrib_optimizer.py`).

use super::fp8;
use super::model::Chunk;
use super::muon;
use super::options::{Fp8Recipe, Reduction};
use super::params::{Origin, Param};
use super::rank::Rank;
use super::supported::Sharding;
use replay::allocator::Stream;
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage};
use std::ops::Range;
use std::rc::Rc;

/// Elements of all parameters; a tied head counts once.
pub(super) fn count(chunks: &[Chunk]) -> u64 {
    chunks.iter().flat_map(|chunk| &chunk.params).map(|param| param.elements).sum()
}

/// Builds the weights in Megatron's order.
pub(super) fn build_model(c: &Rank, chunks: &[Chunk]) {
    for chunk in chunks {
        for param in chunk.params.iter().filter(|param| param.origin != Origin::Host) {
            let width = if param.origin == Origin::Fp32 { FP32 } else { BF16 };
            let replaced = match param.origin {
                Origin::Replacing(elements) => Some(weight(c, param.line, elements * BF16)),
                _ => None,
            };
            *param.data.borrow_mut() = Some(weight(c, param.line, param.elements * width));
            drop(replaced);
            if let Some(recipe) = quantized(c, param) {
                let rows = fp8::quantize_weight(c, param, recipe);
                *param.data.borrow_mut() = Some(rows);
            }
        }
        for origin in [Origin::Host, Origin::Fp32] {
            for param in chunk.params.iter().filter(|param| param.origin == origin) {
                let data = weight(c, param.line, param.elements * BF16);
                *param.data.borrow_mut() = Some(data);
            }
        }
    }
}

/// The recipe a parameter is kept in, when it is not in bf16.
fn quantized(c: &Rank, param: &Param) -> Option<Fp8Recipe> {
    c.config.quantized_weights.filter(|_| param.is_te)
}

fn weight(c: &Rank, line: Line, bytes: u64) -> Rc<Storage> {
    c.tape.storage(line, bytes, "weight")
}

/// A parameter's place in its buffer.
pub(super) struct Placed {
    pub param: Rc<Param>,
    pub range: Range<u64>,
    pub bucket: usize,
}

/// Which parameters share a buffer (`optimizer/param_layout.py` BufferKey).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub is_expert: bool,
    /// Whether each is owned whole by one data-parallel rank, because Muon steps it.
    pub by_tensor: bool,
    /// The recipe they are kept in: their buffer is one of `uint8`.
    pub quantized: Option<Fp8Recipe>,
}

/// The buffers of one chunk's parameters of one key.
pub(super) struct Buffers {
    pub key: Key,
    pub placed: Vec<Placed>,
    pub buckets: Vec<Range<u64>>,
    _held: Vec<Rc<Storage>>,
}

impl Key {
    /// The data-parallel group that shares such parameters out, and this rank's place in it.
    pub fn group(self, c: &Rank) -> (u64, u64) {
        if self.is_expert { c.config.expert_group } else { c.config.dense_group }
    }
}

/// Elements after which a bucket is closed. The trainer puts only the first chunk of the first stage
/// into buckets, and counts context parts among the ranks (`training.py` `resolve_ddp_bucket_size`).
fn bucket_size(c: &Rank, chunks: &[Chunk], chunk: usize) -> u64 {
    let (told, trained) = (&c.config.told, c.config.is_trained());
    if told.reduction == Reduction::AtTheEnd || trained && (chunk > 0 || c.config.stage > 0) {
        return u64::MAX;
    }
    let ranks = if trained { c.config.dense_group.0 } else { c.config.dp };
    let elements = || chunks.iter().flat_map(|chunk| &chunk.params).map(|param| param.elements).sum::<u64>();
    match (told.num_buckets, told.bucket_size) {
        (Some(buckets), _) => elements() / buckets,
        (None, Some(size)) => size,
        (None, None) => (1_000_000 * ranks).max(40_000_000),
    }
}

/// Where buckets end: so that every rank's part is whole and aligned, and large messages are multiples
/// of powers of two where that is asked for (`optimizer/param_layout.py` `bucket_end_divisor`).
pub(super) fn bucket_step(c: &Rank, ranks: u64) -> u64 {
    let aligned = if c.config.told.pad_buckets { 1 << 16 } else { 128 };
    ranks / units::gcd(ranks, aligned) * aligned
}

/// One set of buffers a chunk and kind. With the distributed optimizer, weights move into the
/// buffer and their old storages are freed.
pub(super) fn build_buffers(c: &Rank, chunks: &[Chunk]) -> Vec<Buffers> {
    let shards = c.config.sharding == Sharding::Optimizer && !c.config.deals_tensors();
    let mut all = Vec::new();
    if c.config.is_trained() {
        c.tape.on_stream(Stream::Buffers);
    }
    for (index, chunk) in chunks.iter().enumerate() {
        let size = bucket_size(c, chunks, index);
        // In the order in which the kinds are first met.
        let key = |param: &Param| Key {
            is_expert: param.is_expert,
            by_tensor: shards && param.muon.is_some(),
            quantized: quantized(c, param),
        };
        let mut keys: Vec<Key> = Vec::new();
        for param in chunk.params.iter().filter(|param| param.elements > 0) {
            if !keys.contains(&key(param)) {
                keys.push(key(param));
            }
        }
        for wanted in keys {
            for group in groups(c, chunk) {
                let params: Vec<_> = group.into_iter().filter(|param| key(param) == wanted).collect();
                if !params.is_empty() {
                    all.push(build(c, &params, wanted, size));
                }
            }
        }
    }
    c.tape.on_stream(Stream::Main);
    all
}

/// Parameters that may share a buffer: all of a chunk, or under Megatron-FSDP those of a unit.
fn groups<'a>(c: &Rank, chunk: &'a Chunk) -> Vec<Vec<&'a Rc<Param>>> {
    if !c.config.sharding.is_fsdp() {
        return vec![chunk.params.iter().collect()];
    }
    let units = chunk.ranges.iter().map(|range| chunk.params[range.clone()].iter().collect());
    let is_outside = |index: &usize| !chunk.ranges.iter().any(|range| range.contains(index));
    let outside = (0..chunk.params.len()).filter(is_outside).map(|index| &chunk.params[index]).collect();
    units.chain([outside]).collect()
}

fn build(c: &Rank, params: &[&Rc<Param>], key: Key, size: u64) -> Buffers {
    let (placed, buckets) = if key.by_tensor { muon::place(c, params, key, size) } else { place(c, params, key, size) };
    let elements = buckets.last().map_or(0, |bucket| bucket.end);
    let (sharding, ranks) = (c.config.sharding, key.group(c).0);
    let (weight_ranks, grad_ranks) = match sharding {
        Sharding::None | Sharding::Optimizer => (1, 1),
        Sharding::Gradients => (1, ranks),
        Sharding::Everything => (ranks, ranks),
    };
    let mut held = Vec::new();
    // MXFP8's scales cannot move into a buffer: such weights keep their own storages and are
    // gathered through the gradients' buffer (`reuse_grad_buf_for_mxfp8_param_ag`).
    let moves = sharding != Sharding::None && !c.config.deals_tensors() && key.quantized != Some(Fp8Recipe::Mxfp8);
    if moves {
        let bytes = |elements: u64| key.quantized.map_or(elements * BF16, |recipe| recipe.data(elements));
        held.push(c.tape.shared_storage(
            shares(params, weight_ranks, bytes),
            bytes(elements) / weight_ranks,
            "weights",
        ));
    }
    let gradients = elements * c.config.grad_width / grad_ranks;
    held.push(c.tape.storage(Line::Gradients, gradients, "gradient buffer"));
    if moves {
        placed.iter().for_each(|placed| drop(placed.param.data.take()));
    }
    Buffers { key, placed, buckets, _held: held }
}

/// Bytes of a parameter buffer by line.
fn shares(params: &[&Rc<Param>], ranks: u64, bytes: impl Fn(u64) -> u64) -> Vec<(Line, u64)> {
    let lines = [Line::TpParams, Line::ReplicatedParams, Line::ExpertParams];
    let of = |line| params.iter().filter(|p| p.line == line).map(|p| bytes(p.elements)).sum::<u64>() / ranks;
    lines.map(|line| (line, of(line))).into_iter().filter(|share| share.1 > 0).collect()
}

/// Backward's order, each start padded to 64 elements (`distrib_optimizer.py`).
fn place(c: &Rank, params: &[&Rc<Param>], key: Key, bucket_size: u64) -> (Vec<Placed>, Vec<Range<u64>>) {
    let ranks = key.group(c).0;
    let is_padded = c.config.sharding != Sharding::None && !c.config.deals_tensors();
    let pad = |at: u64, step: u64| if is_padded { at.next_multiple_of(step) } else { at };
    let bucket_step = bucket_step(c, ranks);
    let (mut at, mut start) = (0, 0);
    let (mut placed, mut buckets) = (Vec::new(), Vec::new());
    for param in params.iter().rev() {
        at = pad(at, 64);
        let range = at..at + param.elements;
        at = range.end;
        placed.push(Placed { param: Rc::clone(param), range, bucket: buckets.len() });
        if at - start >= bucket_size {
            at = pad(at, bucket_step);
            buckets.push(start..at);
            start = at;
        }
    }
    if buckets.is_empty() || at > start {
        buckets.push(start..pad(at, bucket_step));
    }
    (placed, buckets)
}
