//! ZeRO 1 and 2: whole weights in one flat buffer, optimizer state over a partition of it, and
//! gradients reduced through a bucket (`runtime/zero/stage_1_and_2.py`).
//!
//! Gradients accumulated in fp32 lie in one flat partition on the device, with state on the host too
//! (`_build_compact_grad_partition_buffer`); under ZeRO 1, which then is of state on the host alone, all of them are
//! whole besides until the last microbatch (`_fill_param_grad_accum_attribute`).

use super::options::DeepspeedOptions;
use super::zero::{Bucket, Zero, elements, flat_weights, gradients, state};
use crate::fsdp2::plain::{Engine, Param};
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage, Tape};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Partitions begin at multiples of so many elements (`nccl_start_alignment_factor`).
const ALIGNMENT: u64 = 2;

pub(super) struct Stage12 {
    tape: Tape,
    params: Vec<Rc<Param>>,
    bucket_size: u64,
    buffers: u64,
    partition: u64,
    /// Whether gradients of other ranks' partitions are freed as they are reduced (ZeRO 2).
    partitions_gradients: bool,
    is_offloaded: bool,
    /// Whether gradients are accumulated in fp32.
    is_wide: bool,
    /// Whether whole gradients are kept until the last microbatch (ZeRO 1).
    waits: bool,
    /// Whole gradients in fp32, by parameter.
    whole: RefCell<Vec<Option<Rc<Storage>>>>,
    /// The largest parameter in the bucket.
    largest: Cell<u64>,
    bucket: Cell<Bucket>,
    _state: Vec<Rc<Storage>>,
    moments: RefCell<Vec<Rc<Storage>>>,
    ipg: RefCell<Vec<Rc<Storage>>>,
    owned: RefCell<Option<Rc<Storage>>>,
}

/// What a step is like.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub partitions_gradients: bool,
    pub microbatches: u64,
}

/// Elements of one rank's partition of the flat buffer.
pub(super) fn partition(params: &[Rc<Param>], shards: u64) -> u64 {
    elements(params).div_ceil(ALIGNMENT * shards) * ALIGNMENT
}

impl Stage12 {
    pub fn new(tape: &Tape, params: Vec<Rc<Param>>, shards: u64, step: Step, told: &DeepspeedOptions) -> Stage12 {
        let partition = partition(&params, shards);
        let mut kept = vec![flat_weights(tape, &params, partition * shards)];
        let is_offloaded = told.offload_optimizer.is_some();
        if is_offloaded {
            // Gradients pass through a buffer of the largest parameter on their way to the host.
            let largest = params.iter().map(|param| param.elements()).max().unwrap_or(0);
            kept.push(gradients(tape, largest, BF16, "offload buffer"));
        } else {
            let copy = tape.storage(Line::OtherOptimizer, partition * BF16, "copy of partition");
            kept.push(state(tape, partition, "main weights"));
            drop(copy);
            drop(gradients(tape, partition, FP32, "zero gradients"));
        }
        let is_wide = told.accumulates_wide();
        Stage12 {
            tape: tape.clone(),
            whole: RefCell::new(vec![None; params.len()]),
            largest: Cell::default(),
            is_wide,
            params,
            bucket_size: told.reduce_bucket_size,
            buffers: if told.overlap_comm == Some(true) { 2 } else { 1 },
            partition,
            partitions_gradients: step.partitions_gradients,
            is_offloaded,
            waits: !step.partitions_gradients && (step.microbatches > 1 || is_wide),
            bucket: Cell::default(),
            _state: kept,
            moments: RefCell::default(),
            ipg: RefCell::default(),
            owned: RefCell::default(),
        }
    }

    /// Whether whole gradients wait in fp32.
    fn keeps_whole(&self) -> bool {
        self.is_wide && !self.partitions_gradients
    }

    /// Bytes of a gradient in the bucket (`_gradient_reduction_buffer_dtype`).
    fn width(&self) -> u64 {
        if self.keeps_whole() { FP32 } else { BF16 }
    }

    /// Buffers are made when a pass first needs them (`setup_buckets`).
    fn make_buffers(&self) {
        let mut ipg = self.ipg.borrow_mut();
        if ipg.is_empty() {
            let make = |_| self.tape.storage(Line::Communication, self.bucket_size * self.width(), "reduce bucket");
            ipg.extend((0..self.buffers).map(make));
        }
    }

