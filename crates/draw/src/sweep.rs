//! Tokens a second on one device against devices, a line for every sequence length. Devices stand on a
//! logarithmic axis, so that equal factors are equal steps.

use crate::palette::{BLUE, Colour, GREEN, INK, LINE, ORANGE, PURPLE, SKY, SOFT, VERMILION};
use crate::scale::{seconds, step, ticks};
use crate::svg::{About, Anchor, Canvas, Font};
use crate::{Options, Undrawn};
use serde::Deserialize;
use units::count;

/// What is drawn of a sweep of `plan`.
#[derive(Deserialize)]
pub struct Sweep {
    recipe: String,
    sweep: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    on: String,
    devices: u64,
    seq: u64,
    best: Option<Best>,
}

#[derive(Deserialize)]
struct Best {
    flags: String,
    seconds: f64,
    tokens_per_second_per_device: f64,
}

const COLOURS: [Colour; 6] = [BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY];

/// Draws it.
pub fn draw(sweep: &Sweep, options: &Options) -> Result<String, Undrawn> {
    let mut canvas = Canvas::new(options);
    let title = format!("{}: tokens/s on one device", sweep.recipe);
    let found = sweep.sweep.iter().filter(|row| row.best.is_some()).count();
    let said = format!("the best layout of each cluster; {found} of {} have one that fits", sweep.sweep.len());
    let foot = canvas.heading(&title, &said);
    let (left, right) = (70.0, canvas.width - 24.0);
    let (top, bottom) = (foot + 16.0, foot + 16.0 + if options.narrow { 220.0 } else { 300.0 });
    let tokens = sweep.sweep.iter().filter_map(|row| row.best.as_ref()).map(|best| best.tokens_per_second_per_device);
    let most = tokens.fold(0.0, f64::max).max(1.0) * 1.08;
    let powers = sweep.sweep.iter().map(|row| (row.devices.max(1) as f64).log2());
    let (low, high) = (powers.clone().fold(f64::INFINITY, f64::min), powers.fold(0.0, f64::max));
    let x = |devices: u64| {
        let share = if high > low { ((devices.max(1) as f64).log2() - low) / (high - low) } else { 0.5 };
        left + 20.0 + (right - left - 40.0) * share
    };
    let y = |tokens: f64| bottom - (bottom - top) * tokens / most;
    let small = Font { size: 10.5, fill: SOFT, ..Font::default() };
    for value in ticks(0.0, most, step(most, 4.0)) {
        canvas.line([left, y(value), right, y(value)], LINE, 0.8, "");
        canvas.text(left - 6.0, y(value) + 4.0, Font { anchor: Anchor::End, ..small }, &count(value as u64));
    }
    let mut counts: Vec<u64> = sweep.sweep.iter().map(|row| row.devices).collect();
    counts.sort_unstable();
    counts.dedup();
    let mut free = f64::NEG_INFINITY;
    for devices in counts {
        let (words, at) = (devices.to_string(), x(devices));
        let half = crate::svg::width(&words, 10.5) / 2.0;
        canvas.line([at, bottom, at, bottom + 4.0], INK, 1.0, "");
        if at - half > free {
            canvas.text(at, bottom + 16.0, Font { anchor: Anchor::Middle, ..small }, &words);
            free = at + half + 4.0;
        }
    }
    canvas.line([left, bottom, right, bottom], INK, 1.0, "");
    canvas.text(right, bottom + 31.0, Font { anchor: Anchor::End, ..small }, "devices");
    let mut sequences: Vec<u64> = sweep.sweep.iter().map(|row| row.seq).collect();
    sequences.sort_unstable();
    sequences.dedup();
    let mut entries = Vec::new();
    for (at, sequence) in sequences.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let rows = sweep.sweep.iter().filter(|row| row.seq == *sequence);
        let points: Vec<(&Row, &Best)> = rows.filter_map(|row| row.best.as_ref().map(|best| (row, best))).collect();
        let place = |(row, best): &(&Row, &Best)| (x(row.devices), y(best.tokens_per_second_per_device));
        canvas.polyline(points.iter().map(place), colour.fill, 2.0);
        for point in &points {
            let ((row, best), (x, y)) = (point, place(point));
            let about = About::tip([
                format!(
                    "{}, sequence {}: {} tokens/s a device",
                    row.on,
                    row.seq,
                    count(best.tokens_per_second_per_device as u64)
                ),
                format!("a step takes {}", seconds(best.seconds)),
                best.flags.clone(),
            ])
            .data("case", &best.flags);
            canvas.circle([x, y, 5.0], colour.fill, crate::palette::PAPER, 1.0, &about);
        }
        entries.push((colour.fill, format!("sequence {sequence}")));
    }
    let end = canvas.legend(12.0, bottom + 40.0, canvas.width - 12.0, &entries);
    Ok(canvas.finish(end + 4.0, &title, &said))
}
