//! Pipeline schedules (`megatron/core/pipeline_parallel/schedules.py`). Variables that look
//! unused are locals of Megatron's schedule frames: tensors stay allocated until they are
//! assigned anew.

use super::model::Chunk;
use super::rank::Rank;
use super::schedule_split::Split;
use layout::order::{Block, Pass};
use layout::{Layout, Schedule};
use replay::line::{Line, Origin};
use replay::tape::{BF16, FP32, Tensor, backward};
use std::collections::VecDeque;
use std::rc::Rc;

/// One step: all microbatches forward and backward.
pub(super) fn run_step(c: &Rc<Rank>, chunks: &[Chunk]) {
    c.tape.enter(Origin::Pipeline);
    let _token_count = c.act_of(1, FP32, "number of tokens");
    match (c.config.order.schedule(), chunks) {
        (_, [chunk]) if c.config.pp == 1 => without_pipeline(c, chunk),
        (Schedule::ZbH1 | Schedule::DualPipe | Schedule::DualPipeV, _) => Split::new(c, chunks).run(),
        (_, [chunk]) => one_forward_one_backward(c, chunk),
        _ => Interleaved::new(c, chunks).run(),
    }
}

/// Microbatches replayed in the steady state: the second sees what the frames of the first left.
const STEADY: u64 = 2;
/// Layer passes so few that a step is replayed whole: how free blocks lie, which no peak of what is
/// allocated depends on, settles a little later than that.
const FEW: u64 = 64;

/// Microbatches that are replayed on a stage of so many layers: those before the steady state, and
/// [`STEADY`] in it. What is in flight does not change after that, and what drains the pipeline is
/// the same. Under a random router fewer draws are seen than a whole step makes.
pub(super) fn replayed(layout: &Layout, stage: u64, layers: usize) -> u64 {
    let (pp, few) = (layout.pp.get(), FEW / layers.max(1) as u64);
    let most = match layout.schedule {
        // Every microbatch is in flight at once.
        Schedule::GPipe => layout.microbatches,
        Schedule::OneF1b => (pp - stage - 1 + STEADY).max(few),
        // Weight passes lag behind by as many backwards as the stage has stages before it.
        Schedule::ZbH1 => pp - 1 + STEADY,
        // Warmup is less than two rounds of all chunks; rounds are whole.
        Schedule::Interleaved => ((2 + STEADY) * pp).max(few.next_multiple_of(pp)),
        Schedule::DualPipe | Schedule::DualPipeV => 2 * pp + 2 * STEADY,
    };
    layout.microbatches.min(most)
}

pub(super) fn forward(c: &Rc<Rank>, chunk: &Chunk, input: Option<Tensor>) -> Tensor {
    *chunk.input.borrow_mut() = input;
    c.tape.set_recording(true);
    c.pass.set(c.pass.get() + 1);
    let out = chunk.forward(c);
    c.tape.enter(Origin::Pipeline);
    out
}

/// Backward of one microbatch; returns the gradient of its input.
pub(super) fn backward_step(
    c: &Rank,
    input: Option<&Tensor>,
    output: &Tensor,
    grad: Option<&Tensor>,
) -> Option<Tensor> {
    c.is_backward.set(true);
    let grad = grad.cloned().unwrap_or_else(|| c.tape.tensor(Line::Loss, 1, FP32, "loss gradient"));
    backward(&c.tape, output, grad.clone());
    c.is_backward.set(false);
    input.and_then(Tensor::grad)
}

pub(super) fn receive(c: &Rank, name: &'static str) -> Tensor {
    c.tape.enter(Origin::Pipeline);
    c.comm(c.config.local_tokens * c.config.hidden, name).requiring_grad()
}

/// Once sent, an output keeps its graph but not its bytes (`deallocate_output_tensor`).
pub(super) fn release(c: &Rank, output: &Tensor) {
    output.set_storage(c.tape.storage(Line::Communication, BF16, "sent output"));
}

fn without_pipeline(c: &Rc<Rank>, chunk: &Chunk) {
    for _ in 0..c.config.microbatches {
        if c.is_over() {
            return;
        }
        let output = forward(c, chunk, None);
        backward_step(c, None, &output, None);
    }
}

