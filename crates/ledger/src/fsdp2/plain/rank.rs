//! One rank in motion: its sizes, its tape, the engine around its units, and what cuBLAS keeps.

use super::{Config, Engine};
use replay::line::Line;
use replay::tape::{BF16, INT32, Storage, Tape, Tensor};
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
    workspaces: Rc<RefCell<[Option<Rc<Storage>>; 2]>>,
    /// Where the documents of a microbatch begin.
    borders: RefCell<Option<Tensor>>,
    /// Token embeddings of the microbatch that runs, where shared blocks read them; values of the first layer, where others do.
    pub first: RefCell<Option<Tensor>>,
    /// Whether the autograd thread runs, which has a cuBLAS handle of its own.
    pub is_backward: Rc<Cell<bool>>,
}

impl Rank {
    pub fn new(config: Config, tape: Tape, engine: Rc<dyn Engine>) -> Rc<Rank> {
        let (workspaces, borders) = (Rc::default(), RefCell::default());
        let (first, is_backward) = (RefCell::default(), Rc::default());
        Rc::new(Rank { config, tape, engine, workspaces, borders, first, is_backward })
    }

    /// Another model in the same process: its products run on the same handles.
    pub fn beside(&self, config: Config, engine: Rc<dyn Engine>) -> Rc<Rank> {
        let (workspaces, borders) = (self.workspaces.clone(), RefCell::default());
        let (tape, first, is_backward) = (self.tape.clone(), RefCell::default(), Rc::default());
        Rc::new(Rank { config, tape, engine, workspaces, borders, first, is_backward })
    }

    /// The same rank while a layer takes so many tokens of every sequence.
    pub fn of_some(&self, sequence: u64) -> Rc<Rank> {
        let tokens = sequence * self.config.micro_batch;
        let config = Config { sequence, tokens, local_tokens: tokens, takes_some: true, ..self.config.clone() };
        let (workspaces, borders, first) = (self.workspaces.clone(), RefCell::default(), RefCell::default());
        let (tape, engine, is_backward) = (self.tape.clone(), self.engine.clone(), self.is_backward.clone());
        Rc::new(Rank { config, tape, engine, workspaces, borders, first, is_backward })
    }

    /// Where the documents of a microbatch begin, which attention keeps.
    pub fn borders(&self) -> Option<Tensor> {
        self.borders.borrow().clone()
    }

    /// A microbatch comes in: the borders of its documents take the place of the last one's.
    pub fn take_documents(&self) {
        if let Some(documents) = self.config.documents() {
            let borders = self.act_of(documents + 1, INT32, "borders of documents");
            *self.borders.borrow_mut() = Some(borders);
        }
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
