//! Loops whose rounds repeat themselves, such as the microbatches of a step: what has been seen twice
//! is not walked again.
//!
//! A round is left out only on proof. Two spans of rounds, one right behind the other, must have made
//! the same changes at the same addresses, and the free blocks, the book and what the engine decides by
//! must be the same before, between and behind them. Then the next span starts where those did and ends
//! where they did: it reaches no point that they did not reach, and every peak has been seen. Where host
//! and device have clocks nothing is left out, because times never come back.

use super::storage::{Book, Entry, Tape};
use crate::allocator::FreeBlocks;
use crate::line::{ByLine, Line, Origin};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Which microbatches of a step are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Microbatches {
    /// Until the steady state repeats itself, and those that drain it.
    Steady,
    /// All of them.
    All,
}

/// The most changes that are kept to compare with, some 60 MB; a loop that has not come round by then
/// is walked to its end.
const KEPT: usize = 1 << 20;

/// A change of the book, as the allocator made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Change {
    pub address: u64,
    pub bytes: u64,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    Taken(Entry),
    Given,
    Booked(Line),
}

/// What the next round depends on.
#[derive(PartialEq, Eq, Hash)]
struct Standing {
    free: FreeBlocks,
    live: ByLine,
    origin: Origin,
    /// What the engine around the tape decides by.
    engine: Vec<u64>,
}

/// How things stand behind a round, and what it did.
struct Round {
    standing: Standing,
    changes: Vec<Change>,
    /// Hashes of both, which differ where they do, nearly always.
    hashes: [u64; 2],
    /// Allocations so far.
    events: u64,
}

impl Round {
    fn is_like(&self, other: &Round) -> bool {
        self.hashes == other.hashes && self.standing == other.standing && self.changes == other.changes
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Rounds of the shortest span that the last two spans prove to repeat.
fn span(rounds: &[Round]) -> Option<usize> {
    let last = rounds.len().checked_sub(1)?;
    let same = |a: usize, b: usize| rounds[a].is_like(&rounds[b]);
    (1..=last / 2).find(|&span| {
        let before = &rounds[last - 2 * span];
        let repeats = (0..span).all(|back| same(last - back, last - span - back));
        repeats && before.hashes[0] == rounds[last].hashes[0] && before.standing == rounds[last].standing
    })
}

impl Tape {
    /// Runs `round` so many times, leaving out what is proven to change nothing. `engine` gives what is
    /// decided by and stands on no tape; counters that only grow belong into it relative to now.
    pub fn rounds(&self, count: u64, which: Microbatches, engine: impl Fn() -> Vec<u64>, mut round: impl FnMut()) {
        let mut left = count;
        // Two spans behind a first round are the least that prove anything.
        if which == Microbatches::Steady && count > 3 && self.book().can_repeat() {
            let (mut seen, mut kept): (Vec<Round>, usize) = (Vec::new(), 0);
            self.book().changes = Some(Vec::new());
            while left > 0 && kept < KEPT {
                round();
                left -= 1;
                seen.push(self.end_of_round(engine()));
                kept += seen[seen.len() - 1].changes.len();
                if let Some(span) = span(&seen) {
                    let spans = left / span as u64;
                    let [before, now] = [seen.len() - 1 - span, seen.len() - 1].map(|at| seen[at].events);
                    self.book().leave_out(spans * (now - before));
                    left -= spans * span as u64;
                    break;
                }
            }
            self.book().changes = None;
        }
        for _ in 0..left {
            round();
        }
    }

    fn end_of_round(&self, engine: Vec<u64>) -> Round {
        let origin = self.origin();
        let mut book = self.book();
        let changes = book.changes.replace(Vec::new()).unwrap_or_default();
        let standing = book.standing(origin, engine);
        let hashes = [hash(&standing), hash(&changes)];
        Round { standing, changes, hashes, events: book.events }
    }
}

impl Book {
    fn can_repeat(&self) -> bool {
        self.clock.is_none()
    }

    fn standing(&self, origin: Origin, engine: Vec<u64>) -> Standing {
        Standing { free: self.allocator.free_blocks(), live: self.live, origin, engine }
    }

    /// So many allocations happened that were not walked.
    fn leave_out(&mut self, events: u64) {
        self.events += events;
        self.left_out += events;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Storage;
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::rc::Rc;

    const MIB: u64 = 1 << 20;

    /// What a loop came to: all that the allocator and the book say, and how much was walked.
    fn read(tape: &Tape) -> ([u64; 5], ByLine, u64) {
        let peak = tape.peak();
        let figures =
            tape.read(|a| [peak.allocated, peak.event, a.reserved_peak(), a.inactive_split_peak(), a.allocated()]);
        (figures, peak.by_line, tape.operations())
    }

    /// A loop that keeps so many rounds in flight, each of these sizes, with one temporary.
    fn pipeline(which: Microbatches, count: u64, depth: usize, sizes: &[u64]) -> ([u64; 5], ByLine, u64) {
        let tape = Tape::default();
        let flight: RefCell<VecDeque<Vec<Rc<Storage>>>> = RefCell::default();
        tape.rounds(count, which, Vec::new, || {
            let made = sizes.iter().map(|&bytes| tape.storage(Line::Activations, bytes, "kept")).collect();
            flight.borrow_mut().push_back(made);
            let _temporary = tape.storage(Line::ActivationGradients, 3 * MIB, "temporary");
            if flight.borrow().len() > depth {
                flight.borrow_mut().pop_front();
            }
        });
        read(&tape)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn what_is_left_out_changes_nothing(
            (count, depth) in (0..60u64, 0..6usize),
            sizes in proptest::collection::vec(1..30 * MIB, 0..8),
        ) {
            let (steady, all) = (Microbatches::Steady, Microbatches::All);
            let (short, whole) = (pipeline(steady, count, depth, &sizes), pipeline(all, count, depth, &sizes));
            prop_assert_eq!((short.0, short.1), (whole.0, whole.1));
        }
    }

    #[test]
    fn a_steady_loop_costs_the_same_however_long_it_is() {
        let walked = |count| pipeline(Microbatches::Steady, count, 3, &[5 * MIB, 700, 12 * MIB]).2;
        assert_eq!(walked(101), walked(1_000_001));
        assert!(walked(101) < 101 * 4);
    }

    #[test]
    fn a_loop_that_grows_is_walked_to_its_end() {
        let tape = Tape::default();
        let kept = RefCell::new(Vec::new());
        tape.rounds(50, Microbatches::Steady, Vec::new, || {
            kept.borrow_mut().push(tape.storage(Line::Activations, MIB, "kept"));
        });
        assert_eq!((tape.operations(), tape.peak().allocated), (50, 50 * MIB));
    }

    #[test]
    fn what_an_engine_decides_by_is_part_of_the_proof() {
        let tape = Tape::default();
        let round = Cell::new(0);
        let until = || vec![u64::from(round.get() < 20) * round.get()];
        tape.rounds(40, Microbatches::Steady, until, || {
            round.set(round.get() + 1);
            tape.storage(Line::Activations, if round.get() == 20 { 9 * MIB } else { MIB }, "temporary");
        });
        assert_eq!(tape.peak().allocated, 9 * MIB);
        assert!(tape.operations() < 40);
    }
}
