//! Backward in torch's order: accumulators first, then the node recorded last
//! (`torch/csrc/autograd/engine.cpp`).

use super::graph::{Awaited, Edge, Grads, Node, Task};
use super::storage::Tape;
use super::tensor::Tensor;
use crate::line::Line;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

/// Runs backward from `root` with its gradient.
pub fn backward(tape: &Tape, root: &Tensor, grad: Tensor) {
    let Some(edge) = root.grad_fn() else { return };
    let before = tape.set_backward(true);
    Run::new(tape, &edge.node).start(edge, grad);
    tape.set_backward(before);
}

/// Runs backward from several roots at once.
pub fn backward_all(tape: &Tape, roots: &[Tensor], grads: &mut Grads) {
    let edges = roots.iter().zip(grads.iter()).map(|(root, grad)| root.grad_fn().filter(|_| grad.is_some()));
    let handed = grads.clone();
    let join = Node::calling(tape, edges.collect(), 1, Box::new(move |_, _, _| handed));
    let edge = Edge { node: join, slot: 0 };
    Run::new(tape, &edge.node).start(edge, Tensor::empty());
    grads.clear();
}

struct Run<'a> {
    tape: &'a Tape,
    id: u64,
    /// Nodes that it reaches. Holding them keeps them, and the leaves of accumulators, until it ends.
    reached: Vec<Rc<Node>>,
    /// What those nodes waited for in the backward that this one runs within.
    outer: Vec<(Rc<Node>, Awaited)>,
    /// Accumulators that have their gradient, which run before all others.
    accumulators: VecDeque<(Rc<Node>, Option<Tensor>)>,
    ready: BinaryHeap<Ready>,
    ticket: u64,
}

/// A node with all its gradients; the one recorded last runs first, then the one ready first.
struct Ready {
    order: (u64, Reverse<u64>),
    node: Rc<Node>,
    grads: Grads,
}

