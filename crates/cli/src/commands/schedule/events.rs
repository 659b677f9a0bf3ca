//! The slices of a step as events that a reader can use: passes, waits, and below each pass what it communicates
//! and computes again. Bounded: of a long step the first and last passes of each stage.

use case::Case;
use cost::trace::{Slice, Trace, Track, What};
use layout::order::{Action, Block, Pass};
use serde::Serialize;

/// Passes, waits and sends that are answered at most.
const MOST_PASSES: usize = 3000;

/// What stands below passes, at most.
const MOST_BELOW: usize = 3000;

/// One run of time on a stage.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    pub stage: u32,
    /// `schedule`, an axis, `compute`, `host` or `sends`.
    pub track: &'static str,
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microbatch: Option<u32>,
    /// Of the backward that overlaps a forward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backward_microbatch: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u32>,
    /// Seconds from the start of the step.
    pub start: f64,
    pub end: f64,
    pub what: String,
    /// Whether compute hides it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

/// What a step consists of.
pub struct Events {
    pub all: Vec<Event>,
    /// Passes that stand inside `folded` events.
    pub folded: u64,
    /// Whether some passes are without what stands below them.
    pub is_bare: bool,
}

impl Events {
    /// Those of a simulated step.
    pub fn of(case: &Case, trace: &Trace) -> Events {
        let has_chunks = case.stages.chunks.len() > trace.stages.len();
        let mut slices: Vec<&Slice> = trace.slices.iter().collect();
        slices.sort_by(|a, b| (a.stage, a.track).cmp(&(b.stage, b.track)).then(a.start.total_cmp(&b.start)));
        let (mut passes, mut below): (Vec<Event>, Vec<Event>) = (Vec::new(), Vec::new());
        let mut folded = 0;
        for slice in slices {
            let Some(event) = event(slice, has_chunks) else { continue };
            if let What::Folded(of) = slice.what {
                folded += u64::from(of.blocks);
            }
            match slice.track {
                Track::Schedule => passes.push(event),
                _ => push_merged(&mut below, event),
            }
        }
        let stages = trace.stages.len().max(1);
        let mut all = Vec::new();
        let mut is_bare = trace.detail != cost::trace::Detail::Whole;
        for stage in 0..stages as u32 {
            let of = |events: &[Event]| events.iter().filter(|e| e.stage == stage).cloned().collect::<Vec<Event>>();
            let (own, mut under) = (of(&passes), of(&below));
            let (own, more) = fold(own, MOST_PASSES / stages);
            folded += more;
            under.sort_by(|a, b| a.start.total_cmp(&b.start));
            let most = MOST_BELOW / stages;
            if under.len() > most {
                is_bare = true;
                under = [&under[..most / 2], &under[under.len() - most / 2..]].concat();
            }
            all.extend(own);
            all.extend(under);
        }
        Events { all, folded, is_bare }
    }

    /// The rows there are, each once, those of the schedule first.
    pub fn tracks(&self) -> Vec<&'static str> {
        let known = ["schedule", "compute", "host", "tp", "cp", "ep", "dp", "pp", "sends"];
        known.into_iter().filter(|track| self.all.iter().any(|event| event.track == *track)).collect()
    }

    /// What is not answered, in words; nothing where all is.
    pub fn left_out(&self) -> Option<String> {
        let folded = (self.folded > 0).then(|| {
            format!("{} passes between the first and last of each stage are folded into one event", self.folded)
        });
        let bare = self.is_bare.then(|| "collectives stand below the first and last passes only".to_string());
        let said: Vec<String> = folded.into_iter().chain(bare).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }
}

/// Adds an event, or makes the one before it longer where both are one to a reader.
fn push_merged(events: &mut Vec<Event>, event: Event) {
    if let Some(last) = events.last_mut() {
        let is_same = (last.stage, last.track, last.kind, last.hidden, &last.what)
            == (event.stage, event.track, event.kind, event.hidden, &event.what);
        if is_same && (event.start - last.end).abs() < 1e-9 {
            last.end = event.end;
            return;
        }
    }
    events.push(event);
}

