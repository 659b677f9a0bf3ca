//! ZeRO 3: weights, gradients and optimizer state partitioned; weights are gathered around each
//! module and ahead of it (`runtime/zero/{stage3,partition_parameters,
//! partitioned_param_coordinator}.py`, `runtime/comm/coalesced_collectives.py`).
//!
//! Modules are whole layers here, where DeepSpeed hooks every leaf of them: a layer's weights come
//! and go together.

use super::options::DeepspeedOptions;
use super::zero::{Bucket, Zero, gradients, state, unique};
use crate::fsdp2::plain::{Engine, Param, Unit};
use replay::allocator::Stream;
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage, Tape};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A partitioned parameter.
struct Held {
    param: Rc<Param>,
    /// Whether it is too small to be partitioned away.
    persists: bool,
    gathered: RefCell<Option<Rc<Storage>>>,
    /// The coalesced gather it is still part of.
    pending: RefCell<Option<Rc<Storage>>>,
}

impl Held {
    fn is_available(&self) -> bool {
        self.gathered.borrow().is_some() || self.pending.borrow().is_some()
    }
}

pub(super) struct Stage3 {
    tape: Tape,
    shards: u64,
    told: DeepspeedOptions,
    params: Vec<Held>,
    /// Parameters of each unit, by place in `params`.
    units: Vec<Vec<usize>>,
    bucket: Cell<Bucket>,
    _state: Vec<Rc<Storage>>,
    /// Units in the order of forward passes, known once a step has run.
    trace: RefCell<Vec<usize>>,
    is_traced: Cell<bool>,
    sub_groups: Vec<u64>,
}

impl Stage3 {
    pub fn new(tape: &Tape, units: &[Unit], shards: u64, told: &DeepspeedOptions) -> Stage3 {
        let all = unique(units);
        let place = |param: &Rc<Param>| all.iter().position(|known| Rc::ptr_eq(known, param)).unwrap_or(0);
        let units = units.iter().map(|unit| unit.params.iter().map(place).collect()).collect();
        let mut kept = Vec::new();
        if told.offload_param.is_none() {
            let shard = |param: &Rc<Param>| part(param, shards) * BF16;
            kept.extend(all.iter().map(|param| tape.storage(param.line, shard(param), "weight partition")));
        }
        let parts: u64 = all.iter().map(|param| part(param, shards)).sum();
        let sub_groups = sub_groups(&all, shards, told.sub_group_size);
        if told.offload_optimizer.is_none() {
            kept.extend(sub_groups.iter().map(|&n| state(tape, n, "main weights")));
            // States are made by a step over gradients of zero.
            let zeros = gradients(tape, sub_groups.iter().copied().max().unwrap_or(0), FP32, "zero gradients");
            kept.extend(sub_groups.iter().flat_map(|&n| [state(tape, n, "moment"), state(tape, n, "moment")]));
            drop(zeros);
        }
        kept.push(tape.storage(Line::Workspaces, told.reduce_bucket_size * BF16, "reduce bucket"));
        if told.offload_optimizer.is_none() {
            kept.push(gradients(tape, parts, told.gradient_bytes(), "gradient partitions"));
        }
        let hold = |param: Rc<Param>| {
            let persists = param.elements() <= told.param_persistence_threshold;
            let whole = persists.then(|| tape.storage(param.line, padded(&param, shards) * BF16, "persistent weight"));
            Held { param, persists, gathered: RefCell::new(whole), pending: RefCell::default() }
        };
        Stage3 {
            tape: tape.clone(),
            shards,
            told: told.clone(),
            params: all.into_iter().map(hold).collect(),
            units,
            bucket: Cell::default(),
            _state: kept,
            trace: RefCell::default(),
            is_traced: Cell::new(false),
            sub_groups,
        }
    }

    fn unit_elements(&self, unit: usize) -> u64 {
        self.units[unit].iter().map(|&index| self.params[index].param.elements()).sum()
    }

    /// Starts one gather for all of these that are not here.
    fn gather(&self, indices: &[usize]) {
        let missing: Vec<_> = indices.iter().filter(|&&index| !self.params[index].is_available()).collect();
        let whole: u64 = missing.iter().map(|&&index| padded(&self.params[index].param, self.shards)).sum();
        if whole == 0 {
            return;
        }
        let copy = |bytes| self.tape.storage(Line::Communication, bytes, "partition from host");
        let flat = self.tape.storage(Line::Communication, whole * BF16, "coalesced gather");
        drop(self.told.offload_param.map(|_| copy(whole / self.shards * BF16)));
        for &&index in &missing {
            *self.params[index].pending.borrow_mut() = Some(flat.clone());
        }
    }

    /// Waits for a unit's weights, which are copied out of their gathers, and gathers ahead.
    fn fetch(&self, unit: usize, ahead: impl Iterator<Item = usize>) {
        self.tape.on_stream(Stream::Side);
        self.gather(&self.units[unit]);
        for &index in &self.units[unit] {
            let held = &self.params[index];
            let pending = held.pending.take();
            if pending.is_some() {
                let bytes = padded(&held.param, self.shards) * BF16;
                *held.gathered.borrow_mut() = Some(self.tape.storage(Line::Communication, bytes, "gathered weight"));
            }
        }
        if self.is_traced.get() {
            self.prefetch(ahead);
        }
        self.tape.on_stream(Stream::Main);
    }

    fn live(&self) -> u64 {
        self.params.iter().filter(|held| held.is_available()).map(|held| held.param.elements()).sum()
    }

