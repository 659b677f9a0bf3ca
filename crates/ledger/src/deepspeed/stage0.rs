//! No ZeRO: fp32 master weights and moments whole on every rank, each parameter by itself
//! (`runtime/fp16/unfused_optimizer.py`, which wraps bf16 models too where AdamW is torch's; `runtime/engine.py`
//! `buffered_allreduce_fallback`).

use super::zero::{Zero, elements, gradients, state};
use crate::fsdp2::plain::{Engine, Param};
use replay::line::Line;
use replay::tape::{BF16, FP32, Storage, Tape};
use std::rc::Rc;

/// Elements that are reduced at once (`MEMORY_OPT_ALLREDUCE_SIZE`).
const AT_ONCE: u64 = 500_000_000;

pub(super) struct Stage0 {
    tape: Tape,
    params: Vec<Rc<Param>>,
    total: u64,
    _state: Vec<Rc<Storage>>,
}

impl Stage0 {
    pub fn new(tape: &Tape, params: Vec<Rc<Param>>) -> Stage0 {
        let weight = |p: &Rc<Param>| tape.storage(p.line, p.elements() * BF16, "weight");
        let mut kept: Vec<_> = params.iter().map(weight).collect();
        for param in &params {
            let copy = tape.storage(Line::OtherOptimizer, param.elements() * BF16, "copy of a weight");
            kept.push(state(tape, param.elements(), "main weight"));
            drop(copy);
        }
        // States are made by a step over gradients of zero.
        let zeros: Vec<_> = params.iter().map(|p| gradients(tape, p.elements(), FP32, "zero gradient")).collect();
        kept.extend(params.iter().flat_map(|p| [(); 2].map(|()| state(tape, p.elements(), "moment"))));
        drop(zeros);
        Stage0 { tape: tape.clone(), total: elements(&params), params, _state: kept }
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
            drop(self.tape.storage(Line::Communication, self.total.min(AT_ONCE) * BF16, "reduce bucket"));
        }
    }

    fn standing(&self) -> Vec<u64> {
        self.params.iter().map(|param| u64::from(param.leaf.grad().is_some())).collect()
    }

    /// fp32 copies of all gradients; both are freed behind the step.
    fn step(&self) {
        let copies: Vec<_> =
            self.params.iter().map(|p| gradients(&self.tape, p.elements(), FP32, "fp32 gradient")).collect();
        drop(copies);
        self.params.iter().for_each(|param| drop(param.leaf.take_grad()));
    }
}
