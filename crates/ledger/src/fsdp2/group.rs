//! A parameter group: its shards, and what is gathered of it (`_fsdp_param.py`,
//! `_fsdp_param_group.py` under `torch/distributed/fsdp/_fully_shard`).

use super::plain::{Param, Step, Unit};
use replay::allocator::Stream;
use replay::line::Line;
use replay::tape::{BF16, Storage, Tape, Tensor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Where a group is in a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Training {
    Idle,
    Forward,
    PreBackward,
    PostBackward,
}

/// What sums of gradients are divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Divisor {
    /// The number of ranks.
    Ranks,
    /// What `set_gradient_divide_factor` said: a rank by itself divides into a temporary.
    Told,
}

/// What a gather has made before parameters are copied out of it.
enum Pending {
    Buffer(Rc<Storage>),
    /// A rank by itself has all there is, and copies parameter by parameter.
    Nothing,
}

/// A rank's rows of a parameter, and how they are stepped.
#[derive(Clone, Copy)]
pub(super) struct Shard {
    pub rows: u64,
    pub columns: u64,
    pub step: Step,
}

impl Shard {
    pub fn elements(self) -> u64 {
        self.rows * self.columns
    }
}

/// Parameters that are gathered and reduced together.
pub(super) struct Group {
    params: Vec<Rc<Param>>,
    shards: u64,
    main: u64,
    divisor: Divisor,
    pub reshards: bool,
    pub training: Cell<Training>,
    /// Its places in the order of forward passes, for prefetching in backward.
    pub indices: RefCell<Vec<usize>>,
    _sharded: Vec<Rc<Storage>>,
    gathered: RefCell<Vec<Rc<Storage>>>,
    /// A gather that has not been copied out of.
    pending: RefCell<Option<Pending>>,
    /// fp32 gradients of this rank's shards, in one buffer.
    gradients: RefCell<Option<Rc<Storage>>>,
    /// Whole gradients of microbatches whose reduction was put off.
    accumulated: RefCell<Vec<Rc<Storage>>>,
}

/// The stream gathers are copied into and allocated on.
const GATHER: Stream = Stream::Side;
/// The stream reduced gradients are allocated on.
const REDUCE: Stream = Stream::Reduce;

impl Group {
    /// `main` is the width of the weights that are stepped.
    pub fn new(tape: &Tape, unit: &Unit, (shards, main): (u64, u64), divisor: Divisor, reshards: bool) -> Group {
        tape.enter(replay::line::Origin::Setup);
        let shard = |p: &Rc<Param>| tape.storage(p.line, padded(p, shards) / shards * main, "weight shard");
        Group {
            params: unit.params.clone(),
            shards,
            main,
            divisor,
            reshards,
            training: Cell::new(Training::Idle),
            indices: RefCell::default(),
            _sharded: unit.params.iter().map(shard).collect(),
            gathered: RefCell::default(),
            pending: RefCell::default(),
            gradients: RefCell::default(),
            accumulated: RefCell::default(),
        }
    }

