//! Backward in torch's order: accumulators first, then the node recorded last
//! (`torch/csrc/autograd/engine.cpp`).

use super::graph::{Edge, Grads, Node, Task};
use super::storage::Tape;
use super::tensor::Tensor;
use crate::line::Line;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::rc::Rc;

/// Identity of a node that is alive.
type Key = *const Node;

/// Runs backward from `root` with its gradient.
pub fn backward(tape: &Tape, root: &Tensor, grad: Tensor) {
    let Some(edge) = root.grad_fn() else { return };
    let mut run = Run::new(tape, &edge.node);
    run.give(&edge, grad);
    run.all(edge);
}

/// Runs backward from several roots at once.
pub fn backward_all(tape: &Tape, roots: &[Tensor], grads: &mut Grads) {
    let edges = roots.iter().zip(grads.iter()).map(|(root, grad)| root.grad_fn().filter(|_| grad.is_some()));
    let handed = grads.clone();
    let join = Node::calling(tape, edges.collect(), 1, Box::new(move |_, _, _| handed));
    let edge = Edge { node: join, slot: 0 };
    let mut run = Run::new(tape, &edge.node);
    run.give(&edge, Tensor::empty());
    run.all(edge);
    grads.clear();
}

struct Run<'a> {
    tape: &'a Tape,
    /// Gradients still to come for each node. Holding the node keeps it, and the leaf of an
    /// accumulator, until the run ends.
    pending: HashMap<Key, (Rc<Node>, usize)>,
    buffers: HashMap<Key, Grads>,
    /// Sequence number, then order of becoming ready.
    ready: BinaryHeap<(u64, Reverse<u64>)>,
    waiting: BTreeMap<u64, Rc<Node>>,
    ticket: u64,
}

impl<'a> Run<'a> {
    fn new(tape: &'a Tape, root: &Rc<Node>) -> Run<'a> {
        let mut pending: HashMap<Key, (Rc<Node>, usize)> = HashMap::new();
        let mut stack = vec![root.clone()];
        while let Some(node) = stack.pop() {
            for edge in node.edges.iter().flatten() {
                let entry = pending.entry(Rc::as_ptr(&edge.node)).or_insert_with(|| {
                    stack.push(edge.node.clone());
                    (edge.node.clone(), 0)
                });
                entry.1 += 1;
            }
        }
        let (buffers, ready, waiting) = (HashMap::new(), BinaryHeap::new(), BTreeMap::new());
        Run { tape, pending, buffers, ready, waiting, ticket: 0 }
    }

    fn all(&mut self, root: Edge) {
        self.enqueue(root.node);
        let stand = self.tape.stand();
        while let Some((_, Reverse(ticket))) = self.ready.pop() {
            let Some(node) = self.waiting.remove(&ticket) else { continue };
            self.run(&node);
        }
        self.tape.stand_at(stand);
    }

    fn enqueue(&mut self, node: Rc<Node>) {
        self.ticket += 1;
        self.ready.push((node.sequence, Reverse(self.ticket)));
        self.waiting.insert(self.ticket, node);
    }

    /// Puts a gradient into a node's buffer. A second one is added in place when the buffer is
    /// the only owner of dense bytes, else into a new tensor
    /// (`torch/csrc/autograd/input_buffer.cpp`).
    fn give(&mut self, edge: &Edge, grad: Tensor) {
        let buffer = self.buffers.entry(Rc::as_ptr(&edge.node)).or_insert_with(|| vec![None; edge.node.slots]);
        let sum = match buffer[edge.slot].take() {
            None => grad,
            Some(old) if old.is_sole_owner() => old,
            Some(old) => self.tape.tensor(Line::ActivationGradients, old.elements(), old.width(), "sum of gradients"),
        };
        buffer[edge.slot] = Some(sum);
    }

    fn run(&mut self, node: &Rc<Node>) {
        let mut grads = self.buffers.remove(&Rc::as_ptr(node)).unwrap_or_default();
        let call = match &node.task {
            Task::Accumulate(leaf) => {
                if let (Some(leaf), Some(grad)) = (leaf, grads.pop().flatten()) {
                    leaf.set_grad_if_none(&grad);
                }
                return;
            }
            Task::Call(call) => call.take(),
        };
        self.tape.stand_at(node.stand);
        for hook in node.hooks.take() {
            hook();
        }
        let Some((backward, saved)) = call else { return };
        let returned = backward(self.tape, grads, saved);
        for (edge, grad) in node.edges.iter().zip(returned) {
            let Some(edge) = edge else { continue };
            if let Some(grad) = grad {
                self.give(edge, grad);
            }
            self.settle(edge);
        }
    }

    /// One gradient fewer to wait for.
    fn settle(&mut self, edge: &Edge) {
        let Some((node, left)) = self.pending.get_mut(&Rc::as_ptr(&edge.node)) else { return };
        *left -= 1;
        if *left == 0 {
            let node = node.clone();
            self.enqueue(node);
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
