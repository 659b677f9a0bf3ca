//! Stacked bars of memory in the terminal, a stage each, against the device.

use crate::width::columns;
use draw::parts::{PARTS, Part, part_of};
use memory::fit::RankClass;
use std::fmt::Write;

/// What a part's letters are written in.
fn ansi(part: &Part) -> &'static str {
    match part.letter {
        'w' => "\x1b[34m",
        'g' => "\x1b[36m",
        'o' => "\x1b[35m",
        'a' => "\x1b[33m",
        'r' => "\x1b[31m",
        'l' => "\x1b[32m",
        _ => "\x1b[2m",
    }
}

fn bytes_of(part: &Part, class: &RankClass) -> u64 {
    class.lines.iter().filter(|amount| part_of(amount.entry.name()) == part).map(|amount| amount.bytes).sum()
}

/// Columns beside a bar: the stage's number before it, its size behind it.
const BESIDE: usize = 28;

/// Bars for the terminal, `width` cells to the device's edge, or fewer where the screen is narrow.
pub fn bars(classes: &[RankClass], device_bytes: u64, width: usize) -> String {
    let most = classes.iter().map(RankClass::total).max().unwrap_or(0).max(device_bytes);
    let room = columns().saturating_sub(BESIDE);
    let width = width.min(if most > device_bytes { room * 2 / 3 } else { room });
    // A bar that is far over is cut: how far is in its number.
    let cells = |bytes: u64| ((bytes as f64 / device_bytes as f64 * width as f64).round() as usize).min(width * 3 / 2);
    let mut out = String::new();
    for class in classes {
        let _ = write!(out, "  stage {:>3} ", class.stage);
        let (mut extrapolated, mut sum) = (0, 0);
        for part in PARTS {
            sum += bytes_of(part, class);
            let end = cells(sum);
            let _ = write!(out, "{}{}\x1b[0m", ansi(part), part.letter.to_string().repeat(end - extrapolated));
            extrapolated = end;
        }
        let edge = cells(most).max(width);
        if extrapolated <= width {
            out += &" ".repeat(width - extrapolated);
            out += "|";
        } else {
            let _ = write!(
                out,
                "\x1b[1;31m{}\x1b[0m",
                " over".chars().take(edge.saturating_sub(extrapolated).max(5)).collect::<String>()
            );
        }
        let _ = writeln!(out, " {:>6.1} GiB", gib(class.total()));
    }
    let legend: Vec<String> = PARTS.iter().map(|p| format!("{}{}\x1b[0m {}", ansi(p), p.letter, p.name)).collect();
    let _ = writeln!(out, "  {}; | is {:.1} GiB, all the device shows", legend.join("  "), gib(device_bytes));
    out
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
