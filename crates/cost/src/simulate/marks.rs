//! Where in a stage's order a chunk turns up first and last, as seconds of work: what the lower
//! bound knows of an order. Read off the loops, never off the unrolled order.

use super::Times;
use layout::Schedule;
use layout::order::{LONGEST_BODY, Pipeline, Slot, Verb};

/// An action of a chunk that stands out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// Work of the stage before it; for a last one, up to and with it.
    pub work: f64,
    /// What its block takes.
    pub takes: f64,
    /// Blocks of the stage before it; for a last one, up to and with it.
    pub blocks: u32,
}

/// The four of one chunk in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub first_forward: Mark,
    pub first_backward: Mark,
    pub last_forward: Mark,
    pub last_backward: Mark,
}

/// Work of a stage: in all, and of a round of its main loop.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub work: f64,
    pub round: f64,
}

/// Seconds a block takes, and keeps the stage with sending behind it.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    takes: f64,
    sends: f64,
}

impl Taken {
    fn all(self) -> f64 {
        self.takes + self.sends
    }
}

/// Writes the marks of all chunks of a stage, and says how much it works.
pub(super) fn of_stage(pipeline: &Pipeline, times: &Times, stage: u32, marks: &mut [Marks]) -> Work {
    match pipeline.schedule() {
        Schedule::GPipe | Schedule::OneF1b | Schedule::Interleaved => Rounds::new(pipeline, times, stage).mark(marks),
        Schedule::ZbH1 | Schedule::DualPipe | Schedule::DualPipeV => by_loops(pipeline, times, stage, marks),
    }
}

fn forward(pipeline: &Pipeline, times: &Times, chunk: u32) -> Taken {
    let sent = if chunk + 1 < pipeline.chunks() { times.transfer(pipeline, chunk) } else { 0.0 };
    Taken { takes: times.chunks[chunk as usize].forward, sends: times.serial * sent }
}

/// A backward that takes so long.
fn backward(pipeline: &Pipeline, times: &Times, chunk: u32, takes: f64) -> Taken {
    let sent = if chunk > 0 { times.transfer(pipeline, chunk - 1) } else { 0.0 };
    Taken { takes, sends: times.serial * sent }
}

/// Marks of a stage whose loops name each of its chunks by a slot.
fn by_loops(pipeline: &Pipeline, times: &Times, stage: u32, marks: &mut [Marks]) -> Work {
    let places = [0, 1].map(|slot| pipeline.slot(stage, slot));
    let lanes = places.map(|(direction, chunk)| (direction * pipeline.chunks() + chunk) as usize);
    let program = pipeline.program(stage);
    let mut blocks = Blocks { pipeline, times, chunks: [places[0].1, places[1].1], may_wait: [false; 2], waiting: 0 };
    let (mut seen, mut count, mut result) = ([[false; 2]; 2], 0, Work::default());
    for (index, this) in program.loops().iter().enumerate().filter(|(_, this)| this.times > 0) {
        let mut taken = [Taken::default(); LONGEST_BODY];
        this.body.iter().zip(&mut taken).for_each(|(&verb, taken)| *taken = blocks.take(verb));
        let round: f64 = taken.iter().map(|taken| taken.all()).sum();
        let before_last = f64::from(this.times - 1) * round;
        let blocks_before_last = (this.times - 1) * this.body.len() as u32;
        let mut within = result.work;
        for (&verb, Taken { takes, sends }) in this.body.iter().zip(taken) {
            for (way, slot) in slots(verb) {
                let [first, last] = marks[lanes[slot]].of(way);
                if !std::mem::replace(&mut seen[way as usize][slot], true) {
                    *first = Mark { work: within, takes, blocks: count };
                }
                let blocks = count + blocks_before_last + 1;
                *last = Mark { work: within + before_last + takes, takes, blocks };
            }
            within += takes + sends;
            count += 1;
        }
        count += blocks_before_last;
        result.work += before_last + round;
        if program.main() == Some(index) {
            result.round = round;
        }
    }
    result
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Forward,
    Backward,
}

impl Marks {
    /// First and last.
    fn of(&mut self, way: Way) -> [&mut Mark; 2] {
        match way {
            Way::Forward => [&mut self.first_forward, &mut self.last_forward],
            Way::Backward => [&mut self.first_backward, &mut self.last_backward],
        }
    }
}

/// The slots a verb runs, and which way.
fn slots(verb: Verb) -> impl Iterator<Item = (Way, Slot)> {
    let (ahead, back) = match verb {
        Verb::Forward(slot) => (Some(slot), None),
        Verb::Backward(slot) | Verb::Input(slot) => (None, Some(slot)),
        Verb::Weight => (None, None),
        Verb::Both { forward, backward } => (Some(forward), Some(backward)),
    };
    ahead.map(|slot| (Way::Forward, slot)).into_iter().chain(back.map(|slot| (Way::Backward, slot)))
}

/// What the verbs of a stage take, in order.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    pipeline: &'a Pipeline,
    times: &'a Times<'a>,
    chunks: [u32; 2],
    /// Slots that may have weight passes waiting, and how many wait.
    may_wait: [bool; 2],
    waiting: u32,
}

