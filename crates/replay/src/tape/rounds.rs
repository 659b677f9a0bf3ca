//! Loops whose rounds repeat themselves, such as the microbatches of a step: what has been seen twice
//! is not walked again.
//!
//! A round is left out only on proof. Two spans of rounds, one right behind the other, must have made
//! the same changes at the same addresses, and the free blocks, the book and what the engine decides by
//! must be the same before, between and behind them. Then the next span starts where those did and ends
//! where they did: it reaches no point that they did not reach, and every peak has been seen. Blocks may
//! wander for long before that; until then rounds are played to the allocator ([`super::script`]) once
//! their program is known. Where host and device have clocks nothing is left out, because times never come
//! back.

use super::quick::Quick;
use super::script::{Player, Recorder, Script};
use super::storage::{Book, Entry, Tape};
use crate::allocator::FreeBlocks;
use crate::line::{ByLine, Line, Origin};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// Which microbatches of a step are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Microbatches {
    /// Until the steady state repeats itself, and those that drain it.
    Steady,
    /// All of them.
    All,
}

/// The most that is kept of rounds to compare with, in changes and free blocks, some 60 MB: the latest. A
/// loop whose spans do not fit in twice is walked to its end.
const KEPT: usize = 1 << 20;

/// A change of the book, as the allocator made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub address: u64,
    pub bytes: u64,
    pub what: What,
}

/// Where something changed nearly always tells changes apart.
impl Hash for Change {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.address);
        state.write_u64(self.bytes);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// What its program asked for, until that is known to repeat itself.
    script: Script,
    /// Hashes of the first two, which differ where they do, nearly always.
    hashes: [u64; 2],
    /// Allocations so far.
    events: u64,
}

impl Round {
    fn size(&self) -> usize {
        self.changes.len() + self.script.len() + self.standing.free.len() + self.standing.engine.len()
    }