/// What a schedule keeps of microbatches in flight, oldest first.
#[derive(Default)]
pub(super) struct InFlight {
    pub inputs: VecDeque<Option<Tensor>>,
    pub outputs: VecDeque<Tensor>,
    grads: VecDeque<Tensor>,
}

/// Locals of a schedule's frame.
#[derive(Default)]
struct Frame {
    input: Option<Tensor>,
    /// Keeps its graph's edges, and by them the input it came from, until the next output.
    output: Option<Tensor>,
    output_grad: Option<Tensor>,
    input_grad: Option<Tensor>,
}

impl Frame {
    /// Backward of the frame's microbatch.
    fn backward(&mut self, c: &Rank) {
        if let Some(output) = &self.output {
            self.input_grad = backward_step(c, self.input.as_ref(), output, self.output_grad.as_ref());
            c.tape.synchronize();
        }
    }

    /// Takes the oldest microbatch out of flight.
    fn take_oldest(&mut self, flight: &mut InFlight) {
        self.input = flight.inputs.pop_front().flatten();
        self.output = flight.outputs.pop_front();
    }
}

/// Forwards before the first pair of one forward and one backward: the first loop of the order.
fn forwards_ahead(c: &Rank) -> usize {
    c.config.order.program(c.config.stage as u32).loops()[0].times as usize
}

/// The host waits for the device at every exchange (`batch_p2p_sync` in `p2p_communication.py`), which
/// interleaved schedules do without.
fn one_forward_one_backward(c: &Rc<Rank>, chunk: &Chunk) {
    let (is_first, is_last) = (c.config.stage == 0, c.config.stage + 1 == c.config.pp);
    let next_input = || (!is_first).then(|| receive(c, "received input"));
    let next_grad = || (!is_last).then(|| receive(c, "received gradient"));
    let warmup = forwards_ahead(c);
    let steady = c.config.microbatches as usize - warmup;
    let (mut frame, mut flight) = (Frame::default(), InFlight::default());
    let run = |frame: &mut Frame, flight: &mut InFlight| {
        let output = forward(c, chunk, frame.input.clone());
        c.tape.synchronize();
        flight.inputs.push_back(frame.input.clone());
        flight.outputs.push_back(output.clone());
        frame.output = Some(output);
    };
    for _ in 0..warmup {
        if c.is_over() {
            return;
        }
        frame.input = next_input();
        run(&mut frame, &mut flight);
        frame.output.iter().for_each(|output| release(c, output));
    }
    if steady > 0 {
        frame.input = next_input();
    }
    for step in 0..steady {
        if c.is_over() {
            return;
        }
        run(&mut frame, &mut flight);
        frame.output_grad = next_grad();
        if !is_last {
            frame.output.iter().for_each(|output| release(c, output));
        }
        frame.take_oldest(&mut flight);
        frame.backward(c);
        // The next input arrives while the last one and its gradient are still there.
        frame.input = if step + 1 < steady { next_input() } else { None };
    }
    for _ in 0..warmup {
        if c.is_over() {
            return;
        }
        frame.take_oldest(&mut flight);
        frame.output_grad = next_grad();
        frame.backward(c);
    }
}

/// One forward, one backward over several chunks a stage. Inputs and output gradients are
/// received one step ahead, and a forward's output stays through the backward paired with it.
struct Interleaved<'a> {
    c: &'a Rc<Rank>,
    chunks: &'a [Chunk],
    /// The chunk of each forward, in order; backward runs through chunks the other way round.
    order: Vec<usize>,
    flights: Vec<InFlight>,
    is_first: bool,
    is_last: bool,
}

