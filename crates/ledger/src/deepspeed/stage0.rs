//! No ZeRO: fp32 master weights and moments whole on every rank
//! (`runtime/fp16/fused_optimizer.py`, which wraps bf16 models too; `runtime/engine.py`
//! `buffered_allreduce_fallback`).

use super::zero::{Zero, elements, flat_weights, gradients, state};
use crate::fsdp2::plain::{Engine, Param};
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage, Tape};
use std::rc::Rc;

pub(super) struct Stage0 {
    tape: Tape,
    params: Vec<Rc<Param>>,
    total: u64,
    bucket_size: u64,
    _state: Vec<Rc<Storage>>,
}

impl Stage0 {
    pub fn new(tape: &Tape, params: Vec<Rc<Param>>, bucket_size: u64) -> Stage0 {
        let total = elements(&params);
        let weights = flat_weights(tape, &params, total);
        let copy = tape.storage(Line::OtherOptimizer, total * BF16, "copy of weights");
        let main = state(tape, total, "main weights");
        drop(copy);
        // States are made by a step over gradients of zero.
        let zeros = gradients(tape, total, FP32, "zero gradients");
        let moments = [state(tape, total, "moment"), state(tape, total, "moment")];
        drop(zeros);
        let state = [weights, main].into_iter().chain(moments).collect();
        Stage0 { tape: tape.clone(), params, total, bucket_size, _state: state }
    }
}

impl Engine for Stage0 {
    fn pre_forward(&self, _unit: usize) {}
    fn post_forward(&self, _unit: usize) {}
    fn pre_backward(&self, _unit: usize) {}
    fn post_backward(&self, _unit: usize) {}
}

impl Zero for Stage0 {
    fn grad_ready(&self, _index: usize) {}

    /// Gradients are flattened a bucket at a time, reduced and copied back.
    fn end_of_backward(&self, is_last: bool) {
        if is_last {
            drop(self.tape.storage(Line::Communication, self.total.min(self.bucket_size) * BF16, "reduce bucket"));
        }
    }

    fn standing(&self) -> Vec<u64> {
        self.params.iter().map(|param| u64::from(param.leaf.grad().is_some())).collect()
    }

    /// fp32 copies of all gradients, then the flat gradient made from them.
    fn step(&self) {
        let copies: Vec<_> =
            self.params.iter().map(|p| gradients(&self.tape, p.elements(), FP32, "fp32 gradient")).collect();
        let _flat = gradients(&self.tape, self.total, FP32, "flat gradient");
        drop(copies);
        self.params.iter().for_each(|param| drop(param.leaf.take_grad()));
    }
}
