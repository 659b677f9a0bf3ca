//! Runs passes over chunks in the order of the schedule: receives inputs, sends outputs, and keeps what
//! backward needs in between. The order itself is [`layout::order`]'s.

use crate::blocks::{Cx, Product};
use crate::mat::Mat;
use crate::model::{Model, Pass, Tokens};
use crate::params::Shelf;
use crate::real::Real;
use comm::{Call, Result};
use layout::activations::Dealing;
use layout::order::{Action, Pass as Kind, Pipeline};
use std::collections::HashMap;

const UP: Call = Call::new("pp", "residual stream to the next chunk");
const DOWN: Call = Call::new("pp", "its gradient to the chunk before");
const STATE_UP: Call = Call::new("pp", "recurrent state to the next chunk");
const STATE_DOWN: Call = Call::new("pp", "gradient of recurrent state to the chunk before");

/// Results of a step on this rank.
#[derive(Default)]
pub(crate) struct Done {
    pub loss: f64,
    pub auxiliary: f64,
    /// Most bytes kept for backward at once.
    pub saved_bytes: u64,
    /// Where routers sent tokens, by microbatch and block.
    pub routing: Dealing,
}

/// Passes whose forward has run and whose backward has not, by microbatch and chunk.
pub(crate) struct Flight<R> {
    order: Pipeline,
    passes: HashMap<(u32, u32), Pass<R>>,
    waiting: HashMap<(u32, u32), Vec<Product<R>>>,
    /// Bytes those passes keep.
    bytes: u64,
    pub done: Done,
}

impl<R: Real> Flight<R> {
    pub fn new(order: Pipeline) -> Flight<R> {
        Flight { order, passes: HashMap::new(), waiting: HashMap::new(), bytes: 0, done: Done::default() }
    }

    /// The rank that runs `chunk` of the action's microbatch.
    fn peer(&self, cx: &Cx<R>, action: Action, chunk: u32) -> usize {
        let direction = self.order.direction(action.microbatch);
        cx.rank.pp.ranks()[self.order.stage_of(direction, chunk) as usize]
    }

    /// The tag of messages between `chunk` and the one before, for one microbatch and direction. The
    /// residual stream and the state beside it share it. Zero is for untagged messages.
    fn tag(&self, action: Action, chunk: u32) -> u64 {
        let seam = u64::from(action.microbatch) * u64::from(self.order.chunks()) + u64::from(chunk);
        2 * seam + 1 + u64::from(action.pass != Kind::Forward)
    }

    /// Sends the residual stream, and the state beside it, across the boundary below chunk `seam`.
    fn send(&self, cx: &mut Cx<R>, action: Action, to: u32, seam: u32, stream: Mat<R>) -> Result<()> {
        let (peer, tag) = (self.peer(cx, action, to), self.tag(action, seam));
        let [call, of_state] = if action.pass == Kind::Forward { [UP, STATE_UP] } else { [DOWN, STATE_DOWN] };
        cx.rank.comm.send_tagged(peer, call, tag, stream.data)?;
        match cx.carried.take() {
            Some(state) => cx.rank.comm.send_tagged(peer, of_state, tag, state.data),
            None => Ok(()),
        }
    }

    /// Runs one pass.
    pub fn run(
        &mut self,
        cx: &mut Cx<R>,
        model: &Model<R>,
        shelf: &Shelf,
        action: Action,
        tokens: &Tokens,
    ) -> Result<()> {
        match action.pass {
            Kind::Forward => self.forward(cx, model, shelf, action, tokens),
            Kind::Backward => self.backward(cx, model, shelf, action, tokens),
            Kind::BackwardInput => {
                cx.deferred = Some(Vec::new());
                self.backward(cx, model, shelf, action, tokens)?;
                let products = cx.deferred.take().unwrap_or_default();
                self.waiting.insert((action.microbatch, action.chunk), products);
                Ok(())
            }
            Kind::BackwardWeight => {
                let products = self.waiting.remove(&(action.microbatch, action.chunk)).unwrap_or_default();
                products.iter().for_each(|product| product.add(cx.grads));
                Ok(())
            }
        }
    }

    fn forward(
        &mut self,
        cx: &mut Cx<R>,
        model: &Model<R>,
        shelf: &Shelf,
        action: Action,
        tokens: &Tokens,
    ) -> Result<()> {
        let Action { microbatch, chunk, .. } = action;
        let input = match chunk.checked_sub(1) {
            Some(before) => Some(self.receive(cx, model, action, before, chunk)?),
            None => None,
        };
        let (out, pass) = model.forward(cx, shelf, chunk as usize, input, tokens)?;
        if let Some(out) = out {
            self.send(cx, action, chunk + 1, chunk + 1, out)?;
        }
        self.done.loss += pass.loss;
        self.done.auxiliary += std::mem::take(&mut cx.auxiliary);
        self.done.routing.0.insert((microbatch, chunk), std::mem::take(&mut cx.routed));
        self.bytes += pass.bytes();
        self.done.saved_bytes = self.done.saved_bytes.max(self.bytes);
        self.passes.insert((microbatch, chunk), pass);
        Ok(())
    }

    fn backward(
        &mut self,
        cx: &mut Cx<R>,
        model: &Model<R>,
        shelf: &Shelf,
        action: Action,
        tokens: &Tokens,
    ) -> Result<()> {
        let Action { microbatch, chunk, .. } = action;
        let dy = match chunk + 1 == self.order.chunks() {
            true => None,
            false => Some(self.receive(cx, model, action, chunk + 1, chunk + 1)?),
        };
        let pass = self.passes.remove(&(microbatch, chunk));
        let pass = pass.unwrap_or_else(|| panic!("chunk {chunk} of microbatch {microbatch} has not run forward"));
        self.bytes -= pass.bytes();
        let dx = model.backward(cx, shelf, chunk as usize, tokens, pass, dy)?;
        // An indexer's loss is known only now: backward of attention shows what its heads read.
        self.done.auxiliary += std::mem::take(&mut cx.auxiliary);
        if let (Some(dx), Some(before)) = (dx, chunk.checked_sub(1)) {
            self.send(cx, action, before, chunk, dx)?;
        }
        Ok(())
    }

    /// Receives the residual stream across the boundary below chunk `seam`; state that comes with it is
    /// left in the context.
    fn receive(&self, cx: &mut Cx<R>, model: &Model<R>, action: Action, from: u32, seam: u32) -> Result<Mat<R>> {
        let (peer, tag) = (self.peer(cx, action, from), self.tag(action, seam));
        let [call, of_state] = if action.pass == Kind::Forward { [UP, STATE_UP] } else { [DOWN, STATE_DOWN] };
        let (rows, cols) = (cx.sizes.shard, model.hidden());
        let data = cx.rank.comm.receive_tagged(peer, call, tag, rows * cols)?;
        if let Some((rows, cols)) = model.state(seam as usize) {
            let state = cx.rank.comm.receive_tagged(peer, of_state, tag, rows * cols)?;
            cx.carried = Some(Mat::of(cols, state));
        }
        Ok(Mat::of(cols, data))
    }
}
