//! Weight gradients put off: a split backward makes gradients of activations first, and keeps
//! what the weights' gradients need until their turn comes
//! (`transformer_engine/pytorch/module/_common.py` WeightGradStore).

use super::storage::Tape;
use super::tensor::Tensor;
use crate::line::Origin;
use std::cell::{Cell, RefCell};

/// A product that waits: its operands, and the weight gradients it will make.
pub struct Deferred {
    /// Input and output gradient, alive until the product runs.
    pub operands: Vec<Tensor>,
    /// Elements of each weight gradient.
    pub elements: Vec<u64>,
    /// Where it stands.
    pub origin: Origin,
}

/// What waits, and whether products are put off now.
#[derive(Default)]
pub(super) struct Queue {
    is_on: Cell<bool>,
    waiting: RefCell<Vec<Deferred>>,
}

impl Tape {
    /// Puts weight gradients off from now on, or no longer.
    pub fn set_deferring(&self, on: bool) {
        self.queue().is_on.set(on);
    }

    /// Whether weight gradients are put off.
    pub fn is_deferring(&self) -> bool {
        self.queue().is_on.get()
    }

    /// Puts a product off.
    pub fn defer(&self, operands: Vec<Tensor>, elements: Vec<u64>) {
        self.queue().waiting.borrow_mut().push(Deferred { operands, elements, origin: self.origin() });
    }

    /// All products put off since this was last asked, in order.
    pub fn take_deferred(&self) -> Vec<Deferred> {
        self.queue().waiting.take()
    }
}
