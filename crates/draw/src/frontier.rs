//! Layouts as points: how long a step takes against what stays free. What a search kept, what it chose, and
//! between which seconds it believes itself.

use crate::palette::{BLUE, GREY, INK, LINE, ORANGE, PAPER, SOFT};
use crate::scale::{gib, seconds, step, tick, ticks};
use crate::svg::{About, Anchor, Canvas, Font, width, wrap};
use crate::{Options, Undrawn};
use serde::Deserialize;
use units::Bytes;

/// What is drawn of an answer of `plan`.
#[derive(Deserialize)]
pub struct Plan {
    recipe: String,
    cluster: Cluster,
    headroom_bytes: u64,
    best: Option<Best>,
    frontier: Vec<Kept>,
    #[serde(default)]
    alternatives: Vec<Near>,
}

#[derive(Deserialize)]
struct Cluster {
    nodes: u64,
    devices_per_node: u64,
    device: Device,
}

#[derive(Deserialize)]
struct Device {
    name: String,
}

#[derive(Deserialize)]
struct Best {
    layout: Layout,
    headroom_bytes: i64,
    step: Step,
}

#[derive(Deserialize)]
struct Step {
    seconds: f64,
    interval: Option<Interval>,
    tokens_per_second_per_device: f64,
}

#[derive(Clone, Deserialize)]
struct Interval {
    low: f64,
    high: f64,
}

#[derive(Deserialize)]
struct Layout {
    flags: String,
}

#[derive(Deserialize)]
struct Kept {
    layout: Layout,
    seconds: f64,
    #[serde(default)]
    interval: Option<Interval>,
    headroom_bytes: i64,
    tokens_per_second_per_device: f64,
}

#[derive(Deserialize)]
struct Near {
    change: String,
    flags: String,
    seconds: f64,
    headroom_bytes: i64,
}

/// A layout as it is drawn.
struct Point {
    flags: String,
    seconds: f64,
    headroom: i64,
    interval: Option<Interval>,
    tokens: Option<f64>,
    /// What it changes against the chosen one, where it stands one change away.
    change: Option<String>,
    is_chosen: bool,
}

/// Points at most.
const MOST: usize = 400;

/// Layouts that are written out below.
const LISTED: usize = 8;

/// Every layout once: the chosen, the frontier, and those one change away.
fn points(plan: &Plan) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    if let Some(best) = &plan.best {
        points.push(Point {
            flags: best.layout.flags.clone(),
            seconds: best.step.seconds,
            headroom: best.headroom_bytes,
            interval: best.step.interval.clone(),
            tokens: Some(best.step.tokens_per_second_per_device),
            change: None,
            is_chosen: true,
        });
    }
    let mut add = |point: Point| {
        if points.len() < MOST && points.iter().all(|other| other.flags != point.flags) {
            points.push(point);
        }
    };
    for kept in &plan.frontier {
        add(Point {
            flags: kept.layout.flags.clone(),
            seconds: kept.seconds,
            headroom: kept.headroom_bytes,
            interval: kept.interval.clone(),
            tokens: Some(kept.tokens_per_second_per_device),
            change: None,
            is_chosen: false,
        });
    }
    for near in &plan.alternatives {
        add(Point {
            flags: near.flags.clone(),
            seconds: near.seconds,
            headroom: near.headroom_bytes,
            interval: None,
            tokens: None,
            change: Some(near.change.clone()),
            is_chosen: false,
        });
    }
    points.retain(|point| point.seconds.is_finite() && point.seconds > 0.0);
    points.sort_by(|a, b| {
        b.is_chosen
            .cmp(&a.is_chosen)
            .then(a.change.is_some().cmp(&b.change.is_some()))
            .then(a.seconds.total_cmp(&b.seconds))
    });
    points
}

/// Where points stand.
struct Frame {
    x: [f64; 2],
    y: [f64; 2],
    gib: [f64; 2],
    seconds: [f64; 2],
}

impl Frame {
    fn x(&self, bytes: i64) -> f64 {
        let [low, high] = self.gib;
        self.x[0] + (self.x[1] - self.x[0]) * ((gib(bytes as f64) - low) / (high - low)).clamp(0.0, 1.0)
    }

    fn y(&self, seconds: f64) -> f64 {
        let [low, high] = self.seconds;
        self.y[1] - (self.y[1] - self.y[0]) * ((seconds - low) / (high - low)).clamp(0.0, 1.0)
    }
}

