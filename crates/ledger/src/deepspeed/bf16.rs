//! ZeRO 1 with bf16 weights and fp32 accumulation, where no state is on the host: `BF16_Optimizer`
//! (`runtime/bf16_optimizer.py`; `_do_optimizer_sanity_check` of `runtime/engine.py` chooses it). Main weights and
//! moments are a partition's; accumulated gradients are fp32 and whole on every rank.

use super::stage12::partition;
use super::zero::{Zero, flat_weights, gradients, state};
use crate::fsdp2::plain::{Engine, Param};
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage, Tape};
use std::cell::RefCell;
use std::rc::Rc;

pub(super) struct Bf16 {
    tape: Tape,
    params: Vec<Rc<Param>>,
    total: u64,
    partition: u64,
    _state: Vec<Rc<Storage>>,
    moments: RefCell<Vec<Rc<Storage>>>,
}

impl Bf16 {
    pub fn new(tape: &Tape, params: Vec<Rc<Param>>, shards: u64) -> Bf16 {
        let partition = partition(&params, shards);
        let total = partition * shards;
        let weights = flat_weights(tape, &params, total);
        let copy = tape.storage(Line::OtherOptimizer, partition * BF16, "copy of partition");
        let main = state(tape, partition, "main weights");
        drop(copy);
        let accumulated = gradients(tape, total, FP32, "accumulated gradients");
        Bf16 {
            tape: tape.clone(),
            params,
            total,
            partition,
            _state: vec![weights, main, accumulated],
            moments: RefCell::default(),
        }
    }
}

impl Engine for Bf16 {
    fn pre_forward(&self, _unit: usize) {}
    fn post_forward(&self, _unit: usize) {}
    fn pre_backward(&self, _unit: usize) {}
    fn post_backward(&self, _unit: usize) {}
}

impl Zero for Bf16 {
    /// Added to the accumulator as it arrives (`immediate_grad_update`), by an fp32 copy of it.
    fn grad_ready(&self, index: usize) {
        let param = &self.params[index];
        if let Some(grad) = param.leaf.take_grad() {
            drop(gradients(&self.tape, param.elements(), FP32, "fp32 gradient"));
            drop(grad);
        }
    }

    /// All accumulators are one tensor, which is reduced as a copy in bf16 (`allreduce_bucket`).
    fn end_of_backward(&self, is_last: bool) {
        if is_last {
            drop(self.tape.storage(Line::Communication, self.total * BF16, "gradients in bf16"));
        }
    }

    fn standing(&self) -> Vec<u64> {
        let given = self.params.iter().map(|param| u64::from(param.leaf.grad().is_some()));
        std::iter::once(self.moments.borrow().len() as u64).chain(given).collect()
    }

    /// Gradients of the partition are a view; moments are made at the first step.
    fn step(&self) {
        let mut moments = self.moments.borrow_mut();
        if moments.is_empty() {
            moments.extend((0..2).map(|_| state(&self.tape, self.partition, "moment")));
        }
    }
}
