//! Adapters of one rank (`launch/assets/fsdp2/lora.py`): added when the model is wrapped already, so that each
//! replica holds their factors, gradients and moments whole, in fp32.

use super::plain::{Param, Unit};
use replay::line::Origin;
use replay::tape::{FP32, Storage, Tape};
use std::rc::Rc;

pub(super) struct Adapters {
    factors: Vec<Rc<Param>>,
    _weights: Vec<Rc<Storage>>,
}

impl Adapters {
    pub fn new(units: &[Unit], tape: &Tape) -> Adapters {
        tape.enter(Origin::Setup);
        let factors: Vec<Rc<Param>> = units.iter().flat_map(|unit| unit.adapters.iter().cloned()).collect();
        let weights = factors.iter().map(|factor| tape.storage(factor.line, factor.elements() * FP32, "adapter"));
        Adapters { _weights: weights.collect(), factors }
    }

    /// Elements of each factor.
    pub fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        self.factors.iter().map(|factor| factor.elements())
    }

    pub fn zero_grad(&self) {
        self.factors.iter().for_each(|factor| drop(factor.leaf.take_grad()));
    }
}
