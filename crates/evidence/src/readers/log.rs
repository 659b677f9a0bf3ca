//! What is gathered while a log is read: figures with their source and line, starts of the job, and what was not read.

use super::text::Line;
use crate::{Event, EventKind, Evidence, Format, Memory, MemoryKind, Source, Step, Unread};
use std::collections::{BTreeMap, HashMap};

/// Events of one name and attempt that are kept; the rest is counted.
const KEPT: u64 = 16;

/// Characters of a line that are kept with an event.
const DETAIL: usize = 400;

/// A number and the significant digits it was printed with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub value: f64,
    pub digits: Option<u8>,
}

/// Bytes, and how far they may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounded {
    pub bytes: u64,
    pub resolution: u64,
}

/// One file's evidence in the making.
pub struct Log {
    pub evidence: Evidence,
    pub format: Format,
    digits: Vec<(&'static str, u8)>,
    unread: u64,
    first_unread: Option<Unread>,
    attempt: u64,
    /// Steps of this attempt.
    steps: u64,
    /// Whether its start was said, and whether by the engine itself rather than its launcher.
    is_start_said: bool,
    is_start_the_engines: bool,
    /// Whose lines steps are taken from.
    stream: Option<u64>,
    last: HashMap<(Option<u64>, MemoryKind), u64>,
    repeated: BTreeMap<(u64, String), (u64, Option<Event>)>,
    /// Whether steps say themselves which are warm-up.
    pub has_warm_up: bool,
}

impl Log {
    pub fn new(format: Format) -> Log {
        Log {
            evidence: Evidence::default(),
            format,
            digits: Vec::new(),
            unread: 0,
            first_unread: None,
            attempt: 0,
            steps: 0,
            is_start_said: false,
            is_start_the_engines: false,
            stream: None,
            last: HashMap::new(),
            repeated: BTreeMap::new(),
            has_warm_up: false,
        }
    }

    /// The figure's value, and the fewest digits that any of its name had.
    pub fn value(&mut self, name: &'static str, figure: Figure) -> Option<f64> {
        if let Some(digits) = figure.digits {
            match self.digits.iter_mut().find(|(other, _)| *other == name) {
                Some((_, least)) => *least = digits.min(*least),
                None => self.digits.push((name, digits)),
            }
        }
        Some(figure.value)
    }

    /// Counts a line that looks like the format's and cannot be read.
    pub fn unread(&mut self, line: &Line, why: &str) {
        self.unread += 1;
        if self.first_unread.is_none() {
            let text = diag::quote::bytes(line.text, 200);
            self.first_unread = Some(Unread { line: line.number, text, why: why.to_string() });
        }
    }

    /// Counts lines that were too long to be looked at.
    pub fn too_long(&mut self, count: u64, first: u64) {
        self.unread += count;
        if count > 0 && self.first_unread.is_none() {
            let why = format!("longer than {} bytes", super::stream::LONGEST_LINE);
            self.first_unread = Some(Unread { line: first, text: String::new(), why });
        }
    }

    /// Whether anything of a run was read.
    pub fn is_empty(&self) -> bool {
        let e = &self.evidence;
        let no_figures = e.steps.is_empty() && e.memory.is_empty() && e.kernels.is_empty() && e.tensors.is_empty();
        no_figures && e.events.is_empty() && e.timers.is_empty() && e.benches.is_empty() && e.arguments.is_empty()
    }

    /// The last step of this attempt.
    pub fn last_step(&self) -> Option<u64> {
        if self.steps == 0 { None } else { self.evidence.steps.last().map(|step| step.number) }
    }

    /// The processes were started again.
    pub fn restarted(&mut self, line: &Line, at: Option<f64>, detail: &str) {
        self.attempt += 1;
        (self.steps, self.is_start_the_engines) = (0, false);
        self.push_start(line, at, detail);
    }

    /// A line that an engine prints once, at its start.
    pub fn started(&mut self, line: &Line, at: Option<f64>, detail: &str) {
        if self.steps > 0 || self.is_start_the_engines {
            self.restarted(line, at, detail);
        } else if !self.is_start_said {
            self.push_start(line, at, detail);
        }
        self.is_start_the_engines = true;
    }

    fn push_start(&mut self, line: &Line, at: Option<f64>, detail: &str) {
        self.is_start_said = true;
        self.push(Event { at, ..self.event(EventKind::Start, line, detail.as_bytes()) });
    }

    /// Says which attempt a source is of, where it counts itself.
    pub fn of_attempt(&mut self, attempt: u64) {
        self.attempt = attempt;
    }

    /// Takes a step. One that another process printed as well adds what the first did not know; a number at or below
    /// the last, from the same process, is a new start.
    pub fn step(&mut self, line: &Line, step: Step) {
        let step = finite(Step { attempt: self.attempt, line: line.number, ..step });
        let Some(last) = self.last_step() else { return self.push_step(line, step) };
        let is_other = self.stream.is_some_and(|stream| stream != line.stream);
        if is_other || step.number == last && line.stream == 0 {
            return self.merge(step);
        }
        if step.number <= last {
            let detail = format!("step {} after step {last}", step.number);
            self.restarted(line, step.at, &detail);
        }
        self.push_step(line, Step { attempt: self.attempt, ..step });
    }

