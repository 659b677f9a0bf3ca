//! Loops over verbs: how a schedule is written down.

/// One of the at most two sequences of passes a stage alternates between: the chunks nearer the
/// entry (0) and the others (1) under DualPipe and DualPipeV, everything (0) otherwise.
pub type Slot = usize;

/// What a stage does next. Which microbatch and chunk follows from how often it did so before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Forward of the slot's next.
    Forward(Slot),
    /// Whole backward of the slot's next.
    Backward(Slot),
    /// Backward of the slot's next that puts weight gradients off.
    Input(Slot),
    /// The weight pass that waits longest.
    Weight,
    /// Forward of one slot overlapped with the whole backward of the other.
    Both {
        /// The forward's.
        forward: Slot,
        /// The backward's.
        backward: Slot,
    },
}

/// A numbered loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Rounds, which depend on stage and microbatches.
    pub times: u32,
    /// The verbs of one round, in order.
    pub body: &'static [Verb],
}

/// The most loops of any schedule: DualPipe's eight, two of which are in parts.
const MOST: usize = 12;

/// The most verbs of a loop.
pub const LONGEST_BODY: usize = 3;

/// The loops of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    loops: [Loop; MOST],
    len: usize,
    main: Option<usize>,
}

impl Program {
    pub(super) fn new() -> Program {
        Program { loops: [Loop { times: 0, body: &[] }; MOST], len: 0, main: None }
    }

    /// Adds a loop.
    pub(super) fn then(mut self, times: u32, body: &'static [Verb]) -> Program {
        debug_assert!(body.len() <= LONGEST_BODY);
        self.loops[self.len] = Loop { times, body };
        self.len += 1;
        self
    }

    /// Adds the loop that more microbatches make longer, and no other.
    pub(super) fn steadily(mut self, times: u32, body: &'static [Verb]) -> Program {
        self.main = Some(self.len);
        self.then(times, body)
    }

    /// Its loops, in order; some may run no times.
    pub fn loops(&self) -> &[Loop] {
        &self.loops[..self.len]
    }

    /// Which of them is the steady state, where there is one.
    pub fn main(&self) -> Option<usize> {
        self.main
    }
}