impl Ord for Ready {
    fn cmp(&self, other: &Ready) -> Ordering {
        self.order.cmp(&other.order)
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Ready) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ready {
    fn eq(&self, other: &Ready) -> bool {
        self.order == other.order
    }
}

impl Eq for Ready {}

impl<'a> Run<'a> {
    fn new(tape: &'a Tape, root: &Rc<Node>) -> Run<'a> {
        let mut run = Run {
            tape,
            // Zero is none.
            id: tape.next_sequence() + 1,
            reached: Vec::new(),
            outer: Vec::new(),
            accumulators: VecDeque::new(),
            ready: BinaryHeap::new(),
            ticket: 0,
        };
        run.reach(root);
        let mut next = 0;
        while let Some(node) = run.reached.get(next).cloned() {
            run.reach(&node);
            next += 1;
        }
        run
    }

    /// Counts what a node will send.
    fn reach(&mut self, node: &Node) {
        for Edge { node, .. } in node.edges.iter().flatten() {
            let mut awaited = node.awaited.borrow_mut();
            if awaited.run != self.id {
                let fresh = Awaited { run: self.id, left: 0, leaf: None, grads: node.no_grads() };
                let before = std::mem::replace(&mut *awaited, fresh);
                if before.run != 0 {
                    self.outer.push((node.clone(), before));
                }
                self.reached.push(node.clone());
            }
            awaited.left += 1;
        }
    }

    fn start(mut self, root: Edge, grad: Tensor) {
        let mut awaited = Awaited { grads: root.node.no_grads(), ..Awaited::default() };
        *root.node.awaits(&mut awaited, root.slot) = Some(grad);
        self.enqueue(root.node, awaited);
        let origin = self.tape.origin();
        loop {
            if let Some((node, grad)) = self.accumulators.pop_front() {
                self.accumulate(&node, grad);
            } else if let Some(Ready { node, grads, .. }) = self.ready.pop() {
                self.run(&node, grads);
            } else {
                break;
            }
        }
        self.tape.enter(origin);
        for node in &self.reached {
            node.awaited.take();
        }
        for (node, awaited) in self.outer {
            node.awaited.replace(awaited);
        }
    }

    fn enqueue(&mut self, node: Rc<Node>, brought: Awaited) {
        if matches!(node.task, Task::Accumulate(_)) {
            return self.accumulators.push_back((node, brought.leaf));
        }
        self.ticket += 1;
        self.ready.push(Ready { order: (node.sequence, Reverse(self.ticket)), node, grads: brought.grads });
    }

    fn accumulate(&self, node: &Node, grad: Option<Tensor>) {
        match (&node.task, grad) {
            (Task::Accumulate(Some(leaf)), Some(grad)) => {
                leaf.set_grad_if_none(&grad);
                drop(grad);
                leaf.tell_of_grad();
            }
            (Task::Accumulate(None), Some(grad)) => self.tape.take_gradient_over(&grad),
            _ => {}
        }
    }

    fn run(&mut self, node: &Node, grads: Grads) {
        let Task::Call(call) = &node.task else { return };
        let call = call.take();
        self.tape.enter(node.origin);
        for hook in node.hooks.take() {
            hook();
        }
        let Some((backward, saved)) = call else { return };
        let returned = backward(self.tape, grads, saved);
        for (edge, grad) in node.edges.iter().zip(returned) {
            if let Some(edge) = edge {
                self.give(edge, grad);
            }
        }
    }

    /// Puts a gradient into a node's buffer, and runs the node once it has all. A second gradient
    /// is added in place when the buffer is the only owner of dense bytes, else into a new tensor
    /// (`torch/csrc/autograd/input_buffer.cpp`).
    fn give(&mut self, edge: &Edge, grad: Option<Tensor>) {
        let mut awaited = edge.node.awaited.borrow_mut();
        if awaited.run != self.id {
            return;
        }
        if let Some(grad) = grad {
            let place = edge.node.awaits(&mut awaited, edge.slot);
            let sum = match place.take() {
                None => grad,
                Some(old) if old.is_sole_owner() => old,
                Some(old) => {
                    self.tape.tensor(Line::ActivationGradients, old.elements(), old.width(), "sum of gradients")
                }
            };
            *place = Some(sum);
        }
        awaited.left -= 1;
        if awaited.left == 0 {
            let brought = Awaited { leaf: awaited.leaf.take(), grads: std::mem::take(&mut awaited.grads), ..*awaited };
            drop(awaited);
            self.enqueue(edge.node.clone(), brought);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::BF16;

    fn leaf(tape: &Tape) -> Tensor {
        tape.tensor(Line::Activations, 1 << 20, BF16, "x").requiring_grad()
    }

    fn grad(tape: &Tape) -> Tensor {
        tape.tensor(Line::ActivationGradients, 1 << 20, BF16, "dx")
    }

    #[test]
    fn saved_tensors_die_when_their_node_has_run() {
        let tape = Tape::default();
        let x = leaf(&tape);
        let y = tape.tensor(Line::Activations, 1 << 20, BF16, "y");
        let kept = tape.tensor(Line::Activations, 1 << 20, BF16, "saved");
        tape.record(vec![x.edge()], &[&y], vec![kept], |t, _, _| vec![Some(grad(t))]);
        assert_eq!(tape.live()[Line::Activations as usize], 3 << 21);
        backward(&tape, &y, grad(&tape));
        assert_eq!(tape.live()[Line::Activations as usize], 2 << 21);
        assert!(x.grad().is_some());
    }

    #[test]
    fn a_shared_gradient_is_not_added_to_in_place() {
        let tape = Tape::default();
        let x = leaf(&tape);
        let y = tape.tensor(Line::Activations, 1 << 20, BF16, "y");
        // Both inputs are `x`, and backward hands the same gradient to both.
        tape.record(vec![x.edge(), x.edge()], &[&y], Vec::new(), |_, g, _| vec![g[0].clone(), g[0].clone()]);
        tape.reset_peaks();
        let held = tape.peak().allocated;
        backward(&tape, &y, grad(&tape));
        assert_eq!(tape.peak().allocated - held, 2 << 21);
    }

    #[test]
    fn a_sole_gradient_is_added_to_in_place() {
        let tape = Tape::default();
        let x = leaf(&tape);
        let y = tape.tensor(Line::Activations, 1 << 20, BF16, "y");
        tape.record(vec![x.edge(), x.edge()], &[&y], Vec::new(), |t, _, _| vec![Some(grad(t)), Some(grad(t))]);
        backward(&tape, &y, grad(&tape));
        assert_eq!(tape.live()[Line::ActivationGradients as usize], 1 << 21);
    }
}