    fn push_step(&mut self, line: &Line, step: Step) {
        self.stream.get_or_insert(line.stream);
        self.steps += 1;
        self.evidence.steps.push(step);
    }

    /// The step of that number, if it is the last one, or a new one: for engines that print a step on several lines.
    pub fn step_of(&mut self, line: &Line, number: u64) -> &mut Step {
        if self.last_step() != Some(number) {
            self.step(line, Step { number, ..Step::default() });
            if self.last_step() != Some(number) {
                // Another process is ahead or behind; its line stands for itself.
                self.push_step(line, Step { number, attempt: self.attempt, line: line.number, ..Step::default() });
            }
        }
        self.evidence.steps.last_mut().expect("a step was just there")
    }

    fn merge(&mut self, other: Step) {
        let mine = self.evidence.steps.iter_mut().rev().take(64).find(|s| s.number == other.number);
        let Some(mine) = mine else { return };
        let fill = |mine: &mut Option<f64>, other: Option<f64>| *mine = mine.or(other);
        fill(&mut mine.loss, other.loss);
        fill(&mut mine.seconds, other.seconds);
        fill(&mut mine.grad_norm, other.grad_norm);
        fill(&mut mine.tokens_per_second, other.tokens_per_second);
        fill(&mut mine.tflops, other.tflops);
        mine.skipped |= other.skipped;
        mine.nan |= other.nan;
    }

    /// Takes a figure of memory; one of a step that is as it was at the last is not kept again.
    pub fn memory(&mut self, line: &Line, rank: Option<u64>, kind: MemoryKind, held: Rounded, at: Point) {
        let before = self.last.insert((rank, kind), held.bytes);
        if at.step.is_none() || before != Some(held.bytes) {
            self.memory_as_it_is(line, rank, kind, held, at);
        }
    }

    /// Takes a figure of memory, whatever stood before it.
    pub fn memory_as_it_is(&mut self, line: &Line, rank: Option<u64>, kind: MemoryKind, held: Rounded, at: Point) {
        let (Point { phase, step }, Rounded { bytes, resolution }) = (at, held);
        self.evidence.memory.push(Memory { rank, kind, bytes, resolution, phase, step, source: 0, line: line.number });
    }

    /// An event of this line, in its words.
    pub fn event(&self, kind: EventKind, line: &Line, words: &[u8]) -> Event {
        Event {
            kind,
            attempt: self.attempt,
            at: None,
            seconds: None,
            step: None,
            rank: line.rank,
            detail: diag::quote::bytes(words.trim_ascii(), DETAIL),
            source: 0,
            line: line.number,
        }
    }

    pub fn push(&mut self, mut event: Event) {
        event.at = event.at.filter(|at| at.is_finite());
        event.seconds = event.seconds.filter(|seconds| seconds.is_finite());
        self.evidence.events.push(event);
    }

    /// Keeps the first events of a name; how many came behind them is said at the end.
    pub fn push_repeated(&mut self, name: &str, event: Event) {
        let key = (self.attempt, name.to_string());
        let (count, over) = self.repeated.entry(key).or_insert((0, None));
        *count += 1;
        if *count > KEPT {
            *over = Some(event);
        } else {
            self.push(event);
        }
    }

    /// The last event of a kind in this attempt.
    pub fn last_event(&mut self, kind: EventKind) -> Option<&mut Event> {
        let attempt = self.attempt;
        self.evidence.events.iter_mut().rev().find(|event| event.kind == kind && event.attempt == attempt)
    }

    /// The evidence, with its source.
    pub fn finish(mut self, path: &str, bytes: u64, sha256: String) -> Evidence {
        for ((_, name), (count, over)) in std::mem::take(&mut self.repeated) {
            if let Some(last) = over {
                let detail = format!("{name}: {} more, the last of them: {}", count - KEPT, last.detail);
                self.push(Event { detail, ..last });
            }
        }
        let digits = self.digits.into_iter().map(|(name, digits)| (name.to_string(), digits)).collect();
        self.evidence.sources.push(Source {
            format: self.format,
            path: path.to_string(),
            bytes,
            sha256,
            digits,
            unread: self.unread,
            first_unread: self.first_unread,
        });
        if !self.has_warm_up {
            self.evidence.mark_warm_up();
        }
        self.evidence
    }
}

/// Where in a run a figure was taken.
#[derive(Default)]
pub struct Point {
    pub phase: Option<String>,
    pub step: Option<u64>,
}

/// A loss or a gradient that is no number says so of its step; no figure is one that is not.
fn finite(mut step: Step) -> Step {
    let is_no_number = |figure: Option<f64>| figure.is_some_and(|value| !value.is_finite());
    step.nan |= is_no_number(step.loss) || is_no_number(step.grad_norm);
    step.nan |= step.others.iter().any(|(name, value)| name.contains("loss") && !value.is_finite());
    for figure in [
        &mut step.loss,
        &mut step.grad_norm,
        &mut step.seconds,
        &mut step.tflops,
        &mut step.tokens_per_second,
        &mut step.device_tokens_per_second,
        &mut step.learning_rate,
        &mut step.joules,
        &mut step.watts,
    ] {
        *figure = figure.filter(|value| value.is_finite());
    }
    step.others.retain(|_, value| value.is_finite());
    step
}
