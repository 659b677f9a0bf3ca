//! Ways to compute again instead of keeping: Megatron's two (`megatron/core/tensor_parallel/random.py`)
//! and torch's own (`torch/utils/checkpoint.py`).

use super::engine::{backward, backward_all};
use super::graph::Grads;
use super::storage::Tape;
use super::tensor::Tensor;
use std::cell::RefCell;
use std::rc::Rc;

/// `CheckpointFunction`: keeps the inputs, runs forward again in backward, with a nested backward.
pub fn checkpoint(tape: &Tape, inputs: &[&Tensor], run: impl Fn(&[Tensor]) -> Tensor + 'static) -> Tensor {
    checkpointed(tape, inputs, Output::Made, run)
}

/// `checkpoint(use_reentrant=False)`: the same, but running again stops early, once everything that
/// backward needs is there; the output is not among it.
pub fn checkpoint_stopping_early(
    tape: &Tape,
    inputs: &[&Tensor],
    run: impl Fn(&[Tensor]) -> Tensor + 'static,
) -> Tensor {
    checkpointed(tape, inputs, Output::Left, run)
}

/// The same inside another that stops early: what the inner one was given is the outer one's to hold, which lets it go once it
/// has been asked for. `run` makes copies of what it needs later.
pub fn checkpoint_within(tape: &Tape, inputs: &[&Tensor], run: impl Fn(&[Tensor]) -> Tensor + 'static) -> Tensor {
    checkpointed(tape, inputs, Output::LeftWithin, run)
}

/// Whether running again gets as far as the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Made,
    Left,
    /// And whether inputs are there no longer than it runs.
    LeftWithin,
}

fn checkpointed(
    tape: &Tape,
    inputs: &[&Tensor],
    output_again: Output,
    run: impl Fn(&[Tensor]) -> Tensor + 'static,
) -> Tensor {
    let recording = tape.set_recording(false);
    let given: Vec<Tensor> = inputs.iter().map(|&x| x.clone()).collect();
    let output = run(&given);
    tape.set_recording(recording);
    if !recording {
        return output;
    }
    let output = output.alias();
    let edges = given.iter().map(Tensor::edge).collect();
    tape.record(edges, &[&output], given, move |tape, grads, saved| {
        let leaves: Vec<Tensor> = saved.iter().map(Tensor::detached).collect();
        tape.set_recording(true);
        let again = run(&leaves);
        if let Some(storage) = again.storage().filter(|_| output_again != Output::Made) {
            storage.discard();
        }
        if output_again == Output::LeftWithin {
            drop(saved);
            leaves.iter().for_each(Tensor::let_go);
        }
        // The incoming gradient stays with the outer node while the nested backward runs.
        if let Some(grad) = grads[0].clone() {
            backward(tape, &again, grad);
        }
        drop(again);
        leaves.iter().map(Tensor::grad).collect()
    });
    output
}

type Rerun = Box<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

/// `CheckpointWithoutOutput`: the output's bytes are discarded once its consumer has run, and
/// computed again just before the consumer's backward.
#[derive(Clone)]
pub struct WithoutOutput {
    tape: Tape,
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    run: Option<Rerun>,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Leaves and outputs of the second run, between the hook and the node's backward.
    again: Option<(Vec<Tensor>, Vec<Tensor>)>,
}

impl WithoutOutput {
    /// Runs `run` without recording what happens inside.
    pub fn new(
        tape: &Tape,
        inputs: &[&Tensor],
        run: impl Fn(&[Tensor]) -> Vec<Tensor> + 'static,
    ) -> (WithoutOutput, Vec<Tensor>) {
        let this = WithoutOutput { tape: tape.clone(), state: Rc::default() };
        let recording = tape.set_recording(false);
        let given: Vec<Tensor> = inputs.iter().map(|&x| x.clone()).collect();
        let outputs = run(&given);
        tape.set_recording(recording);
        if !recording {
            return (this, outputs);
        }
        let outputs: Vec<Tensor> = outputs.iter().map(Tensor::alias).collect();
        let saved: Vec<Tensor> = given.iter().map(Tensor::detached).collect();
        let state = this.state.clone();
        tape.record(
            given.iter().map(Tensor::edge).collect(),
            &outputs.iter().collect::<Vec<_>>(),
            saved.clone(),
            move |tape, mut grads: Grads, _saved| {
                let Some((leaves, again)) = state.borrow_mut().again.take() else { return Vec::new() };
                backward_all(tape, &again, &mut grads);
                drop(again);
                leaves.iter().map(Tensor::grad).collect()
            },
        );
        let mut state = this.state.borrow_mut();
        state.run = Some(Box::new(run));
        state.inputs = saved;
        state.outputs = outputs.iter().map(Tensor::alias).collect();
        drop(state);
        (this, outputs)
    }

    /// Gives the outputs' bytes back; they come again before `consumer`'s backward.
    pub fn discard_until(&self, consumer: &Tensor) {
        let state = self.state.borrow();
        if state.run.is_none() || !self.tape.records() {
            return;
        }
        for storage in state.outputs.iter().filter_map(Tensor::storage) {
            storage.discard();
        }
        if let Some(edge) = consumer.grad_fn() {
            let this = self.clone();
            edge.node.before(Box::new(move || this.recompute()));
        }
    }

    fn recompute(&self) {
        let State { run, inputs, outputs, .. } = self.state.take();
        let Some(run) = run else { return };
        let leaves: Vec<Tensor> = inputs.iter().map(Tensor::detached).collect();
        self.tape.set_recording(true);
        let again = run(&leaves);
        for (output, new) in outputs.iter().zip(&again) {
            if let (Some(old), Some(new)) = (output.storage(), new.storage()) {
                old.stand_in(new);
            }
        }
        self.state.borrow_mut().again = Some((leaves, again));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;
    use crate::tape::BF16;
    use std::cell::Cell;

    /// Bytes of activations that live while what ran again is walked backward.
    fn alive_inside(output_again: Output) -> u64 {
        let tape = Tape::default();
        let made = |tape: &Tape, name| tape.tensor(Line::Activations, 1 << 20, BF16, name);
        let (x, given) = (made(&tape, "x").requiring_grad(), made(&tape, "given"));
        let seen = Rc::new(Cell::new(0));
        // A leaf is held by whoever adds up its gradient: what is given is none.
        tape.record(vec![x.edge()], &[&given], Vec::new(), |_, _, _| vec![None]);
        let (inner, live) = (tape.clone(), seen.clone());
        let again = move |inputs: &[Tensor]| {
            let (copy, out) = (made(&inner, "copy"), made(&inner, "out"));
            let live = live.clone();
            inner.record(vec![inputs[0].edge()], &[&out], vec![copy], move |t, _, _| {
                live.set(t.live()[Line::Activations as usize]);
                vec![Some(t.tensor(Line::ActivationGradients, 1 << 20, BF16, "to the input"))]
            });
            out
        };
        let out = checkpointed(&tape, &[&given], output_again, again);
        drop(given);
        let grad = tape.tensor(Line::ActivationGradients, 1 << 20, BF16, "grad");
        backward(&tape, &out, grad);
        seen.get()
    }

    #[test]
    fn inside_another_what_was_given_is_let_go_once_it_has_run_again() {
        assert_eq!(alive_inside(Output::Left) - alive_inside(Output::LeftWithin), 2 << 20);
    }
}
