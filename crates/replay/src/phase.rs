//! What a replay of one rank came to, phase by phase.

use crate::line::{ByLine, Line, Origin};
use crate::tape::{Holder, Peak, Tape};
use std::fmt;

/// What runs in a phase. An engine has those it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseKind {
    /// Device context and process groups.
    Context,
    /// Weights are built.
    Model,
    /// Gradient buffers are made, and weights move into buffers of their own.
    Buffers,
    /// Main weights are made.
    Optimizer,
    /// What stays between steps, of an engine that makes it in one go.
    State,
    /// Forward, loss and backward of a step, counted from zero.
    Passes(u32),
    /// Gradients are reduced behind the passes, where that is a phase of its own.
    Reduce,
    /// The optimizer's part of a step.
    Update(u32),
}

impl PhaseKind {
    /// Whether it belongs to a training step.
    pub fn is_of_a_step(self) -> bool {
        matches!(self, PhaseKind::Passes(_) | PhaseKind::Reduce | PhaseKind::Update(_))
    }

    /// In a few words.
    pub fn what(self) -> &'static str {
        match self {
            PhaseKind::Context => "device context and process groups",
            PhaseKind::Model => "weights built",
            PhaseKind::Buffers => "gradient buffers made, weights moved into theirs",
            PhaseKind::Optimizer => "main weights made",
            PhaseKind::State => "weights, gradient buffers and moments: what stays between steps",
            PhaseKind::Passes(0) => "first step: forward, loss, backward, gradient reduction; workspaces made",
            PhaseKind::Passes(_) => "forward, loss, backward, gradient reduction",
            PhaseKind::Reduce => "gradients reduced over replicas and copies",
            PhaseKind::Update(0) => "first optimizer step: moments made",
            PhaseKind::Update(_) => "optimizer step, weights gathered",
        }
    }
}

impl fmt::Display for PhaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PhaseKind::Context => f.pad("context"),
            PhaseKind::Model => f.pad("model"),
            PhaseKind::Buffers => f.pad("ddp"),
            PhaseKind::Optimizer => f.pad("optimizer"),
            PhaseKind::State => f.pad("state"),
            PhaseKind::Passes(step) => f.pad(&format!("fwdbwd{step}")),
            PhaseKind::Reduce => f.pad("reduce"),
            PhaseKind::Update(step) => f.pad(&format!("opt{step}")),
        }
    }
}

/// One phase of a replay, as the device would report it.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What runs in it.
    pub kind: PhaseKind,
    /// Bytes allocated at its end.
    pub allocated: u64,
    /// The most allocated in it.
    pub peak: Peak,
    /// The most bytes asked for in it, before the allocator rounds blocks up and leaves remainders unsplit: what
    /// grows whenever a size does.
    pub requested_peak: u64,
    /// The most allocated in its forward, loss and backward; zero where there is none.
    pub by_part: [u64; 3],
    /// Bytes reserved at its end.
    pub reserved: u64,
    /// The most reserved up to its end, within the phases that share its peak.
    pub reserved_peak: u64,
    /// The most bytes of free blocks in split segments; it depends on the order in which one
    /// function's locals are freed, which is not replayed, and so is only near.
    pub inactive_split_peak: u64,
}

impl Phase {
    /// Reads a phase off the tape.
    pub fn read(tape: &Tape, kind: PhaseKind) -> Phase {
        tape.phase_ends(kind);
        let (peak, by_part, requested_peak) = (tape.peak(), tape.by_part(), tape.requested_peak());
        tape.read(|a| Phase {
            kind,
            allocated: a.allocated(),
            peak,
            requested_peak,
            by_part,
            reserved: a.reserved(),
            reserved_peak: a.reserved_peak(),
            inactive_split_peak: a.inactive_split_peak(),
        })
    }
}

/// What replaying one rank came to.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Elements of the rank's parameters.
    pub params: u64,
    /// Phases in order.
    pub phases: Vec<Phase>,
    /// Allocations that were walked for it; those that were proven to repeat are not among them.
    pub operations: u64,
    /// Who holds what at the highest point of the steps, most first; empty unless asked for.
    pub holders: Vec<Holder>,
    /// Who holds what after the last step, on lines that a step should leave empty; empty unless
    /// asked for.
    pub retained: Vec<Holder>,
}

impl Replay {
    /// A phase, where the engine has it.
    pub fn phase(&self, kind: PhaseKind) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.kind == kind)
    }

    /// The step phase with the highest allocated peak. The static phases before the steps hold
    /// old and new copies of weights for a moment and are reported, not judged.
    pub fn highest(&self) -> &Phase {
        let steps = self.phases.iter().filter(|phase| phase.kind.is_of_a_step());
        let highest = steps.rev().max_by_key(|phase| phase.peak.allocated);
        highest.unwrap_or_else(|| &self.phases[self.phases.len() - 1])
    }

    /// The most bytes allocated in the steps.
    pub fn allocated_peak(&self) -> u64 {
        self.highest().peak.allocated
    }

    /// The most bytes asked for in the steps.
    pub fn requested_peak(&self) -> u64 {
        let steps = self.phases.iter().filter(|phase| phase.kind.is_of_a_step());
        steps.map(|phase| phase.requested_peak).max().unwrap_or(0)
    }

    /// The most bytes reserved at any time.
    pub fn reserved_peak(&self) -> u64 {
        self.phases.iter().map(|phase| phase.reserved_peak).max().unwrap_or(0)
    }

    /// Bytes at the highest point by line.
    pub fn by_line(&self) -> &ByLine {
        &self.highest().peak.by_line
    }

    /// Bytes at the highest point by where they were made, most first; empty unless holders were
    /// asked for.
    pub fn by_origin(&self) -> Vec<(Origin, u64)> {
        let mut sums = std::collections::BTreeMap::new();
        for holder in &self.holders {
            *sums.entry(holder.origin).or_insert(0) += holder.bytes;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(origin, bytes)| (std::cmp::Reverse(*bytes), *origin));
        sums
    }

    /// Bytes of one line at the highest point.
    pub fn line(&self, line: Line) -> u64 {
        self.by_line()[line as usize]
    }
}
