//! What the ZeRO stages have in common: a list of parameters without repeats, a bucket that
//! gradients are copied into, and state booked on its line.

use crate::fsdp2::plain::{Engine, Param, Unit};
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage, Tape};
use std::collections::HashSet;
use std::rc::Rc;

/// A stage of ZeRO around one rank's model.
pub(super) trait Zero: Engine {
    /// A parameter's gradient has been computed.
    fn grad_ready(&self, index: usize);
    /// A microbatch's backward has run; the last one of a step ends reduction.
    fn end_of_backward(&self, is_last: bool);
    /// The optimizer's step.
    fn step(&self);
    /// What it decides by between microbatches, beside what the tape holds.
    fn standing(&self) -> Vec<u64>;
}

/// Parameters of all units in order; a tied one once.
pub(super) fn unique(units: &[Unit]) -> Vec<Rc<Param>> {
    let mut known = HashSet::new();
    let all = units.iter().flat_map(|unit| &unit.params);
    all.filter(|param| known.insert(Rc::as_ptr(param))).cloned().collect()
}

/// Elements of some parameters.
pub(super) fn elements(params: &[Rc<Param>]) -> u64 {
    params.iter().map(|param| param.elements()).sum()
}

/// One flat half-precision buffer for parameters of several lines; padding goes to the first.
/// The parameters it is made from are there until it stands.
pub(super) fn flat_weights(tape: &Tape, params: &[Rc<Param>], total: u64) -> Rc<Storage> {
    let apart: Vec<_> = params.iter().map(|p| tape.storage(p.line, p.elements() * BF16, "weight")).collect();
    let shares = Line::ALL.into_iter().filter_map(|line| {
        let bytes: u64 = params.iter().filter(|p| p.line == line).map(|p| p.elements() * BF16).sum();
        (bytes > 0).then_some((line, bytes))
    });
    let flat = tape.shared_storage(shares.collect(), total * BF16, "flat weights");
    drop(apart);
    flat
}

/// fp32 state of an optimizer.
pub(super) fn state(tape: &Tape, elements: u64, name: &'static str) -> Rc<Storage> {
    tape.storage(Line::OtherOptimizer, elements * FP32, name)
}

/// Gradients, whole or partitioned.
pub(super) fn gradients(tape: &Tape, elements: u64, width: u64, name: &'static str) -> Rc<Storage> {
    tape.storage(Line::Gradients, elements * width, name)
}

/// Elements copied into the buffer that is reduced when full.
#[derive(Clone, Copy, Default)]
pub(super) struct Bucket {
    pub held: u64,
    /// Parameters in it.
    pub count: u64,
}

impl Bucket {
    /// Whether `elements` more would overflow it.
    pub fn overflows(self, elements: u64, size: u64) -> bool {
        self.count > 0 && self.held + elements > size
    }

    pub fn add(&mut self, elements: u64) {
        self.held += elements;
        self.count += 1;
    }
}
