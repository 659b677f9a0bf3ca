//! Tensors: a view of a storage with its place in the graph. Cloning shares the tensor, as a
//! second Python name for it would.

use super::graph::{Edge, Node};
use super::storage::{Storage, Tape};
use crate::line::Line;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// A tensor.
#[derive(Clone)]
pub struct Tensor(Rc<Data>);

struct Data {
    storage: RefCell<Option<Rc<Storage>>>,
    elements: u64,
    width: u64,
    is_dense: bool,
    requires_grad: Cell<bool>,
    grad_fn: RefCell<Option<Edge>>,
    grad: RefCell<Option<Tensor>>,
    /// Called whenever a leaf has been given a gradient.
    on_grad: RefCell<Option<Hook>>,
    /// A leaf holds its accumulator weakly and is held by it (`torch/csrc/autograd/variable.cpp`).
    accumulator: RefCell<Weak<Node>>,
}

type Hook = Rc<dyn Fn()>;

/// Whether a view fills its storage; only dense gradients are added to in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Density {
    Dense,
    Strided,
}

impl Tape {
    /// A new tensor of `elements` of `width` bytes.
    pub fn tensor(&self, line: Line, elements: u64, width: u64, name: &'static str) -> Tensor {
        Tensor::on(Some(self.storage(line, elements * width, name)), elements, width, Density::Dense)
    }
}

impl Tensor {
    fn on(storage: Option<Rc<Storage>>, elements: u64, width: u64, density: Density) -> Tensor {
        Tensor(Rc::new(Data {
            storage: RefCell::new(storage),
            elements,
            width,
            is_dense: density == Density::Dense,
            requires_grad: Cell::new(false),
            grad_fn: RefCell::new(None),
            grad: RefCell::new(None),
            on_grad: RefCell::new(None),
            accumulator: RefCell::new(Weak::new()),
        }))
    }

    /// Books its storage on another line from now on: what was made as one thing is kept as another.
    pub fn onto(&self, line: Line) {
        if let Some(storage) = &*self.0.storage.borrow() {
            storage.onto(line);
        }
    }

    /// A tensor without elements.
    pub fn empty() -> Tensor {
        Tensor::on(None, 0, super::BF16, Density::Dense)
    }

    /// A tensor on bytes that somebody else owns too.
    pub fn of_storage(storage: Rc<Storage>, elements: u64, width: u64) -> Tensor {
        Tensor::on(Some(storage), elements, width, Density::Dense)
    }

    /// The same storage without a place in the graph: what a node saves of its own output.
    pub fn alias(&self) -> Tensor {
        Tensor::on(self.0.storage.borrow().clone(), self.0.elements, self.0.width, Density::Dense)
    }

    /// A strided part of the storage without a place in the graph, such as one output of a split.
    pub fn part(&self, elements: u64) -> Tensor {
        Tensor::on(self.0.storage.borrow().clone(), elements, self.0.width, Density::Strided)
    }

    /// Another tensor on the same storage and at the same place in the graph.
    pub fn view(&self) -> Tensor {
        let density = if self.0.is_dense { Density::Dense } else { Density::Strided };
        let view = Tensor::on(self.0.storage.borrow().clone(), self.0.elements, self.0.width, density);
        view.0.requires_grad.set(self.0.requires_grad.get());
        view.0.grad_fn.replace(self.0.grad_fn.borrow().clone());
        view
    }

    /// A leaf on the same storage that asks for a gradient if this tensor does.
    pub fn detached(&self) -> Tensor {
        let leaf = self.alias();
        leaf.0.requires_grad.set(self.0.requires_grad.get());
        leaf
    }

    /// Gives its hold on the storage back; its place in the graph and its gradient stay.
    pub fn let_go(&self) {
        self.0.storage.replace(None);
    }

    /// Makes it a leaf that asks for a gradient.
    pub fn requiring_grad(self) -> Tensor {
        self.0.requires_grad.set(true);
        self
    }

    /// Makes a leaf ask for no gradient, as `requires_grad_(False)` does.
    pub fn freeze(&self) {
        self.0.requires_grad.set(false);
    }

    /// Whether it is a leaf that asks for a gradient.
    pub fn asks_for_grad(&self) -> bool {
        self.0.requires_grad.get()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.0.elements
    }

    /// Bytes of an element.
    pub fn width(&self) -> u64 {
        self.0.width
    }

    /// Whether it fills its storage.
    pub fn is_dense(&self) -> bool {
        self.0.is_dense
    }

    /// The gradient a leaf has been given.
    pub fn grad(&self) -> Option<Tensor> {
        self.0.grad.borrow().clone()
    }

    /// Takes the gradient a leaf has been given, as assigning `None` to `.grad` does.
    pub fn take_grad(&self) -> Option<Tensor> {
        self.0.grad.borrow_mut().take()
    }

    /// Calls `hook` whenever a gradient has been given to this leaf, as
    /// `register_post_accumulate_grad_hook` does. A hook must not own the leaf.
    pub fn on_grad(&self, hook: impl Fn() + 'static) {
        self.0.on_grad.replace(Some(Rc::new(hook)));
    }

    pub(super) fn tell_of_grad(&self) {
        let hook = self.0.on_grad.borrow().clone();
        if let Some(hook) = hook {
            hook();
        }
    }

    pub(super) fn set_grad_if_none(&self, grad: &Tensor) {
        self.0.grad.borrow_mut().get_or_insert_with(|| grad.alias());
    }

    /// Its storage, unless it was released.
    pub fn storage(&self) -> Option<Rc<Storage>> {
        self.0.storage.borrow().clone()
    }

    /// Points it at other bytes, as assigning `tensor.data` does.
    pub fn set_storage(&self, storage: Rc<Storage>) {
        // The old storage is dropped after the new one is in place.
        drop(self.0.storage.replace(Some(storage)));
    }

    /// Where its gradient goes.
    pub fn grad_fn(&self) -> Option<Edge> {
        self.0.grad_fn.borrow().clone()
    }

    pub(super) fn set_grad_fn(&self, edge: Edge) {
        self.0.grad_fn.replace(Some(edge));
        self.0.requires_grad.set(true);
    }

    /// The edge by which an operation on this tensor sends it a gradient.
    pub fn edge(&self) -> Option<Edge> {
        if !self.0.requires_grad.get() {
            return None;
        }
        if let Some(edge) = self.grad_fn() {
            return Some(edge);
        }
        let known = self.0.accumulator.borrow().upgrade();
        let node = known.unwrap_or_else(|| {
            let node = Node::accumulator(Some(self.clone()));
            self.0.accumulator.replace(Rc::downgrade(&node));
            node
        });
        Some(Edge { node, slot: 0 })
    }

    /// Whether nothing else holds this tensor or its storage, so that it may be added to in place.
    pub(super) fn is_sole_owner(&self) -> bool {
        let storage = self.0.storage.borrow();
        let owns = storage.as_ref().is_some_and(|s| Rc::strong_count(s) == 1);
        self.0.is_dense && owns && Rc::strong_count(&self.0) == 1
    }
}