    /// Shards of the parameters that are stepped.
    pub fn shards(&self) -> impl Iterator<Item = Shard> + '_ {
        let trained = self.params.iter().filter(|param| param.leaf.asks_for_grad());
        trained.map(|param| Shard {
            rows: padded(param, self.shards) / self.shards / param.columns,
            columns: param.columns,
            step: param.step,
        })
    }

    fn elements(&self) -> u64 {
        self.params.iter().map(|param| padded(param, self.shards)).sum()
    }

    pub fn is_gathered(&self) -> bool {
        !self.gathered.borrow().is_empty()
    }

    /// `unshard`: a flat copy of the shards and the whole, on the gathering stream. The copy is
    /// free again once the whole has been filled.
    pub fn unshard(&self, tape: &Tape) {
        if self.params.is_empty() || self.pending.borrow().is_some() || self.is_gathered() {
            return;
        }
        if self.shards == 1 {
            *self.pending.borrow_mut() = Some(Pending::Nothing);
            return;
        }
        let whole = self.elements() * BF16;
        tape.on_stream(GATHER);
        let input = tape.storage(Line::Communication, whole / self.shards, "gather input");
        let output = tape.storage(Line::Communication, whole, "gather output");
        drop(input);
        tape.on_stream(Stream::Main);
        *self.pending.borrow_mut() = Some(Pending::Buffer(output));
    }

    /// `wait_for_unshard`: copies every parameter out of the gathered whole, which the caller
    /// then keeps or frees.
    pub fn copy_out(&self, tape: &Tape) -> Option<Rc<Storage>> {
        let pending = self.pending.borrow_mut().take()?;
        let make = |param: &Param, name| tape.storage(Line::Communication, padded(param, self.shards) * BF16, name);
        // A rank by itself casts each shard first; a variable keeps the last cast until the next.
        let mut cast = None;
        let mut gather = |param: &Rc<Param>| {
            if matches!(pending, Pending::Nothing) && self.main != BF16 {
                cast = Some(make(param, "cast weight"));
            }
            make(param, "gathered weight")
        };
        let weights = self.params.iter().map(&mut gather).collect();
        *self.gathered.borrow_mut() = weights;
        drop(cast);
        match pending {
            Pending::Buffer(output) => Some(output),
            Pending::Nothing => None,
        }
    }

    /// Whether a gather has not been copied out of.
    pub fn is_pending(&self) -> bool {
        self.pending.borrow().is_some()
    }

    pub fn reshard(&self) {
        self.gathered.borrow_mut().clear();
    }

    /// A gather nobody waited for.
    pub fn forget_pending(&self) {
        self.pending.take();
    }

    /// Gradients autograd has given its parameters.
    fn take_gradients(&self) -> Vec<Tensor> {
        self.params.iter().filter_map(|param| param.leaf.take_grad()).collect()
    }

    /// Puts off the reduction: whole gradients are kept in the format they will be reduced in.
    pub fn accumulate(&self, tape: &Tape, reduce_width: u64) {
        let mut kept = self.accumulated.borrow_mut();
        let taken = self.take_gradients();
        if kept.is_empty() {
            let wide = |grad: Tensor| match grad.storage().filter(|_| reduce_width == BF16) {
                Some(storage) => storage,
                None => tape.storage(Line::Gradients, grad.elements() * reduce_width, "whole gradient"),
            };
            kept.extend(taken.into_iter().map(wide));
        }
    }

    /// `foreach_reduce`: copies gradients into one buffer, frees them, and adds the reduced shard
    /// to what is there. Returns the buffer, which stays until the next reduction.
    pub fn reduce(&self, tape: &Tape, reduce_width: u64) -> Option<Rc<Storage>> {
        if !self.accumulated.borrow().is_empty() {
            self.accumulate(tape, reduce_width);
        }
        let (grads, whole) = (self.take_gradients(), self.accumulated.take());
        if grads.is_empty() && whole.is_empty() {
            return None;
        }
        let elements = self.elements();
        let input = tape.storage(Line::Communication, elements * reduce_width, "reduce input");
        // A loop over several ranks' chunks leaves its last gradient in a local variable.
        let last = grads.last().and_then(Tensor::storage).or_else(|| whole.last().cloned());
        let _last = last.filter(|_| self.shards > 1);
        drop((grads, whole));
        tape.on_stream(REDUCE);
        let mut output = tape.storage(Line::Gradients, elements / self.shards * reduce_width, "gradient shard");
        if self.shards == 1 && self.divisor == Divisor::Told {
            drop(tape.storage(Line::Gradients, elements * reduce_width, "divided gradients"));
        }
        if reduce_width != self.main {
            output = tape.storage(Line::Gradients, elements / self.shards * self.main, "gradient shard");
        }
        tape.on_stream(Stream::Main);
        self.gradients.borrow_mut().get_or_insert(output);
        Some(input)
    }

    /// What it decides by, beside what the tape holds.
    pub fn standing(&self) -> [u64; 6] {
        let pending = match &*self.pending.borrow() {
            None => 0,
            Some(Pending::Nothing) => 1,
            Some(Pending::Buffer(_)) => 2,
        };
        let given = self.params.iter().filter(|param| param.leaf.grad().is_some()).count();
        let [gathered, reduced] = [&self.gathered, &self.accumulated].map(|held| held.borrow().len());
        let kept = u64::from(self.gradients.borrow().is_some());
        [self.training.get() as u64, pending, given as u64, gathered as u64, reduced as u64, kept]
    }

    pub fn zero_grad(&self) {
        self.gradients.take();
    }
}

/// Elements of a parameter once its rows are padded to whole shards.
fn padded(param: &Param, shards: u64) -> u64 {
    param.rows.div_ceil(shards) * shards * param.columns
}
