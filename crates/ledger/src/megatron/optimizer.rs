//! AdamW with fp32 main weights (`megatron/core/optimizer/distrib_optimizer.py`,
//! `transformer_engine/pytorch/optimizers/fused_adam.py`).

use super::muon::{self, Muon};
use super::options::{ParamGather, StateFormats};
use super::rank::Rank;
use super::setup::{Buffers, Placed};
use super::supported::Sharding;
use recipe::Dtype;
use replay::line::Line;
use replay::tape::{BF16, BYTE, FP32, Storage};
use std::rc::Rc;

/// A bucket whose weights are gathered tensor by tensor.
struct Gathered {
    /// Elements of all its tensors, and of those this rank stepped.
    all: u64,
    own: u64,
}

/// The optimizer of one rank.
#[derive(Default)]
pub(super) struct Optimizer {
    /// Elements of each shard this rank steps.
    shards: Vec<u64>,
    /// What steps the matrices this rank owns, when Muon does.
    muon: Option<Muon>,
    clips: bool,
    gathers: Vec<Gathered>,
    _main: Vec<Rc<Storage>>,
    moments: Vec<Rc<Storage>>,
    /// fp32 copies of bf16 gradients, between a step and the next forward.
    gradients: Vec<Rc<Storage>>,
}

impl Optimizer {
    /// Makes the fp32 main weights: each shard is copied in bf16 first.
    pub fn new(c: &Rank, buffers: &[Buffers]) -> Optimizer {
        if c.config.deals_tensors() {
            return Optimizer::of_dealt(c, buffers);
        }
        let mut shards = Vec::new();
        let mut matrices = Vec::new();
        let mut clips = false;
        // Parameter groups: dense before experts, decayed before not.
        for (is_expert, decays) in [(false, true), (false, false), (true, true), (true, false)] {
            for buffers in buffers.iter().filter(|buffers| buffers.key.is_expert == is_expert) {
                for placed in buffers.placed.iter().filter(|placed| placed.param.decays == decays) {
                    let Some(elements) = shard(c, buffers, placed) else { continue };
                    if let Some(matrix) = placed.param.muon {
                        matrices.push(matrix);
                        continue;
                    }
                    shards.push(elements);
                    clips |= placed.param.is_block_norm;
                }
            }
        }
        let main = main_weights(c, &shards);
        let muon = (!matrices.is_empty()).then(|| Muon::new(c, matrices));
        Optimizer { shards, muon, clips, _main: main, ..Optimizer::default() }
    }

    /// The same where whole tensors are dealt out (`layer_wise_optimizer.py`): Muon's and then
    /// AdamW's, each of them from small to large.
    fn of_dealt(c: &Rank, buffers: &[Buffers]) -> Optimizer {
        let owned = muon::dealt(c, buffers);
        let is_owned = |placed: &Placed| owned.iter().any(|param| Rc::ptr_eq(param, &placed.param));
        let mut gathers = Vec::new();
        for buffers in buffers {
            for bucket in 0..buffers.buckets.len() {
                let held = buffers.placed.iter().filter(|placed| placed.bucket == bucket);
                let (all, own) = held.fold((0, 0), |(all, own), placed| {
                    let elements = placed.param.elements;
                    (all + elements, own + if is_owned(placed) { elements } else { 0 })
                });
                gathers.push(Gathered { all, own });
            }
        }
        let matrices: Vec<_> = owned.iter().filter_map(|param| param.muon).collect();
        let shards: Vec<_> = owned.iter().filter(|param| param.muon.is_none()).map(|param| param.elements).collect();
        let muon = Some(Muon::new(c, matrices));
        let main = main_weights(c, &shards);
        Optimizer { shards, muon, clips: true, gathers, _main: main, ..Optimizer::default() }
    }

    /// Weights that others stepped are gathered, when they were not behind the step: this rank's
    /// tensors of a bucket are put together first, and received through the gradients' buffer
    /// (`param_and_grad_buffer.py` `start_param_sync`). Bytes that lie in buffers need no such copy.
    pub fn gather_ahead(&self, c: &Rank) {
        let is_stepped = !self.moments.is_empty() || self.muon.as_ref().is_some_and(Muon::is_stepped);
        if c.config.told.param_gather == ParamGather::Overlapped && is_stepped {
            for bucket in &self.gathers {
                drop(state(c, bucket.own * BF16, "flattened weights"));
            }
        }
    }

    /// The same behind the step, all at once (`allgather_params`).
    fn gather_behind(&self, c: &Rank) {
        if c.config.told.param_gather == ParamGather::AtTheStep && !self.gathers.is_empty() {
            let all: u64 = self.gathers.iter().map(|bucket| bucket.all).sum();
            let own: u64 = self.gathers.iter().map(|bucket| bucket.own).sum();
            let _flat = state(c, own * BF16, "flattened weights");
            let _others = state(c, (all - own) * BF16, "gathered weights");
        }
    }

    /// Bytes at most that an update makes of AdamW's and gives back: gradients in fp32, and a clipped one at a time.
    pub fn copies(&self, c: &Rank) -> u64 {
        let fp32 = if c.config.grad_width == BF16 { self.shards.iter().sum() } else { 0 };
        (fp32 + self.shards.iter().max().unwrap_or(&0)) * FP32
    }