    fn prefetch(&self, ahead: impl Iterator<Item = usize>) {
        let most = self.told.prefetch_bucket_size.min(self.told.max_live_parameters.saturating_sub(self.live()));
        let (mut chosen, mut elements) = (Vec::new(), 0);
        let next = ahead.flat_map(|unit| self.units[unit].iter().copied());
        for index in next.filter(|&index| !self.params[index].is_available()) {
            if elements >= most {
                break;
            }
            if !chosen.contains(&index) {
                elements += self.params[index].param.elements();
                chosen.push(index);
            }
        }
        self.gather(&chosen);
    }

    fn release(&self, unit: usize) {
        for &index in &self.units[unit] {
            let held = &self.params[index];
            if !held.persists {
                held.gathered.take();
            }
        }
    }

    /// Whether a unit is used again within the reuse distance: everything behind it lies between,
    /// once forward and once backward.
    fn is_used_again_soon(&self, unit: usize) -> bool {
        let trace = self.trace.borrow();
        let behind = trace.iter().skip_while(|&&other| other != unit).skip(1);
        let between: u64 = behind.map(|&other| 2 * self.unit_elements(other)).sum();
        self.is_traced.get() && between < self.told.max_reuse_distance
    }

    /// Gradients that wait on the host come back one by one and are cast, and all of them stand here in fp32 before the
    /// first is swapped out (`_finalize_offload_gradient_accumulation`).
    fn swap_out_gradients(&self) {
        let cast = |held: &Held| {
            let elements = part(&held.param, self.shards);
            let narrow = || gradients(&self.tape, elements, BF16, "gradient from host");
            let _narrow = (!self.told.accumulates_wide()).then(narrow);
            gradients(&self.tape, elements, FP32, "fp32 gradient")
        };
        let all: Vec<_> = self.params.iter().map(cast).collect();
        drop(all);
    }

    /// Reduces and scatters the bucket: with several gradients in it a second flat copy is made.
    fn reduce(&self) {
        let bucket = self.bucket.take();
        if bucket.count > 1 {
            drop(self.tape.storage(Line::Communication, bucket.held * BF16, "scatter input"));
        }
        if bucket.count > 0 && self.told.accumulates_wide() {
            // What this rank was given, cast before it is added to its partitions.
            drop(gradients(&self.tape, bucket.held.div_ceil(self.shards), FP32, "fp32 gradients"));
        }
    }
}

/// Elements of one rank's part of a parameter.
pub(super) fn part(param: &Param, shards: u64) -> u64 {
    param.elements().div_ceil(shards)
}

fn padded(param: &Param, shards: u64) -> u64 {
    part(param, shards) * shards
}

/// Parts that are stepped together (`_create_fp16_sub_groups`).
fn sub_groups(params: &[Rc<Param>], shards: u64, size: u64) -> Vec<u64> {
    let (mut groups, mut held) = (Vec::new(), 0);
    for param in params {
        held += part(param, shards);
        if held >= size {
            groups.push(std::mem::take(&mut held));
        }
    }
    groups.extend((held > 0).then_some(held));
    groups
}

impl Engine for Stage3 {
    fn pre_forward(&self, unit: usize) {
        let ahead: Vec<_> = self.trace.borrow().iter().skip_while(|&&other| other != unit).skip(1).copied().collect();
        self.fetch(unit, ahead.into_iter());
        if !self.is_traced.get() && !self.trace.borrow().contains(&unit) {
            self.trace.borrow_mut().push(unit);
        }
    }

    fn post_forward(&self, unit: usize) {
        if !self.is_used_again_soon(unit) {
            self.release(unit);
        }
    }

    fn pre_backward(&self, unit: usize) {
        let trace = self.trace.borrow().clone();
        self.fetch(unit, trace.into_iter().rev().skip_while(move |&other| other != unit).skip(1));
    }

    fn post_backward(&self, unit: usize) {
        self.release(unit);
    }
}

impl Zero for Stage3 {
    fn grad_ready(&self, index: usize) {
        let param = &self.params[index].param;
        let Some(grad) = param.leaf.take_grad() else { return };
        if self.bucket.get().overflows(param.elements(), self.told.reduce_bucket_size) {
            self.reduce();
        }
        let mut bucket = self.bucket.get();
        bucket.add(param.elements());
        self.bucket.set(bucket);
        drop(grad);
    }

    fn end_of_backward(&self, is_last: bool) {
        self.reduce();
        if is_last && self.told.on_nvme && self.told.offload_optimizer.is_some() {
            self.swap_out_gradients();
        }
        (0..self.units.len()).for_each(|unit| self.release(unit));
        self.params.iter().for_each(|held| drop(held.pending.take()));
        self.is_traced.set(true);
    }

    fn standing(&self) -> Vec<u64> {
        let Bucket { held, count } = self.bucket.get();
        let here = |held: &Held| [held.gathered.borrow().is_some(), held.pending.borrow().is_some()].map(u64::from);
        let mut standing = vec![held, count, u64::from(self.is_traced.get())];
        standing.extend(self.trace.borrow().iter().map(|unit| *unit as u64));
        standing.extend(self.params.iter().flat_map(here));
        standing
    }

    /// A sub-group at a time: its gradients flattened, then in fp32 where they are not.
    fn step(&self) {
        if self.told.offload_optimizer.is_some() {
            return;
        }
        for &elements in &self.sub_groups {
            let flat = gradients(&self.tape, elements, self.told.gradient_bytes(), "flat gradient");
            let _fp32 = (!self.told.accumulates_wide()).then(|| gradients(&self.tape, elements, FP32, "fp32 gradient"));
            drop(flat);
        }
    }
}