/// The least and most of something, with a little room on both sides.
fn span(values: impl Iterator<Item = f64> + Clone) -> [f64; 2] {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
    let room = ((high - low) * 0.08).max(high.abs() * 0.02).max(1e-6);
    [low - room, high + room]
}

/// Draws it.
pub fn draw(plan: &Plan, options: &Options) -> Result<String, Undrawn> {
    let points = points(plan);
    if points.is_empty() {
        return Err(Undrawn("no layout fits, so there is none to draw".to_string()));
    }
    let mut canvas = Canvas::new(options);
    let devices = plan.cluster.nodes.saturating_mul(plan.cluster.devices_per_node);
    let title = format!("{} on {devices} x {}: time against headroom", plan.recipe, plan.cluster.device.name);
    let kept = points.iter().filter(|point| point.change.is_none()).count();
    let said = format!(
        "{kept} layouts that no other clearly beats in both; {} asked to stay free; whiskers: 8 of 10 such runs",
        Bytes(plan.headroom_bytes)
    );
    let foot = canvas.heading(&title, &said);
    let whiskers = points.iter().filter_map(|point| point.interval.as_ref()).flat_map(|i| [i.low, i.high]);
    let times: Vec<f64> = points.iter().map(|point| point.seconds).chain(whiskers).collect();
    let room = span(points.iter().map(|point| gib(point.headroom as f64)));
    let frame = Frame {
        x: [if options.narrow { 52.0 } else { 70.0 }, canvas.width - 18.0],
        y: [foot + 26.0, foot + 26.0 + if options.narrow { 260.0 } else { 320.0 }],
        gib: if room[0] > 0.0 && room[0] < room[1] * 0.3 { [0.0, room[1]] } else { room },
        seconds: span(times.iter().copied()),
    };
    axes(&mut canvas, &frame);
    for (number, point) in points.iter().enumerate().rev() {
        dot(&mut canvas, &frame, number, point);
    }
    let end = list(&mut canvas, &points, frame.y[1] + 50.0);
    Ok(canvas.finish(end + 12.0, &title, &said))
}

fn axes(canvas: &mut Canvas, frame: &Frame) {
    let font = Font { size: 10.5, fill: SOFT, ..Font::default() };
    let (unit, scale) = if frame.seconds[1] >= 1.0 { ("s", 1.0) } else { ("ms", 1e3) };
    let [low, high] = frame.seconds.map(|seconds| seconds * scale);
    let every = step(high - low, 5.0);
    for value in ticks(low, high, every) {
        let y = frame.y(value / scale);
        canvas.line([frame.x[0], y, frame.x[1], y], LINE, 0.8, "");
        canvas.text(frame.x[0] - 5.0, y + 4.0, Font { anchor: Anchor::End, ..font }, &tick(value, every));
    }
    canvas.text(12.0, frame.y[0] - 8.0, font, &format!("a step takes, in {unit}"));
    let [low, high] = frame.gib;
    let every = step(high - low, (frame.x[1] - frame.x[0]) / 70.0);
    for value in ticks(low, high, every) {
        let x = frame.x((value * (1u64 << 30) as f64) as i64);
        canvas.line([x, frame.y[1], x, frame.y[1] + 4.0], INK, 1.0, "");
        canvas.text(x, frame.y[1] + 16.0, Font { anchor: Anchor::Middle, ..font }, &tick(value, every));
    }
    canvas.line([frame.x[0], frame.y[1], frame.x[1], frame.y[1]], INK, 1.0, "");
    let words = "GiB left on the worst rank";
    canvas.text(frame.x[1], frame.y[1] + 31.0, Font { anchor: Anchor::End, ..font }, words);
}