impl<'a> Interleaved<'a> {
    fn new(c: &'a Rc<Rank>, chunks: &'a [Chunk]) -> Interleaved<'a> {
        let pipeline = c.config.order;
        let forwards = pipeline.stage(c.config.stage as u32).flat_map(Block::actions);
        let forwards = forwards.filter(|action| action.pass == Pass::Forward);
        let order = forwards.map(|action| pipeline.local(action.chunk)).collect();
        let flights = chunks.iter().map(|_| InFlight::default()).collect();
        let (is_first, is_last) = (c.config.stage == 0, c.config.stage + 1 == c.config.pp);
        Interleaved { c, chunks, order, flights, is_first, is_last }
    }

    fn backward_chunk(&self, k: usize) -> usize {
        self.chunks.len() - 1 - self.order[k]
    }

    fn needs_input(&self, k: usize) -> bool {
        k < self.order.len() && !(self.is_first && self.order[k] == 0)
    }

    fn needs_grad(&self, k: usize) -> bool {
        k < self.order.len() && !(self.is_last && self.backward_chunk(k) + 1 == self.chunks.len())
    }

    /// Receives the input of forward `k`, when it has one.
    fn receive_input(&self, k: usize) -> Option<Tensor> {
        self.needs_input(k).then(|| receive(self.c, "received input"))
    }

    fn receive_grad(&self, k: usize) -> Option<Tensor> {
        self.needs_grad(k).then(|| receive(self.c, "received gradient"))
    }

    fn forward(&mut self, k: usize) -> Tensor {
        let chunk = self.order[k];
        if !self.needs_input(k) {
            self.flights[chunk].inputs.push_back(None);
        }
        let input = self.flights[chunk].inputs.back().cloned().flatten();
        let output = forward(self.c, &self.chunks[chunk], input);
        self.flights[chunk].outputs.push_back(output.clone());
        output
    }

    fn backward(&mut self, k: usize, frame: &mut Frame) {
        let chunk = self.backward_chunk(k);
        let needs_grad = self.needs_grad(k);
        let flight = &mut self.flights[chunk];
        let (input, output) = (flight.inputs.pop_front().flatten(), flight.outputs.pop_front());
        let grad = if needs_grad { flight.grads.pop_front() } else { None };
        let Some(output) = output else { return };
        frame.input_grad = backward_step(self.c, input.as_ref(), &output, grad.as_ref());
        drop((input, output, grad));
        if self.is_first && chunk == 0 {
            frame.input_grad = None;
        }
    }

    fn release_unless_loss(&self, k: usize, output: &Tensor) {
        if !(self.is_last && self.order[k] + 1 == self.chunks.len()) {
            release(self.c, output);
        }
    }

    fn keep_input(&mut self, k: usize, input: &Option<Tensor>) {
        if let Some(input) = input {
            self.flights[self.order[k]].inputs.push_back(Some(input.clone()));
        }
    }

    fn keep_grad(&mut self, k: usize, grad: &Option<Tensor>) {
        if let Some(grad) = grad {
            let chunk = self.backward_chunk(k);
            self.flights[chunk].grads.push_back(grad.clone());
        }
    }

    fn run(mut self) {
        let total = self.order.len();
        let warmup = forwards_ahead(self.c);
        let mut frame = Frame::default();
        if self.needs_input(0) {
            let input = self.receive_input(0);
            self.keep_input(0, &input);
        }
        self.warm_up(warmup, &mut frame);
        self.steady(warmup, &mut frame);
        if warmup == total {
            let grad = self.receive_grad(0);
            self.keep_grad(0, &grad);
        }
        for k in total - warmup..total {
            if self.c.is_over() {
                return;
            }
            self.backward(k, &mut frame);
            frame.output_grad = self.receive_grad(k + 1);
            self.keep_grad(k + 1, &frame.output_grad);
        }
    }

    fn warm_up(&mut self, warmup: usize, frame: &mut Frame) {
        let total = self.order.len();
        for k in 0..warmup {
            if self.c.is_over() {
                return;
            }
            let output = self.forward(k);
            frame.output = Some(output.clone());
            frame.input = self.receive_input(k + 1);
            if k + 1 == warmup && warmup < total {
                frame.output_grad = self.receive_grad(0);
                self.keep_grad(0, &frame.output_grad);
            }
            self.keep_input(k + 1, &frame.input);
            self.release_unless_loss(k, &output);
        }
    }

    fn steady(&mut self, warmup: usize, frame: &mut Frame) {
        let steps = self.order.len() - warmup;
        for k in 0..steps {
            if self.c.is_over() {
                return;
            }
            let output = self.forward(warmup + k);
            frame.output = Some(output.clone());
            self.backward(k, frame);
            let input = if k + 1 < steps { self.receive_input(warmup + k + 1) } else { None };
            let grad = self.receive_grad(k + 1);
            (frame.input, frame.output_grad) = (input, grad);
            self.release_unless_loss(warmup + k, &output);
            self.keep_input(warmup + k + 1, &frame.input);
            self.keep_grad(k + 1, &frame.output_grad);
        }
    }
}
