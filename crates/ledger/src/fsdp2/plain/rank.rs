//! One rank in motion: its sizes, its tape, the engine around its units, and what cuBLAS keeps.

use super::{Config, Engine};
use replay::line::Line;
use replay::tape::{BF16, Storage, Tape, Tensor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// cuBLAS workspace of torch on Hopper, one for each thread that multiplies
/// (`aten/src/ATen/cuda/CublasHandlePool.cpp`).
const CUBLAS_WORKSPACE: u64 = 32 << 20;

/// One rank in motion.
pub(crate) struct Rank {
    pub config: Config,
    pub tape: Tape,
    pub engine: Rc<dyn Engine>,
    workspaces: RefCell<[Option<Rc<Storage>>; 2]>,
    /// Whether the autograd thread runs, which has a cuBLAS handle of its own.
    pub is_backward: Cell<bool>,
}

impl Rank {
    pub fn new(config: Config, tape: Tape, engine: Rc<dyn Engine>) -> Rc<Rank> {
        Rc::new(Rank { config, tape, engine, workspaces: RefCell::default(), is_backward: Cell::new(false) })
    }

    /// A half-precision tensor of the forward pass.
    pub fn act(&self, elements: u64, name: &'static str) -> Tensor {
        self.act_of(elements, BF16, name)
    }

    /// A tensor of the forward pass.
    pub fn act_of(&self, elements: u64, width: u64, name: &'static str) -> Tensor {
        self.tape.tensor(Line::Activations, elements, width, name)
    }

    /// A tensor of routing.
    pub fn scratch(&self, elements: u64, width: u64, name: &'static str) -> Tensor {
        self.tape.tensor(Line::RoutingScratch, elements, width, name)
    }

    /// A half-precision tensor that was gathered, reduced or received.
    pub fn comm(&self, elements: u64, name: &'static str) -> Tensor {
        self.tape.tensor(Line::Communication, elements, BF16, name)
    }

    /// A matrix product runs, on the forward or on the autograd thread.
    pub fn product(&self) {
        let slot = &mut self.workspaces.borrow_mut()[usize::from(self.is_backward.get())];
        slot.get_or_insert_with(|| self.tape.storage(Line::Workspaces, CUBLAS_WORKSPACE, "cublas workspace"));
    }
}