/// The first and last of a stage's events, and one for all between them; how many passes that one stands for.
fn fold(events: Vec<Event>, most: usize) -> (Vec<Event>, u64) {
    if events.len() <= most.max(3) {
        return (events, 0);
    }
    let half = (most.max(3) - 1) / 2;
    let between = &events[half..events.len() - half];
    let is_pass = |event: &&Event| PASSES.contains(&event.kind);
    let passes = between.iter().filter(is_pass).count() as u64;
    let (Some(first), Some(last)) = (between.first(), between.last()) else { return (events, 0) };
    let waits: f64 = between.iter().filter(|event| event.kind == "bubble").map(|event| event.end - event.start).sum();
    let folded = Event {
        kind: "folded",
        microbatch: None,
        backward_microbatch: None,
        chunk: None,
        end: last.end,
        what: format!("{passes} passes; waits of {:.1} ms among them", 1e3 * waits),
        ..first.clone()
    };
    let mut out = events[..half].to_vec();
    out.push(folded);
    out.extend_from_slice(&events[events.len() - half..]);
    (out, passes)
}

/// Kinds of events that are passes.
pub const PASSES: [&str; 5] = ["forward", "backward", "backward-input", "backward-weight", "overlapped"];

/// What a slice is to a reader; parts of compute are the pass they stand in.
fn event(slice: &Slice, has_chunks: bool) -> Option<Event> {
    let track = match slice.track {
        Track::Schedule => "schedule",
        Track::Compute => "compute",
        Track::Host => "host",
        Track::Axis(axis) => axis,
        Track::Sends(_) => "sends",
    };
    let of = |kind: &'static str, what: String| Event {
        stage: slice.stage,
        track,
        kind,
        microbatch: None,
        backward_microbatch: None,
        chunk: None,
        start: nanoseconds(slice.start),
        end: nanoseconds(slice.start + slice.seconds),
        what,
        hidden: false,
    };
    let collective = |name: &str| of("collective", name.trim_end_matches(" exposed").to_string());
    Some(match slice.what {
        What::Block(Block::Alone(action)) => {
            let chunk = has_chunks.then_some(action.chunk);
            Event { microbatch: Some(action.microbatch), chunk, ..of(kind_of(action), words(action, has_chunks)) }
        }
        What::Block(Block::Overlapped { forward, backward }) => Event {
            microbatch: Some(forward.microbatch),
            backward_microbatch: Some(backward.microbatch),
            chunk: has_chunks.then_some(forward.chunk),
            ..of("overlapped", format!("{} beside {}", words(forward, has_chunks), words(backward, has_chunks)))
        },
        What::Wait(Some(stage)) => of("bubble", format!("waits for stage {stage}")),
        What::Wait(None) => of("bubble", "waits for the last stage to end".to_string()),
        What::WaitForUpdate => of("bubble", "waits for another stage's update".to_string()),
        What::Sending => of("send", "sends".to_string()),
        What::Folded(folded) => of("folded", format!("{} passes", folded.blocks)),
        What::Again(_) => of("recompute", "computes again".to_string()),
        What::Part(part) if matches!(slice.track, Track::Axis(_)) => collective(part.name()),
        What::Part(part) if slice.track == Track::Host => of("host", part.name().to_string()),
        What::Part(_) => return None,
        What::Hidden(part) => Event { hidden: true, ..collective(part.name()) },
        What::Transfer { action, to } => of("transfer", format!("{} to stage {to}", words(action, has_chunks))),
        What::Line("reserve") => of("reserve", "data, logging, a step's own host time".to_string()),
        What::Line("slowest rank") => return None,
        What::Line(line) => match slice.track {
            Track::Axis(_) => collective(line),
            Track::Host => of("host", line.to_string()),
            _ => of("optimizer", line.to_string()),
        },
        What::HiddenLine(line) => Event { hidden: true, ..collective(line) },
        What::Update => of("update", "gradients, optimizer, weights".to_string()),
    })
}

/// No finer than anybody measures, so that texts stay short.
fn nanoseconds(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e9
}

fn kind_of(action: Action) -> &'static str {
    match action.pass {
        Pass::Forward => "forward",
        Pass::Backward => "backward",
        Pass::BackwardInput => "backward-input",
        Pass::BackwardWeight => "backward-weight",
    }
}

fn words(action: Action, has_chunks: bool) -> String {
    let chunk = if has_chunks { format!(" of chunk {}", action.chunk) } else { String::new() };
    format!(
        "{} {}{chunk}",
        kind_of(action)
            .replace("backward-", "backward of ")
            .replace("of input", "of inputs")
            .replace("of weight", "of weights"),
        action.microbatch
    )
}