    fn is_like(&self, other: &Round) -> bool {
        self.hashes == other.hashes && self.standing == other.standing && self.changes == other.changes
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = Quick::default();
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

/// What the next rounds ask for, and how many rounds their storages live, if the last ones prove it.
fn script(rounds: &[Round]) -> Option<(&Script, usize)> {
    let last = rounds.last()?;
    let lives = last.script.lives()?;
    // All that is held was made by rounds like the last.
    let first = rounds.len().checked_sub(lives + 3)?;
    let is_alike = |round: &Round| {
        let (standing, last) = (&round.standing, &last.standing);
        standing.engine == last.engine && standing.origin == last.origin && standing.free.stream() == last.free.stream()
    };
    let repeats = rounds[first + 1..].iter().all(|round| round.script == last.script);
    (repeats && rounds[first..].iter().all(is_alike)).then_some((&last.script, lives))
}

impl Tape {
    /// Runs `round` so many times, or until the tape is above its ceiling, leaving out what is proven to change nothing. `engine` gives what is
    /// decided by and stands on no tape; counters that only grow belong into it relative to now.
    pub fn rounds(&self, count: u64, which: Microbatches, engine: impl Fn() -> Vec<u64>, mut round: impl FnMut()) {
        let mut left = count;
        // Two spans behind a first round are the least that prove anything.
        if which == Microbatches::Steady && count > 3 && self.book().can_repeat() {
            self.book().changes = Some(Vec::new());
            self.book().recorder = Some(Recorder::default());
            let (mut seen, mut kept): (VecDeque<Round>, usize) = (VecDeque::new(), 0);
            let mut player: Option<Player> = None;
            while left > 0 && !self.is_above() {
                match &mut player {
                    Some(player) => player.play(&mut self.book()),
                    None => round(),
                }
                left -= 1;
                let last = self.end_of_round(engine());
                kept += last.size();
                seen.push_back(last);
                while let Some(oldest) = seen.front().filter(|_| kept > KEPT) {
                    kept -= oldest.size();
                    seen.pop_front();
                }
                let seen = seen.make_contiguous();
                if let Some(span) = span(seen) {
                    let spans = left / span as u64;
                    let [before, now] = [seen.len() - 1 - span, seen.len() - 1].map(|at| seen[at].events);
                    self.book().leave_out(spans * (now - before));
                    left -= spans * span as u64;
                    break;
                }
                if player.is_none() {
                    player = script(seen).and_then(|(script, lives)| self.book().player(script, lives));
                }
            }
            self.book().stop_looking();
            if let Some(mut player) = player {
                if !self.is_above() {
                    (0..left).for_each(|_| player.play(&mut self.book()));
                }
                player.leave(&mut self.book());
                left = 0;
            }
        }
        for _ in 0..left {
            if self.is_above() {
                return;
            }
            round();
        }
    }

    fn end_of_round(&self, engine: Vec<u64>) -> Round {
        let origin = self.origin();
        let mut book = self.book();
        let changes = book.changes.take().unwrap_or_default();
        // The next round does about as much.
        book.changes = Some(Vec::with_capacity(changes.len()));
        let script = book.recorder.as_mut().map(Recorder::end_of_round).unwrap_or_default();
        let standing = book.standing(origin, engine);
        let hashes = [hash(&standing), hash(&changes)];
        Round { standing, changes, script, hashes, events: book.events }
    }
}

impl Book {
    fn can_repeat(&self) -> bool {
        self.clock.is_none()
    }

    fn standing(&self, origin: Origin, engine: Vec<u64>) -> Standing {
        Standing { free: self.allocator.free_blocks(), live: self.live, origin, engine }
    }

    /// A player that goes on where the program is; nothing is written down any more.
    fn player(&mut self, script: &Script, lives: usize) -> Option<Player> {
        let recorder = self.recorder.take()?;
        Some(Player::new(script.clone(), &recorder, lives, self))
    }

    fn stop_looking(&mut self) {
        (self.changes, self.recorder) = (None, None);
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
    use std::rc::Rc;

    const MIB: u64 = 1 << 20;

    /// What a loop came to: all that the allocator and the book say, and how much was walked.
    fn read(tape: &Tape) -> ([u64; 5], ByLine, u64) {
        let peak = tape.peak();
        let figures =
            tape.read(|a| [peak.allocated, peak.event, a.reserved_peak(), a.inactive_split_peak(), a.allocated()]);
        (figures, peak.by_line, tape.operations())
    }

    /// A loop that keeps so many rounds in flight, each of these sizes, with one temporary, and what
    /// drains it.
    fn pipeline(which: Microbatches, count: u64, depth: usize, sizes: &[u64]) -> ([u64; 5], ByLine, u64, String) {
        let tape = Tape::default();
        let flight: RefCell<VecDeque<Vec<Rc<Storage>>>> = RefCell::default();
        let last = RefCell::new(None);
        let run = || {
            let made: Vec<_> = sizes.iter().map(|&bytes| tape.storage(Line::Activations, bytes, "kept")).collect();
            // Every third outlives its round by one, on another line.
            made.iter().step_by(3).for_each(|storage| storage.onto(Line::Workspaces));
            let late: Vec<_> = made.iter().step_by(3).cloned().collect();
            flight.borrow_mut().push_back(made);
            let _temporary = tape.storage(Line::ActivationGradients, 3 * MIB, "temporary");
            if flight.borrow().len() > depth {
                flight.borrow_mut().pop_front();
            }
            last.replace(Some(late));
        };
        tape.rounds(count, which, Vec::new, run);
        while flight.borrow_mut().pop_front().is_some() {
            drop(tape.storage(Line::ActivationGradients, 5 * MIB, "temporary"));
        }
        let (figures, by_line, walked) = read(&tape);
        let held = format!("{:?} {:?}", tape.holders(), tape.live());
        (figures, by_line, walked, held)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn what_is_left_out_changes_nothing(
            (count, depth) in (0..160u64, 0..6usize),
            sizes in proptest::collection::vec(prop_oneof![1..30 * MIB, 1..MIB, 1..8192u64], 0..8),
        ) {
            let (steady, all) = (Microbatches::Steady, Microbatches::All);
            let (short, whole) = (pipeline(steady, count, depth, &sizes), pipeline(all, count, depth, &sizes));
            prop_assert_eq!((short.0, short.1, short.3), (whole.0, whole.1, whole.3));
            // Rounds that blocks wander in are played.
            prop_assert!(short.2 <= (sizes.len() as u64 + 1) * (3 * depth as u64 + 8) + depth as u64, "{}", short.2);
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