    /// Forgets the gradients of the last step.
    pub fn zero_grad(&mut self) {
        self.gradients.clear();
        self.muon.iter_mut().for_each(Muon::zero_grad);
    }

    /// The norm of the gradients is read on the host, which waits for the device.
    pub fn step(&mut self, c: &Rank) {
        c.tape.synchronize();
        let formats = c.config.told.precision_aware;
        if c.config.grad_width == BF16 && formats.is_none() {
            let copies = self.shards.iter().map(|elements| state(c, elements * FP32, "fp32 gradient"));
            self.gradients = copies.collect();
        }
        self.muon.iter_mut().for_each(|muon| muon.copy_gradients(c));
        // Transformer Engine 2.13 lacks `multi_tensor_scale_tensor`, so Megatron falls back to
        // `dst.copy_(src * scale)`: one temporary a shard (`optimizer/clip_grads.py`). Whether
        // the norm is above the limit depends on data; in the measured rows it was on exactly
        // the ranks whose shard holds the norm in front of a block.
        if self.clips {
            self.muon.iter().for_each(|muon| muon.clip(c));
            self.shards.iter().for_each(|elements| drop(state(c, elements * FP32, "clipped gradient")));
        }
        self.muon.iter_mut().for_each(|muon| muon.step(c));
        if self.moments.is_empty() {
            self.moments = match formats {
                Some(formats) => self.shards.iter().flat_map(|elements| narrow_state(c, *elements, formats)).collect(),
                None => self.shards.iter().flat_map(|elements| [*elements; 2]).map(|n| moment(c, n * FP32)).collect(),
            };
        }
        // What the kernel cannot read as it is becomes fp32 for the step, every shard at once.
        let widened = formats.map_or(0, widened_states);
        let _wide: Vec<_> = (0..widened)
            .flat_map(|_| self.shards.iter().map(|elements| state(c, elements * FP32, "state in fp32")))
            .collect();
        self.gather_behind(c);
    }
}

fn moment(c: &Rank, bytes: u64) -> Rc<Storage> {
    state(c, bytes, "moment")
}

/// State of one shard under a precision-aware optimizer (`fused_adam.py` `initialize_state`): both
/// moments, then the main weight, of which fp32 keeps only what bf16 lacks (`store_param_remainders`).
/// What is not fp32 has a scale.
fn narrow_state(c: &Rank, elements: u64, formats: StateFormats) -> Vec<Rc<Storage>> {
    let mut made = Vec::new();
    for format in [formats.exp_avg, formats.exp_avg_sq] {
        made.push(moment(c, elements * width(format)));
        if width(format) == BYTE {
            // Zeros that are quantized: themselves, and in fp32.
            drop((moment(c, elements), moment(c, elements * FP32)));
        }
        made.extend((format != Dtype::Fp32).then(|| moment(c, FP32)));
    }
    made.push(state(c, elements * BF16, "main weight"));
    if formats.main_weights != Dtype::Fp32 {
        made.push(moment(c, FP32));
        drop((state(c, elements * BF16, "weight shard"), state(c, elements * FP32, "main weight")));
    }
    made
}

/// States that are made fp32 for a step: fp16 and fp8 ones, and bf16 moments unless both are
/// (`fuse_unscale`).
fn widened_states(formats: StateFormats) -> usize {
    let moments = [formats.exp_avg, formats.exp_avg_sq];
    let narrow = if moments == [Dtype::Bf16; 2] { 0 } else { moments.iter().filter(|m| **m != Dtype::Fp32).count() };
    narrow + usize::from(formats.main_weights != Dtype::Fp32)
}

fn width(format: Dtype) -> u64 {
    match format {
        Dtype::Fp32 => FP32,
        Dtype::Bf16 | Dtype::Fp16 => BF16,
        _ => BYTE,
    }
}

fn main_weights(c: &Rank, shards: &[u64]) -> Vec<Rc<Storage>> {
    // A precision-aware optimizer makes them at its first step.
    let made = shards.iter().filter(|_| c.config.told.precision_aware.is_none());
    let main = made.map(|elements| {
        let _copy = state(c, elements * BF16, "weight shard");
        state(c, elements * FP32, "main weight")
    });
    let mut main: Vec<_> = main.collect();
    main.extend((0..2).map(|_| state(c, FP32, "gradient norm")));
    main
}

fn state(c: &Rank, bytes: u64, name: &'static str) -> Rc<Storage> {
    c.tape.storage(Line::OtherOptimizer, bytes, name)
}

/// Elements of a parameter in this rank's part of its bucket; all of them without sharding.
fn shard(c: &Rank, buffers: &Buffers, placed: &Placed) -> Option<u64> {
    if c.config.sharding == Sharding::None {
        return Some(placed.param.elements);
    }
    let (ranks, rank) = buffers.key.group(c);
    let bucket = &buffers.buckets[placed.bucket];
    let part = (bucket.end - bucket.start) / ranks;
    let start = bucket.start + rank * part;
    let (first, last) = (placed.range.start.max(start), placed.range.end.min(start + part));
    (last > first).then(|| last - first)
}
