//! A step as a Gantt chart: a row a stage, time from left to right, and below each row what it communicates.

use crate::palette::{BLUE, Colour, FREE, GREEN, GREY, INK, LINE, ORANGE, PAPER, PURPLE, SKY, SOFT, VERMILION, YELLOW};
use crate::scale::{seconds, step, tick, ticks};
use crate::svg::{About, Anchor, Canvas, Font, width};
use crate::{Options, Undrawn};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What is drawn of an answer of `schedule`.
#[derive(Deserialize)]
pub struct Schedule {
    recipe: String,
    seconds: f64,
    schedule: String,
    microbatches: u64,
    stages: Vec<Stage>,
    left_out: Option<String>,
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Stage {
    stage: u64,
    busy: f64,
    idle: f64,
}

#[derive(Deserialize)]
struct Event {
    stage: u64,
    track: String,
    kind: String,
    microbatch: Option<u64>,
    start: f64,
    end: f64,
    what: String,
    #[serde(default)]
    hidden: bool,
}

/// A kind of event: its letter, its words, its colour, and the lines that tell it apart without colours.
struct Kind {
    name: &'static str,
    letter: &'static str,
    words: &'static str,
    colour: Colour,
    hatch: &'static str,
}

const KINDS: &[Kind] = &[
    Kind { name: "forward", letter: "F", words: "forward", colour: BLUE, hatch: "" },
    Kind { name: "backward", letter: "B", words: "backward", colour: ORANGE, hatch: "M0 6L6 0" },
    Kind { name: "backward-input", letter: "I", words: "backward of inputs", colour: ORANGE, hatch: "M0 6L6 0" },
    Kind { name: "backward-weight", letter: "W", words: "backward of weights", colour: GREEN, hatch: "M0 0L6 6" },
    Kind {
        name: "overlapped",
        letter: "X",
        words: "a forward beside a backward",
        colour: PURPLE,
        hatch: "M0 6L6 0M0 0L6 6",
    },
    Kind { name: "recompute", letter: "R", words: "computes again", colour: YELLOW, hatch: "M3 0V6" },
    Kind { name: "collective", letter: "C", words: "collective that shows", colour: VERMILION, hatch: "" },
    Kind { name: "send", letter: "", words: "sends", colour: VERMILION, hatch: "M0 3H6" },
    Kind { name: "update", letter: "U", words: "gradients, optimizer, weights", colour: SKY, hatch: "M0 3H6" },
    Kind { name: "folded", letter: "", words: "passes not drawn one by one", colour: GREY, hatch: "M0 6L6 0M0 0L6 6" },
    Kind { name: "reserve", letter: "", words: "data, logging", colour: GREY, hatch: "" },
];

/// Where rows stand.
struct Frame {
    left: f64,
    right: f64,
    seconds: f64,
}

impl Frame {
    fn x(&self, at: f64) -> f64 {
        self.left + (self.right - self.left) * (at / self.seconds).clamp(0.0, 1.0)
    }
}

/// Rows at most; of more stages, the first and last.
const MOST_ROWS: usize = 40;

/// How many times as wide as a screen a step is drawn at most.
const MOST_ZOOM: u64 = 16;

/// Runs of time that are narrower are not drawn: the row's ground shows through.
const LEAST: f64 = 0.4;

/// Draws it.
pub fn draw(answer: &Schedule, options: &Options) -> Result<String, Undrawn> {
    if !(answer.seconds.is_finite() && answer.seconds > 0.0) || answer.stages.is_empty() {
        return Err(Undrawn("a step of no time is not drawn".to_string()));
    }
    let mut canvas = Canvas::new(options);
    canvas.width *= options.zoom.map_or(1.0, |times| times.clamp(1, MOST_ZOOM) as f64);
    let title = format!(
        "{}: a step of {}, {} {}, {}",
        answer.recipe,
        seconds(answer.seconds),
        answer.microbatches,
        if answer.microbatches == 1 { "microbatch" } else { "microbatches" },
        answer.schedule
    );
    let idlest = answer.stages.iter().max_by(|a, b| a.idle.total_cmp(&b.idle));
    let said = idlest.map_or(String::new(), |stage| {
        let share = 100.0 * stage.idle / answer.seconds;
        format!("stage {} waits longest: {}, {share:.0}% of the step", stage.stage, seconds(stage.idle))
    });
    let soft = Font { fill: SOFT, ..Font::default() };
    let foot = canvas.heading(&title, &said);
    let left = if options.narrow { 30.0 } else { 70.0 };
    let frame = Frame { left, right: canvas.width - 14.0, seconds: answer.seconds };
    let fills: BTreeMap<&str, String> = KINDS
        .iter()
        .map(|kind| match kind.hatch {
            "" => (kind.name, kind.colour.fill.to_string()),
            path => (kind.name, canvas.hatch(kind.name, kind.colour.fill, "#00000070", path)),
        })
        .collect();
    let mut y = foot + 14.0;
    let rows = shown(answer);
    let tall = (640.0 / rows.len() as f64).clamp(12.0, 26.0);
    for (at, stage) in rows.iter().enumerate() {
        if at > 0 && rows[at - 1].stage + 1 < stage.stage {
            let words = format!("{} stages between are not shown", stage.stage - rows[at - 1].stage - 1);
            canvas.text(frame.left, y + 11.0, soft, &words);
            y += 18.0;
        }
        y = row(&mut canvas, answer, stage, &frame, [y, tall], &fills, options);
    }
    axis(&mut canvas, &frame, y);
    let mut end = legend(&mut canvas, answer, y + 30.0, &fills);
    if let Some(left_out) = &answer.left_out {
        end = canvas.paragraph(12.0, end + 10.0, soft, left_out, canvas.width - 24.0) + 8.0;
    }
    Ok(canvas.finish(end + 4.0, &title, &said))
}

fn shown(answer: &Schedule) -> Vec<&Stage> {
    let all = answer.stages.len();
    let is_shown = |at: usize| all <= MOST_ROWS || at < MOST_ROWS / 2 || at >= all - MOST_ROWS / 2;
    answer.stages.iter().enumerate().filter(|(at, _)| is_shown(*at)).map(|(_, stage)| stage).collect()
}

/// One stage and what it communicates; gives where the next begins.
fn row(
    canvas: &mut Canvas,
    answer: &Schedule,
    stage: &Stage,
    frame: &Frame,
    [y, tall]: [f64; 2],
    fills: &BTreeMap<&str, String>,
    options: &Options,
) -> f64 {
    let name = if options.narrow { stage.stage.to_string() } else { format!("stage {}", stage.stage) };
    canvas.text(
        12.0,
        y + tall / 2.0 + 4.0,
        Font { size: if tall < 14.0 { 10.5 } else { 12.0 }, ..Font::default() },
        &name,
    );
    let about = About::tip([
        format!("stage {}", stage.stage),
        format!("computes {}, waits {}", seconds(stage.busy), seconds(stage.idle)),
    ])
    .data("stage", stage.stage);
    canvas.rect([frame.left, y, frame.right - frame.left, tall], FREE, &about);
    let strip = if tall < 16.0 { 4.0 } else { 6.0 };
    let mut drawn = frame.left;
    for event in answer.events.iter().filter(|event| event.stage == stage.stage) {
        let (from, to) = (frame.x(event.start), frame.x(event.end));
        let about = About::tip([
            format!("{}: {}", event.what, seconds(event.end - event.start)),
            format!("stage {}, from {} to {}", event.stage, seconds(event.start), seconds(event.end)),
        ])
        .data("stage", event.stage)
        .data("kind", &event.kind);
        match (event.track.as_str(), event.kind.as_str()) {
            ("schedule", "bubble") if to - from >= LEAST => canvas.rect([from, y, to - from, tall], FREE, &about),
            ("schedule", kind) => {
                let Some(kind) = KINDS.iter().find(|known| known.name == kind) else { continue };
                // Of what is too narrow, so much is drawn that a run of it still shows.
                if to - from < LEAST && to - drawn < LEAST {
                    continue;
                }
                drawn = to;
                pass(canvas, event, kind, &fills[kind.name], [from, y, (to - from).max(LEAST), tall], &about);
            }
            (_, "recompute") if to - from >= LEAST => {
                canvas.rect([from, y + tall - tall / 4.0, to - from, tall / 4.0], &fills["recompute"], &about)
            }
            (_, "collective") if to - from >= LEAST && event.hidden => {
                canvas.outline([from, y + tall + 1.5, to - from, strip - 2.0], VERMILION.fill, "", &about)
            }
            (_, "collective") if to - from >= LEAST => {
                canvas.rect([from, y + tall + 1.0, to - from, strip - 1.0], VERMILION.fill, &about)
            }
            _ => {}
        }
    }
    y + tall + strip + 5.0
}

/// A pass with as much of its name as there is room for.
fn pass(canvas: &mut Canvas, event: &Event, kind: &Kind, fill: &str, [x, y, wide, tall]: [f64; 4], about: &About) {
    canvas.rect([x, y, wide, tall], fill, about);
    if wide > 4.0 {
        canvas.line([x + wide, y, x + wide, y + tall], PAPER, 0.7, "");
    }
    let number = event.microbatch.map_or(String::new(), |number| number.to_string());
    let full = format!("{}{number}", kind.letter);
    let size = if tall < 16.0 { 10.0 } else { 11.0 };
    let words = [full.as_str(), number.as_str(), kind.letter]
        .into_iter()
        .find(|words| !words.is_empty() && width(words, size) + 3.0 <= wide);
    if let Some(words) = words {
        // Lines behind letters make them hard to read: what is under them is plain.
        let under = width(words, size) + 2.0;
        if !kind.hatch.is_empty() {
            let ground = [x + (wide - under) / 2.0, y + tall / 2.0 - size / 2.0 - 1.0, under, size + 2.0];
            canvas.rect(ground, kind.colour.fill, about);
        }
        let font = Font { size, anchor: Anchor::Middle, fill: kind.colour.text, ..Font::default() };
        canvas.text(x + wide / 2.0, y + tall / 2.0 + size * 0.36, font, words);
    }
}

/// Time below the rows.
fn axis(canvas: &mut Canvas, frame: &Frame, y: f64) {
    let (unit, scale) = if frame.seconds >= 2.0 { ("s", 1.0) } else { ("ms", 1e3) };
    let most = frame.seconds * scale;
    let every = step(most, (frame.right - frame.left) / 80.0);
    canvas.line([frame.left, y, frame.right, y], LINE, 1.0, "");
    let ticks = ticks(0.0, most, every);
    for (number, value) in ticks.iter().enumerate() {
        let x = frame.x(value / scale);
        canvas.line([x, y, x, y + 4.0], INK, 1.0, "");
        let last = number + 1 == ticks.len();
        let words = format!("{}{}", tick(*value, every), if last { format!(" {unit}") } else { String::new() });
        let reach = canvas.width - 4.0 - width(&words, 10.5) / 2.0;
        let font = Font { size: 10.5, fill: SOFT, anchor: Anchor::Middle, ..Font::default() };
        canvas.text(x.min(reach), y + 15.0, font, &words);
    }
}

/// What is in the picture, with its letter.
fn legend(canvas: &mut Canvas, answer: &Schedule, y: f64, fills: &BTreeMap<&str, String>) -> f64 {
    let has = |kind: &str| answer.events.iter().any(|event| event.kind == kind && !event.hidden);
    let mut entries: Vec<(&str, String)> = KINDS
        .iter()
        .filter(|kind| has(kind.name))
        .map(|kind| {
            let letter = if kind.letter.is_empty() { String::new() } else { format!("{} ", kind.letter) };
            (fills[kind.name].as_str(), format!("{letter}{}", kind.words))
        })
        .collect();
    entries.push((FREE, "waits".to_string()));
    let end = canvas.legend(12.0, y, canvas.width - 12.0, &entries);
    if answer.events.iter().any(|event| event.kind == "collective" && event.hidden) {
        canvas.outline([12.75, end + 0.75, 10.5, 10.5], VERMILION.fill, "", &About::default());
        canvas.text(30.0, end + 10.5, Font::default(), "collective that compute hides");
        return end + 19.0;
    }
    end
}
