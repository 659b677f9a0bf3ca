//! Nodes of the autograd graph.

use super::storage::Tape;
use super::tensor::Tensor;
use crate::line::Origin;
use std::cell::RefCell;
use std::rc::Rc;

/// Gradients in the order of a node's outputs (when it runs) or inputs (when it returns).
pub type Grads = Vec<Option<Tensor>>;

/// A node's backward: the tape, gradients of its outputs, and what it saved. Both are owned, so
/// that they live until it returns unless it drops them earlier.
type Backward = Box<dyn FnOnce(&Tape, Grads, Vec<Tensor>) -> Grads>;

/// Where a gradient goes: an output of a node.
#[derive(Clone)]
pub struct Edge {
    /// The node.
    pub node: Rc<Node>,
    /// Which of its outputs.
    pub slot: usize,
}

/// What a node does when it runs.
pub(super) enum Task {
    /// Runs once, then holds nothing but its edges.
    Call(RefCell<Option<(Backward, Vec<Tensor>)>>),
    /// Gives a leaf its gradient; a parameter's goes into its buffer and is dropped
    /// (`megatron/core/distributed/distributed_data_parallel.py`).
    Accumulate(Option<Tensor>),
}

/// A node of the graph.
pub struct Node {
    pub(super) sequence: u64,
    pub(super) origin: Origin,
    pub(super) slots: usize,
    /// Edges stay until the node itself dies: who keeps an output keeps the leaf behind it.
    pub(super) edges: Vec<Option<Edge>>,
    pub(super) task: Task,
    /// Run before the node does.
    pub(super) hooks: RefCell<Vec<Box<dyn FnOnce()>>>,
    /// What the backward that will reach it has brought so far.
    pub(super) awaited: RefCell<Awaited>,
}

/// What a node waits for while a backward runs.
#[derive(Default)]
pub(super) struct Awaited {
    /// Which backward; zero when none does.
    pub run: u64,
    /// Gradients still to come.
    pub left: usize,
    /// An accumulator's gradient.
    pub leaf: Option<Tensor>,
    /// Every other node's, one an output.
    pub grads: Grads,
}

impl Node {
    /// The node that receives a leaf's gradient, or a parameter's when there is no leaf. It runs
    /// before all others (`torch/csrc/autograd/engine.cpp`).
    pub fn accumulator(leaf: Option<Tensor>) -> Rc<Node> {
        Rc::new(Node {
            sequence: u64::MAX,
            origin: Origin::Setup,
            slots: 0,
            edges: Vec::new(),
            task: Task::Accumulate(leaf),
            hooks: RefCell::default(),
            awaited: RefCell::default(),
        })
    }

    /// Room for a gradient an output; an accumulator needs none.
    pub(super) fn no_grads(&self) -> Grads {
        vec![None; self.slots]
    }

    /// Where a gradient of an output waits.
    pub(super) fn awaits<'a>(&self, awaited: &'a mut Awaited, slot: usize) -> &'a mut Option<Tensor> {
        match self.task {
            Task::Accumulate(_) => &mut awaited.leaf,
            Task::Call(_) => &mut awaited.grads[slot],
        }
    }

    /// Runs `hook` before the node's backward.
    pub fn before(&self, hook: Box<dyn FnOnce()>) {
        self.hooks.borrow_mut().push(hook);
    }

    /// A node that hands on what `run` returns.
    pub(super) fn calling(tape: &Tape, edges: Vec<Option<Edge>>, slots: usize, run: Backward) -> Rc<Node> {
        Node::saving(tape, edges, slots, Vec::new(), run)
    }

    fn saving(tape: &Tape, edges: Vec<Option<Edge>>, slots: usize, saved: Vec<Tensor>, run: Backward) -> Rc<Node> {
        Rc::new(Node {
            sequence: tape.next_sequence(),
            origin: tape.origin(),
            slots,
            edges,
            task: Task::Call(RefCell::new(Some((run, saved)))),
            hooks: RefCell::default(),
            awaited: RefCell::default(),
        })
    }
}

impl Drop for Node {
    /// Walks the chain instead of recursing: a deep model's graph is longer than a stack.
    fn drop(&mut self) {
        let mut rest = std::mem::take(&mut self.edges);
        while let Some(edge) = rest.pop() {
            if let Some(mut node) = edge.and_then(|edge| Rc::into_inner(edge.node)) {
                rest.append(&mut node.edges);
            }
        }
    }
}

impl Tape {
    /// Records an operation: where gradients go, what it made, what it saves, and its backward,
    /// which returns one gradient an edge. Nothing is recorded when recording is off or no input
    /// asks for a gradient.
    pub fn record(
        &self,
        edges: Vec<Option<Edge>>,
        outputs: &[&Tensor],
        saved: Vec<Tensor>,
        run: impl FnOnce(&Tape, Grads, Vec<Tensor>) -> Grads + 'static,
    ) {
        if !self.records() || edges.iter().all(Option::is_none) {
            return;
        }
        let node = Node::saving(self, edges, outputs.len(), saved, Box::new(run));
        for (slot, output) in outputs.iter().enumerate() {
            output.set_grad_fn(Edge { node: node.clone(), slot });
        }
    }
}