    fn make_moments(&self) {
        let mut moments = self.moments.borrow_mut();
        if moments.is_empty() {
            moments.extend((0..2).map(|_| state(&self.tape, self.partition, "moment")));
        }
    }

    /// Reduces what the bucket holds: this rank's part moves into its partition of gradients.
    fn reduce(&self) {
        let bucket = self.bucket.take();
        if bucket.count > 0 && self.is_wide {
            let make = || gradients(&self.tape, self.partition, FP32, "gradient partition");
            self.owned.borrow_mut().get_or_insert_with(make);
            // Slices of several parameters are reduced as a copy, in bf16, and each is added in fp32.
            let copy = |bytes, name| self.tape.storage(Line::Communication, bytes, name);
            let _slices = (bucket.count > 1).then(|| copy(bucket.held * self.width(), "reduced slices"));
            let _narrow = self.keeps_whole().then(|| copy(bucket.held * BF16, "slices in bf16"));
            drop(copy(self.largest.take().min(self.partition) * FP32, "fp32 slice"));
        } else if bucket.count > 0 && !self.is_offloaded {
            let make = || gradients(&self.tape, self.partition, BF16, "gradient partition");
            self.owned.borrow_mut().get_or_insert_with(make);
        }
    }

    /// Copies one gradient into the bucket; one that is larger than the bucket is reduced alone.
    fn take(&self, index: usize) {
        let param = &self.params[index];
        let whole = self.whole.borrow_mut()[index].take();
        let grad = param.leaf.take_grad();
        if grad.is_none() && whole.is_none() {
            return;
        }
        let mut bucket = self.bucket.get();
        if bucket.overflows(param.elements(), self.bucket_size) {
            self.reduce();
            bucket = self.bucket.get();
        }
        bucket.add(param.elements());
        self.largest.set(self.largest.get().max(param.elements()));
        self.bucket.set(bucket);
        if param.elements() > self.bucket_size {
            self.reduce();
        }
        drop((grad, whole));
    }

    /// A gradient is cast as it arrives, and added to what is there.
    fn cast(&self, index: usize) {
        self.make_buffers();
        let param = &self.params[index];
        let Some(grad) = param.leaf.take_grad() else { return };
        let wide = gradients(&self.tape, param.elements(), FP32, "whole gradient");
        self.whole.borrow_mut()[index].get_or_insert(wide);
        drop(grad);
    }
}

impl Engine for Stage12 {
    fn pre_backward(&self, _unit: usize) {
        if !self.waits {
            self.make_buffers();
        }
    }

    fn pre_forward(&self, _unit: usize) {}
    fn post_forward(&self, _unit: usize) {}
    fn post_backward(&self, _unit: usize) {}
}

impl Zero for Stage12 {
    fn grad_ready(&self, index: usize) {
        if self.keeps_whole() {
            self.cast(index);
        } else if !self.waits {
            self.take(index);
        }
    }

    fn end_of_backward(&self, is_last: bool) {
        if self.waits && is_last {
            self.make_buffers();
            (0..self.params.len()).for_each(|index| self.take(index));
        }
        self.reduce();
        // Under ZeRO 1 gradients of other ranks' partitions stay views of the buffer.
        if self.partitions_gradients || (self.is_wide && is_last) {
            self.ipg.borrow_mut().clear();
        }
    }

    fn standing(&self) -> Vec<u64> {
        let Bucket { held, count } = self.bucket.get();
        let buffers = [self.ipg.borrow().len(), self.moments.borrow().len(), self.owned.borrow().iter().count()];
        let given = self.params.iter().map(|param| u64::from(param.leaf.grad().is_some()));
        let whole = self.whole.borrow().iter().flatten().count() as u64;
        [held, count, whole].into_iter().chain(buffers.map(|len| len as u64)).chain(given).collect()
    }

    /// The partition's gradients flattened, then in fp32; moments are made at the first step.
    fn step(&self) {
        if self.is_offloaded {
            self.ipg.borrow_mut().clear();
            self.owned.take();
            return;
        }
        if self.is_wide {
            // The partition is fp32 and flat already.
            self.make_moments();
            self.owned.take();
            return;
        }
        let flat = gradients(&self.tape, self.partition, BF16, "flat gradient");
        let fp32 = gradients(&self.tape, self.partition, FP32, "fp32 gradient");
        drop(flat);
        self.owned.take();
        self.ipg.borrow_mut().clear();
        self.make_moments();
        drop(fp32);
    }
}
