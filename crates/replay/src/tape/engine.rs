//! Backward in torch's order: accumulators first, then the node recorded last
//! (`torch/csrc/autograd/engine.cpp`).

use super::graph::{Edge, Grads, Node, Task};
use super::quick::Quick;
use super::storage::Tape;
use super::tensor::Tensor;
use crate::line::Line;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;
use std::rc::Rc;

/// Identity of a node that is alive.
type Key = *const Node;

/// A replay looks up every edge of every pass.
type ByNode<T> = HashMap<Key, T, BuildHasherDefault<Quick>>;

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

/// A node that backward will reach.
struct Reached {
    /// Holding the node keeps it, and the leaf of an accumulator, until the run ends.
    node: Rc<Node>,
    /// Gradients still to come.
    left: usize,
    grads: Grads,
}

struct Run<'a> {
    tape: &'a Tape,
    reached: ByNode<Reached>,
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
        let mut reached: ByNode<Reached> = ByNode::default();
        let mut stack = vec![root.clone()];
        while let Some(node) = stack.pop() {
            for edge in node.edges.iter().flatten() {
                let entry = reached.entry(Rc::as_ptr(&edge.node)).or_insert_with(|| {
                    stack.push(edge.node.clone());
                    Reached { node: edge.node.clone(), left: 0, grads: vec![None; edge.node.slots] }
                });
                entry.left += 1;
            }
        }
        Run { tape, reached, ready: BinaryHeap::new(), ticket: 0 }
    }

    fn start(mut self, root: Edge, grad: Tensor) {
        let mut grads = vec![None; root.node.slots];
        grads[root.slot] = Some(grad);
        self.enqueue(root.node, grads);
        let origin = self.tape.origin();
        while let Some(Ready { node, grads, .. }) = self.ready.pop() {
            self.run(&node, grads);
        }
        self.tape.enter(origin);
    }

    fn enqueue(&mut self, node: Rc<Node>, grads: Grads) {
        self.ticket += 1;
        self.ready.push(Ready { order: (node.sequence, Reverse(self.ticket)), node, grads });
    }

    fn run(&mut self, node: &Rc<Node>, mut grads: Grads) {
        let call = match &node.task {
            Task::Accumulate(leaf) => {
                match (leaf, grads.pop().flatten()) {
                    (Some(leaf), Some(grad)) => {
                        leaf.set_grad_if_none(&grad);
                        drop(grad);
                        leaf.tell_of_grad();
                    }
                    (None, Some(grad)) => self.tape.take_gradient_over(&grad),
                    (_, None) => {}
                }
                return;
            }
            Task::Call(call) => call.take(),
        };
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
        let Some(reached) = self.reached.get_mut(&Rc::as_ptr(&edge.node)) else { return };
        if let Some(grad) = grad {
            let sum = match reached.grads[edge.slot].take() {
                None => grad,
                Some(old) if old.is_sole_owner() => old,
                Some(old) => {
                    self.tape.tensor(Line::ActivationGradients, old.elements(), old.width(), "sum of gradients")
                }
            };
            reached.grads[edge.slot] = Some(sum);
        }
        reached.left -= 1;
        if reached.left == 0 {
            let (node, grads) = (reached.node.clone(), std::mem::take(&mut reached.grads));
            self.enqueue(node, grads);
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
