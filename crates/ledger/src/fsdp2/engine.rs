//! When groups are gathered, freed and reduced (`_fsdp_state.py`, `_fsdp_param_group.py` under
//! `torch/distributed/fsdp/_fully_shard`). No tensor is recorded on a second stream: buffers one
//! stream makes and another uses are kept by hand until the next of their kind.

use super::group::{Group, Training};
use super::options::Prefetch;
use super::plain::Engine;
use replay::tape::{Storage, Tape};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// FSDP2 around one rank's model.
pub(super) struct Fsdp {
    pub tape: Tape,
    pub groups: Vec<Group>,
    pub reduce_width: u64,
    pub prefetch: Prefetch,
    /// Whether reductions are put off to the end of the step, and gathered weights with them, as
    /// `torch/distributed/pipelining/stage.py` asks for.
    pub puts_off: bool,
    comm: RefCell<Comm>,
    /// The group whose forward began first and so ends the pass: the root, or a group that
    /// checkpointing runs again by itself.
    pass: Cell<Option<usize>>,
}

/// `FSDPCommContext`.
#[derive(Default)]
struct Comm {
    /// The gather the last forward was copied out of, until the next is.
    gather: Option<Rc<Storage>>,
    /// The input of the last reduction, until the next begins.
    reduce: Option<Rc<Storage>>,
    forward_order: Vec<usize>,
}

impl Fsdp {
    pub fn new(tape: &Tape, groups: Vec<Group>, reduce_width: u64, prefetch: Prefetch, puts_off: bool) -> Fsdp {
        let (comm, pass) = (RefCell::default(), Cell::new(None));
        Fsdp { tape: tape.clone(), groups, reduce_width, prefetch, puts_off, comm, pass }
    }

    /// Copies a gathered group out. In forward the buffer of the last is freed before, and this
    /// one's kept; in backward it is freed at once.
    fn wait_for_unshard(&self, group: &Group) {
        if !group.is_pending() {
            return;
        }
        let is_forward = group.training.get() == Training::Forward;
        if is_forward {
            drop(self.comm.borrow_mut().gather.take());
        }
        let output = group.copy_out(&self.tape);
        if is_forward {
            self.comm.borrow_mut().gather = output;
        }
    }

    fn reduce(&self, group: &Group) {
        group.reshard();
        drop(self.comm.borrow_mut().reduce.take());
        let input = group.reduce(&self.tape, self.reduce_width);
        self.comm.borrow_mut().reduce = input;
    }

    /// The callback behind a backward pass: groups whose input asked for no gradient are reduced
    /// now, and what was kept by hand is freed.
    pub fn end_of_backward(&self) {
        for (unit, group) in self.groups.iter().enumerate() {
            if group.training.get() != Training::PostBackward {
                self.post_backward(unit);
            }
            group.training.set(Training::Idle);
        }
        if !self.puts_off {
            self.finalize();
        }
    }

    /// Behind a forward that no backward follows.
    pub fn end_of_forward(&self) {
        self.groups.iter().for_each(|group| group.training.set(Training::Idle));
        self.finalize();
    }

    fn finalize(&self) {
        for group in &self.groups {
            group.forget_pending();
            group.indices.borrow_mut().clear();
        }
        let mut comm = self.comm.borrow_mut();
        comm.forward_order.clear();
        comm.reduce = None;
    }

    /// What is decided by between microbatches, beside what the tape holds: every group's part in the
    /// step, and what each of its places in the order of forward passes, and the next one, will gather
    /// ahead in backward. How far back a place lies decides nothing.
    pub fn standing(&self) -> Vec<u64> {
        let comm = self.comm.borrow();
        let mut standing = vec![self.pass.get().map_or(0, |unit| unit as u64 + 1)];
        let place = |standing: &mut Vec<u64>, index| {
            let ahead = self.gathered_ahead(&comm, index);
            standing.push(ahead.len() as u64);
            standing.extend(ahead.iter().map(|unit| *unit as u64));
        };
        for group in &self.groups {
            let indices = group.indices.borrow();
            standing.extend(group.standing());
            standing.push(indices.len() as u64);
            indices.iter().for_each(|&index| place(&mut standing, index));
        }
        place(&mut standing, comm.forward_order.len());
        standing
    }

    /// Groups whose forward ran right before this place, the last of them last.
    fn gathered_ahead<'a>(&self, comm: &'a Comm, index: usize) -> &'a [usize] {
        &comm.forward_order[index.saturating_sub(self.prefetch.backward)..index]
    }

    /// Behind the last microbatch of a pipeline: every group is reduced, one after another.
    pub fn reduce_all(&self) {
        for group in &self.groups {
            self.reduce(group);
        }
        self.finalize();
    }
}

impl Engine for Fsdp {
    fn pre_forward(&self, unit: usize) {
        let group = &self.groups[unit];
        if group.training.get() == Training::PreBackward {
            // Checkpointing computes again between a group's backward hooks.
            group.unshard(&self.tape);
            self.wait_for_unshard(group);
            return;
        }
        self.pass.set(self.pass.get().or(Some(unit)));
        group.training.set(Training::Forward);
        group.unshard(&self.tape);
        self.wait_for_unshard(group);
        if unit > 0 {
            self.groups.iter().skip(unit + 1).take(self.prefetch.forward).for_each(|next| next.unshard(&self.tape));
        }
    }

    fn post_forward(&self, unit: usize) {
        let group = &self.groups[unit];
        if group.training.get() == Training::PreBackward {
            return;
        }
        if group.reshards {
            group.reshard();
        }
        group.training.set(Training::Idle);
        let mut comm = self.comm.borrow_mut();
        let ends_pass = self.pass.get() == Some(unit);
        if ends_pass {
            self.pass.set(None);
            comm.gather = None;
        }
        // A bank of experts that checkpointing runs again enters the order once, so that
        // prefetching finds the group before it, as torchtitan's explicit order does.
        if unit == 0 || !ends_pass {
            group.indices.borrow_mut().push(comm.forward_order.len());
            comm.forward_order.push(unit);
        }
    }

    fn pre_backward(&self, unit: usize) {
        let group = &self.groups[unit];
        if group.training.replace(Training::PreBackward) == Training::PreBackward {
            return;
        }
        group.unshard(&self.tape);
        self.wait_for_unshard(group);
        let index = group.indices.borrow_mut().pop();
        let Some(index) = index else { return };
        let comm = self.comm.borrow();
        let before = self.gathered_ahead(&comm, index).iter().rev();
        before.for_each(|&next| self.groups[next].unshard(&self.tape));
    }

    fn post_backward(&self, unit: usize) {
        let group = &self.groups[unit];
        group.training.set(Training::PostBackward);
        if self.puts_off {
            group.accumulate(&self.tape, self.reduce_width);
        } else {
            self.reduce(group);
        }
    }
}
