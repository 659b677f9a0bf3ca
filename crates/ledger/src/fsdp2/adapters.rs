//! Adapters of one rank (`launch/assets/fsdp2/lora.py`): added when the model is wrapped already, so that each
//! replica holds their factors, gradients and moments whole.

use super::group::Shard;
use super::plain::{Param, Step, Unit};
use replay::line::Origin;
use replay::tape::{Storage, Tape};
use std::rc::Rc;

pub(super) struct Adapters {
    factors: Vec<Rc<Param>>,
    _weights: Vec<Rc<Storage>>,
}

impl Adapters {
    /// Factors in the format `main` bytes wide that weights are stepped in.
    pub fn new(units: &[Unit], tape: &Tape, main: u64) -> Adapters {
        tape.enter(Origin::Setup);
        let factors: Vec<Rc<Param>> = units.iter().flat_map(|unit| unit.adapters.iter().cloned()).collect();
        let weights = factors.iter().map(|factor| tape.storage(factor.line, factor.elements() * main, "adapter"));
        Adapters { _weights: weights.collect(), factors }
    }

    /// Every factor, whole.
    pub fn shards(&self) -> impl Iterator<Item = Shard> + '_ {
        self.factors.iter().map(|factor| Shard { rows: factor.rows, columns: factor.columns, step: Step::Elements })
    }

    pub fn zero_grad(&self) {
        self.factors.iter().for_each(|factor| drop(factor.leaf.take_grad()));
    }
}
