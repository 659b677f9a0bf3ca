//! What a program asks of the allocator in one round of a loop, without the program.
//!
//! A program never sees where its storages lie, so that what it asks for is decided by what it holds and
//! by its engine alone. Once as many rounds in a row as its storages live asked for the same, with the
//! engine the same between them, everything it holds was made by such rounds, and the next asks for the
//! same again. Blocks may still wander: those rounds are played to the allocator, and that is all that is
//! left of them.

use super::storage::{Book, Entry};
use crate::allocator::{BlockId, Stream};
use crate::line::Line;
use std::collections::VecDeque;

/// The place of a storage's block in the book.
pub(super) type Slot = usize;

/// A storage that is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Take {
    pub bytes: u64,
    pub entry: Entry,
    pub stream: Stream,
    /// The part of the step it is made in.
    pub part: Option<usize>,
}

/// Which storage: made so many rounds ago, as which of its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Made {
    ago: usize,
    place: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Taken(Take),
    Given(Made),
    Booked(Made, Line),
}

/// What a program asked for in one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    steps: Vec<Step>,
    /// Storages it made.
    count: usize,
    /// Whether it touched something from before the loop, or made what is booked on several lines.
    is_odd: bool,
}

impl Script {
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Rounds that its storages live, if each of them is given back in a round like this; none if one is
    /// not, because such a loop leaves more behind with every round.
    pub fn lives(&self) -> Option<usize> {
        let mut is_given = vec![false; self.count];
        let mut longest = 0;
        for step in &self.steps {
            let Step::Given(made) = step else { continue };
            // A place that this round has not is one of another kind of round.
            *is_given.get_mut(made.place)? = true;
            longest = longest.max(made.ago);
        }
        let is_whole = !self.is_odd && is_given.iter().all(|is_given| *is_given);
        is_whole.then_some(longest)
    }
}

/// Writes rounds down.
#[derive(Default)]
pub(super) struct Recorder {
    round: usize,
    script: Script,
    /// Round and place in which the storage of each slot was made; none before the loop.
    born: Vec<Option<(usize, usize)>>,
    /// Slots by place, of this round and of those that ended.
    latest: Vec<Slot>,
    slots: Vec<Vec<Slot>>,
}

impl Recorder {
    pub fn taken(&mut self, slot: Slot, take: Take, is_shared: bool) {
        if slot >= self.born.len() {
            self.born.resize(slot + 1, None);
        }
        self.born[slot] = Some((self.round, self.script.count));
        self.latest.push(slot);
        self.script.steps.push(Step::Taken(take));
        self.script.count += 1;
        self.script.is_odd |= is_shared;
    }

    pub fn given(&mut self, slot: Slot) {
        match self.made(slot) {
            Some(made) => self.script.steps.push(Step::Given(made)),
            None => self.script.is_odd = true,
        }
        self.born.get_mut(slot).into_iter().for_each(|born| *born = None);
    }

    pub fn booked(&mut self, slot: Slot, line: Line) {
        match self.made(slot) {
            Some(made) => self.script.steps.push(Step::Booked(made, line)),
            None => self.script.is_odd = true,
        }
    }

    fn made(&self, slot: Slot) -> Option<Made> {
        let (round, place) = (*self.born.get(slot)?)?;
        Some(Made { ago: self.round - round, place })
    }

    /// Ends a round.
    pub fn end_of_round(&mut self) -> Script {
        self.round += 1;
        // The next round does about as much.
        let (steps, slots) = (Vec::with_capacity(self.script.len()), Vec::with_capacity(self.latest.len()));
        self.slots.push(std::mem::replace(&mut self.latest, slots));
        std::mem::replace(&mut self.script, Script { steps, ..Script::default() })
    }
}

/// A program that is played.
pub(super) struct Player {
    script: Script,
    /// Bytes asked for by place.
    bytes: Vec<u64>,
    /// Blocks by place of the last rounds, the latest first.
    blocks: VecDeque<Vec<Option<BlockId>>>,
    /// The program's own storages of the rounds before it was left, in the same order.
    slots: Vec<Vec<Slot>>,
}

impl Player {
    /// Goes on where the program was left.
    pub fn new(script: Script, recorder: &Recorder, lives: usize, book: &Book) -> Player {
        let slots: Vec<Vec<Slot>> = recorder.slots.iter().rev().take(lives + 1).cloned().collect();
        let of_round = |(ago, slots): (usize, &Vec<Slot>)| {
            let round = recorder.round - ago - 1;
            // A slot may be nobody's or another storage's by now: then this one was given back.
            let is_alive = |place, slot: Slot| recorder.born[slot] == Some((round, place));
            let block = |(place, &slot): (usize, &Slot)| is_alive(place, slot).then(|| book.slots[slot]);
            slots.iter().enumerate().map(block).collect()
        };
        let blocks = slots.iter().enumerate().map(of_round).collect();
        let taken = script.steps.iter().filter_map(|step| match step {
            Step::Taken(take) => Some(take.bytes),
            _ => None,
        });
        Player { bytes: taken.collect(), script, blocks, slots }
    }

    /// Plays one round.
    pub fn play(&mut self, book: &mut Book) {
        let mut latest = self.blocks.pop_back().unwrap_or_default();
        latest.clear();
        self.blocks.push_front(latest);
        let stream = book.allocator.stream();
        for step in &self.script.steps {
            match step {
                Step::Taken(take) => {
                    let block = book.take_again(take);
                    self.blocks[0].push(block);
                }
                Step::Given(made) => {
                    let block = self.blocks[made.ago][made.place].take();
                    let bytes = self.bytes[made.place];
                    block.into_iter().for_each(|block| book.free(block, bytes, false));
                }
                Step::Booked(made, line) => {
                    self.blocks[made.ago][made.place].iter().for_each(|block| book.rebook(*block, *line));
                }
            }
        }
        book.allocator.on_stream(stream);
    }

    /// Hands the program what it holds now: its storages of so many rounds ago are where those of so
    /// many rounds ago lie.
    pub fn leave(self, book: &mut Book) {
        for (slots, blocks) in self.slots.iter().zip(self.blocks) {
            for (slot, block) in slots.iter().zip(blocks) {
                block.into_iter().for_each(|block| book.slots[*slot] = block);
            }
        }
    }
}