impl Blocks<'_> {
    fn take(&mut self, verb: Verb) -> Taken {
        let Blocks { pipeline, times, chunks, .. } = *self;
        let of = |slot: Slot| &times.chunks[chunks[slot] as usize];
        let back = |slot: Slot, takes: f64| backward(pipeline, times, chunks[slot], takes);
        match verb {
            Verb::Forward(slot) => forward(pipeline, times, chunks[slot]),
            Verb::Backward(slot) => back(slot, of(slot).backward()),
            Verb::Input(slot) => {
                (self.may_wait[slot], self.waiting) = (true, self.waiting + 1);
                back(slot, of(slot).backward_input)
            }
            Verb::Weight => Taken { takes: self.weight(), sends: 0.0 },
            Verb::Both { forward: ahead, backward: behind } => {
                let (a, b) = (forward(pipeline, times, chunks[ahead]), back(behind, of(behind).backward()));
                Taken { takes: times.overlapped * (a.takes + b.takes), sends: a.sends + b.sends }
            }
        }
    }

    /// A weight pass; where either slot's may be the oldest, no longer than the shorter.
    fn weight(&mut self) -> f64 {
        let takes = (0..2).filter(|&slot| self.may_wait[slot]);
        let takes = takes.map(|slot| self.times.chunks[self.chunks[slot] as usize].backward_weight);
        let takes = takes.fold(f64::INFINITY, f64::min);
        self.waiting -= 1;
        if self.waiting == 0 {
            self.may_wait = [false; 2];
        }
        takes
    }
}

/// A stage of one forward and one backward in turn, its chunks in rounds of as many microbatches
/// as there are stages.
struct Rounds<'a> {
    pipeline: &'a Pipeline,
    times: &'a Times<'a>,
    stage: u32,
    /// Chunks of the stage.
    held: u32,
    /// Microbatches of a chunk before the next chunk's turn.
    turn: u32,
    passes: u32,
    /// Forwards ahead of the first backward's pair.
    ahead: u32,
    /// All chunks once.
    forwards: f64,
    backwards: f64,
}

impl<'a> Rounds<'a> {
    fn new(pipeline: &'a Pipeline, times: &'a Times<'a>, stage: u32) -> Rounds<'a> {
        let held = pipeline.chunks() / pipeline.stages();
        let turn =
            if pipeline.schedule() == Schedule::Interleaved { pipeline.stages() } else { pipeline.microbatches() };
        let (passes, ahead) = (pipeline.microbatches() * held, pipeline.program(stage).loops()[0].times);
        let mut rounds = Rounds { pipeline, times, stage, held, turn, passes, ahead, forwards: 0.0, backwards: 0.0 };
        rounds.forwards = (0..held).map(|local| rounds.forward(local).all()).sum();
        rounds.backwards = (0..held).map(|local| rounds.backward(local).all()).sum();
        rounds
    }

    fn chunk(&self, local: u32) -> u32 {
        local * self.pipeline.stages() + self.stage
    }

    fn forward(&self, local: u32) -> Taken {
        forward(self.pipeline, self.times, self.chunk(local))
    }

    fn backward(&self, local: u32) -> Taken {
        let chunk = self.chunk(local);
        backward(self.pipeline, self.times, chunk, self.times.chunks[chunk as usize].backward())
    }

    /// Work of so many forwards and so many backwards from the start.
    fn work(&self, forwards: u32, backwards: u32) -> f64 {
        self.first(forwards, self.forwards, |turn| self.forward(turn).all())
            + self.first(backwards, self.backwards, |turn| self.backward(self.held - 1 - turn).all())
    }

    /// Work of the first so many passes of one kind.
    fn first(&self, passes: u32, all: f64, each: impl Fn(u32) -> f64) -> f64 {
        if self.held == 1 {
            return f64::from(passes) * all;
        }
        let round = self.turn * self.held;
        let (rounds, rest) = (passes / round, passes % round);
        let (turns, odd) = (rest / self.turn, rest % self.turn);
        let turn = f64::from(self.turn);
        let whole: f64 = (0..turns).map(|t| turn * each(t)).sum();
        let part = if odd > 0 { f64::from(odd) * each(turns) } else { 0.0 };
        f64::from(rounds) * turn * all + whole + part
    }

    /// Backwards that come before a forward, and forwards that come before a backward.
    fn backwards_before(&self, forward: u32) -> u32 {
        forward.saturating_sub(self.ahead)
    }

    fn forwards_before(&self, backward: u32) -> u32 {
        (self.ahead + backward + 1).min(self.passes)
    }

    fn mark(&self, marks: &mut [Marks]) -> Work {
        for local in 0..self.held {
            let (ahead, back) = (self.forward(local), self.backward(local));
            let (turns, turns_left) = (local * self.turn, (self.held - 1 - local) * self.turn);
            let (first, last) = (turns, self.passes - turns_left - 1);
            let (first_back, last_back) = (turns_left, self.passes - turns - 1);
            let forward_at = |k| (k, self.backwards_before(k));
            let backward_at = |k| (self.forwards_before(k), k);
            let before = |(f, b), Taken { takes, .. }| Mark { work: self.work(f, b), takes, blocks: f + b };
            let with = |(f, b), Taken { takes, .. }| Mark { work: self.work(f, b) + takes, takes, blocks: f + b + 1 };
            marks[self.chunk(local) as usize] = Marks {
                first_forward: before(forward_at(first), ahead),
                last_forward: with(forward_at(last), ahead),
                first_backward: before(backward_at(first_back), back),
                last_backward: with(backward_at(last_back), back),
            };
        }
        Work { work: self.work(self.passes, self.passes), round: self.forwards + self.backwards }
    }
}
