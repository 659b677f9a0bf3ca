//! Rank 0 in motion: its sizes, its tape, and what stays once it has been used.

use super::config::Config;
use replay::line::Line;
use replay::tape::{BF16, Storage, Tape, Tensor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// cuBLAS workspace of torch on Hopper, one for each thread that multiplies
/// (`aten/src/ATen/cuda/CublasHandlePool.cpp`).
const CUBLAS_WORKSPACE: u64 = 32 << 20;

/// Rank 0 in motion.
pub(super) struct Rank {
    pub config: Config,
    pub tape: Tape,
    kept: RefCell<Kept>,
    /// Whether the autograd thread runs, which has a cuBLAS handle of its own.
    pub is_backward: Cell<bool>,
}

/// What stays after its first use.
#[derive(Default)]
struct Kept {
    cublas: [Option<Rc<Storage>>; 2],
    gathered: [Option<Rc<Storage>>; 2],
}

/// The buffers that gathers of one name share (`parallel/utils.py` MemoryBuffer, used in
/// `parallel/tensor_parallel/functional.py`).
#[derive(Clone, Copy)]
pub(super) enum Gather {
    /// `allgather`: inputs of column-parallel products, in forward and again in backward.
    Input,
    /// `allgather2`: gradients of row-parallel outputs.
    OutputGradient,
}

impl Rank {
    pub fn new(config: Config, tape: Tape) -> Rc<Rank> {
        Rc::new(Rank { config, tape, kept: RefCell::default(), is_backward: Cell::new(false) })
    }

    /// A bf16 tensor of the forward pass.
    pub fn act(&self, elements: u64, name: &'static str) -> Tensor {
        self.act_of(elements, BF16, name)
    }

    /// A tensor of the forward pass.
    pub fn act_of(&self, elements: u64, width: u64, name: &'static str) -> Tensor {
        self.tape.tensor(Line::Activations, elements, width, name)
    }

    /// A product runs, on the forward or on the autograd thread.
    pub fn product(&self) {
        let handle = &mut self.kept.borrow_mut().cublas[usize::from(self.is_backward.get())];
        handle.get_or_insert_with(|| self.tape.storage(Line::Workspaces, CUBLAS_WORKSPACE, "cublas workspace"));
    }

    /// All tokens of the hidden width are gathered into a shared buffer.
    pub fn gather(&self, buffer: Gather) {
        if self.config.tp == 1 {
            return;
        }
        let bytes = self.config.tokens * self.config.hidden * BF16;
        let buffer = &mut self.kept.borrow_mut().gathered[buffer as usize];
        buffer.get_or_insert_with(|| self.tape.storage(Line::Workspaces, bytes, "gather buffer"));
    }
}
