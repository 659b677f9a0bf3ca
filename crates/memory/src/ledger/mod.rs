//! What an implementation saves for backward differs, so it is data: one ledger an engine. A
//! ledger replays the engine's allocations in the engine's order on a [`crate::tape`].

mod choice;
pub mod deepspeed;
pub mod fsdp2;
mod grads;
mod mamba_scan;
pub mod megatron;
pub mod nanotron;
pub mod shardwright;

pub use choice::{Ledger, RankJob};

use crate::line::{ByLine, Line, Stand};
use crate::tape::{Holder, Peak, Tape};
use layout::{Layout, StagePlan};
use recipe::Recipe;

/// The rank a replay is of, and all that decides what it holds.
#[derive(Debug)]
pub struct Job<'a, Options> {
    /// What the model is.
    pub recipe: &'a Recipe,
    /// How it is split; must be legal.
    pub layout: &'a Layout,
    /// Which layers each chunk of depth holds.
    pub stages: &'a StagePlan,
    /// The rank, in the engine's own order.
    pub rank: u64,
    /// What the engine is told besides.
    pub options: &'a Options,
}

impl<Options> Clone for Job<'_, Options> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Options> Copy for Job<'_, Options> {}

/// One phase of a replay, as the device would report it.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Its name: `model`, `ddp`, `optimizer`, `fwdbwd0`, `opt0` …; our own runtime's are `state`, `fwdbwd`, `reduce`, `opt`.
    pub name: String,
    /// Bytes allocated at its end.
    pub allocated: u64,
    /// The most allocated in it.
    pub peak: Peak,
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
    pub(crate) fn read(tape: &Tape, name: String) -> Phase {
        let (peak, by_part) = (tape.peak(), tape.by_part());
        tape.read(|a| Phase {
            name,
            allocated: a.allocated(),
            peak,
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
    /// Who holds what at the highest point of the steps, most first; empty unless asked for.
    pub holders: Vec<Holder>,
    /// Who holds what after the last step, on lines that a step should leave empty; empty unless
    /// asked for.
    pub retained: Vec<Holder>,
}

impl Replay {
    /// A phase by name.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// The step phase with the highest allocated peak. The static phases before the steps hold
    /// old and new copies of weights for a moment and are reported, not judged.
    pub fn highest(&self) -> &Phase {
        let steps = self.phases.iter().filter(|phase| phase.is_of_a_step());
        let highest = steps.rev().max_by_key(|phase| phase.peak.allocated);
        highest.unwrap_or_else(|| &self.phases[self.phases.len() - 1])
    }

    /// The most bytes allocated in the steps.
    pub fn allocated_peak(&self) -> u64 {
        self.highest().peak.allocated
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
    pub fn by_stand(&self) -> Vec<(Stand, u64)> {
        let mut sums = std::collections::BTreeMap::new();
        for holder in &self.holders {
            *sums.entry(holder.stand).or_insert(0) += holder.bytes;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(stand, bytes)| (std::cmp::Reverse(*bytes), *stand));
        sums
    }

    /// Bytes of one line at the highest point.
    pub fn line(&self, line: Line) -> u64 {
        self.by_line()[line as usize]
    }
}

impl Phase {
    /// Whether it belongs to a training step.
    pub fn is_of_a_step(&self) -> bool {
        let is_step = |word| self.name.starts_with(word);
        is_step("fwdbwd") || is_step("reduce") || (is_step("opt") && self.name != "optimizer")
    }
}