fn dot(canvas: &mut Canvas, frame: &Frame, number: usize, point: &Point) {
    let (x, y) = (frame.x(point.headroom), frame.y(point.seconds));
    let left = match u64::try_from(point.headroom) {
        Ok(left) => format!("{} left", Bytes(left)),
        Err(_) => format!("{} over", Bytes(point.headroom.unsigned_abs())),
    };
    let between = point.interval.as_ref().map_or(String::new(), |interval| {
        format!("{} to {} in 8 of 10 such runs", seconds(interval.low), seconds(interval.high))
    });
    let about = About::tip([
        point.change.clone().unwrap_or_default(),
        point.flags.clone(),
        format!("a step takes {}, {left}", seconds(point.seconds)),
        between,
        point.tokens.map_or(String::new(), |tokens| format!("{} tokens/s a device", units::count(tokens as u64))),
    ])
    .data("case", &point.flags);
    if let Some(interval) = &point.interval {
        let (low, high) = (frame.y(interval.low), frame.y(interval.high));
        let (stroke, wide) = if point.is_chosen { (ORANGE.fill, 2.0) } else { (GREY.fill, 0.8) };
        canvas.line([x, high, x, low], stroke, wide, "");
        canvas.line([x - 4.0, low, x + 4.0, low], stroke, wide, "");
        canvas.line([x - 4.0, high, x + 4.0, high], stroke, wide, "");
    }
    if point.change.is_some() {
        canvas.circle([x, y, 3.5], PAPER, GREY.fill, 1.5, &about);
        return;
    }
    if point.is_chosen {
        canvas.circle([x, y, 12.0], "none", ORANGE.fill, 3.0, &about);
    }
    canvas.circle([x, y, 7.5], BLUE.fill, PAPER, 1.0, &about);
    if number < LISTED {
        let font = Font { size: 10.0, anchor: Anchor::Middle, fill: BLUE.text, ..Font::default() };
        canvas.text(x, y + 3.6, font, &(number + 1).to_string());
    }
}

/// Flags with their values.
fn pairs(flags: &str) -> Vec<&str> {
    let starts: Vec<usize> =
        flags.match_indices("--").map(|(at, _)| at).filter(|at| *at == 0 || flags[..*at].ends_with(' ')).collect();
    let ends = starts.iter().skip(1).copied().chain([flags.len()]);
    starts.iter().zip(ends).map(|(from, to)| flags[*from..to].trim_end()).collect()
}

/// What a layout says otherwise than the first one.
fn changed(first: &str, other: &str) -> String {
    let (first, other) = (pairs(first), pairs(other));
    let name = |pair: &str| pair.split(' ').next().unwrap_or_default().to_string();
    let new = other.iter().filter(|pair| !first.contains(pair)).map(|pair| pair.to_string());
    let gone = first.iter().filter(|pair| other.iter().all(|o| name(o) != name(pair)));
    let words: Vec<String> = new.chain(gone.map(|pair| format!("no {}", name(pair)))).collect();
    words.join(" ")
}

/// The first few in words; gives the foot of the last.
fn list(canvas: &mut Canvas, points: &[Point], y: f64) -> f64 {
    let mut foot = y;
    let room = canvas.width - 24.0;
    for (number, point) in points.iter().filter(|point| point.change.is_none()).take(LISTED).enumerate() {
        let chosen = if point.is_chosen { " (chosen)" } else { "" };
        let head =
            format!("{}{chosen}  {}, {:.1} GiB left", number + 1, seconds(point.seconds), gib(point.headroom as f64));
        canvas.text(12.0, foot, Font { bold: point.is_chosen, ..Font::default() }, &head);
        let flags = if number == 0 { point.flags.clone() } else { changed(&points[0].flags, &point.flags) };
        let beside = width(&head, 12.0) * 1.12 + 24.0;
        let font = Font { size: 11.0, fill: SOFT, ..Font::default() };
        if width(&flags, 11.0) <= room - beside {
            canvas.text(12.0 + beside, foot, font, &flags);
        } else {
            for line in wrap(&flags, 11.0, room - 12.0) {
                foot += 15.0;
                canvas.text(24.0, foot, font, &line);
            }
        }
        foot += 20.0;
    }
    let named = points.iter().filter(|point| point.change.is_none()).count();
    if named > LISTED {
        let words = format!("{} more are drawn without a number; the others say what differs from 1", named - LISTED);
        foot = canvas.paragraph(12.0, foot, Font { fill: SOFT, ..Font::default() }, &words, room) + 20.0;
    }
    if points.iter().any(|point| point.change.is_some()) {
        canvas.circle([18.0, foot - 4.0, 3.5], PAPER, GREY.fill, 1.5, &About::default());
        canvas.text(30.0, foot, Font { fill: SOFT, ..Font::default() }, "one change away from the chosen");
        foot += 20.0;
    }
    foot - 14.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written() {
        assert_eq!(changed("--tp 1 --dp 8 --sp --recompute full", "--tp 2 --sp --dp 8"), "--tp 2 no --recompute");
    }
}
