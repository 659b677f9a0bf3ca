//! Pictures of memory: stacked bars a stage against the device, in the terminal and as SVG.

use crate::width::columns;
use diag::quote;
use memory::fit::{Entry, RankClass};
use replay::Line;
use std::fmt::Write;

/// What a bar is made of: a name, a letter for the terminal, a colour for SVG, the lines in it.
struct Part {
    name: &'static str,
    letter: char,
    colour: &'static str,
    ansi: &'static str,
    lines: &'static [Entry],
}

const PARTS: &[Part] = &[
    Part {
        name: "weights",
        letter: 'w',
        colour: "#4878a8",
        ansi: "\x1b[34m",
        lines: &[
            Entry::Ledger(Line::ReplicatedParams),
            Entry::Ledger(Line::TpParams),
            Entry::Ledger(Line::ExpertParams),
        ],
    },
    Part {
        name: "gradients",
        letter: 'g',
        colour: "#6aa5a9",
        ansi: "\x1b[36m",
        lines: &[Entry::Ledger(Line::Gradients)],
    },
    Part {
        name: "optimizer",
        letter: 'o',
        colour: "#8d6cab",
        ansi: "\x1b[35m",
        lines: &[Entry::Ledger(Line::MatrixOptimizer), Entry::Ledger(Line::OtherOptimizer)],
    },
    Part {
        name: "activations",
        letter: 'a',
        colour: "#d98b3a",
        ansi: "\x1b[33m",
        lines: &[
            Entry::Ledger(Line::Activations),
            Entry::Ledger(Line::ActivationGradients),
            Entry::Ledger(Line::FeatureActivations),
            Entry::Ledger(Line::Communication),
        ],
    },
    Part {
        name: "routing",
        letter: 'r',
        colour: "#c3564a",
        ansi: "\x1b[31m",
        lines: &[Entry::Ledger(Line::ExpertInputs), Entry::Ledger(Line::RoutingScratch)],
    },
    Part { name: "loss", letter: 'l', colour: "#7a9a4c", ansi: "\x1b[32m", lines: &[Entry::Ledger(Line::Loss)] },
    Part {
        name: "tail",
        letter: 't',
        colour: "#9a9a9a",
        ansi: "\x1b[2m",
        lines: &[
            Entry::Ledger(Line::Workspaces),
            Entry::AllocatorOverhead,
            Entry::RuntimeReserve,
            Entry::Communicators,
        ],
    },
];

fn bytes_of(part: &Part, class: &RankClass) -> u64 {
    part.lines.iter().map(|line| class.line(*line)).sum()
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
            let _ = write!(out, "{}{}\x1b[0m", part.ansi, part.letter.to_string().repeat(end - extrapolated));
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
    let legend: Vec<String> = PARTS.iter().map(|p| format!("{}{}\x1b[0m {}", p.ansi, p.letter, p.name)).collect();
    let _ = writeln!(out, "  {}; | is {:.1} GiB, all the device shows", legend.join("  "), gib(device_bytes));
    out
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// The same bars as SVG, one column a stage, the device's edge as a line.
pub fn svg(classes: &[RankClass], device_bytes: u64, title: &str) -> String {
    const BAR: f64 = 56.0;
    const GAP: f64 = 24.0;
    const HEIGHT: f64 = 320.0;
    const LEFT: f64 = 84.0;
    const TOP: f64 = 60.0;
    let most = classes.iter().map(RankClass::total).max().unwrap_or(0).max(device_bytes) as f64 * 1.05;
    let scale = HEIGHT / most;
    let width = (LEFT + classes.len() as f64 * (BAR + GAP) + 170.0).max(520.0);
    let height = TOP + HEIGHT + 60.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"28\" font-size=\"15\">{}</text>\n",
        quote::xml(title)
    );
    for (i, class) in classes.iter().enumerate() {
        let x = LEFT + i as f64 * (BAR + GAP);
        let mut base = TOP + HEIGHT;
        for part in PARTS {
            let tall = bytes_of(part, class) as f64 * scale;
            base -= tall;
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{base:.2}\" width=\"{BAR}\" height=\"{tall:.2}\" fill=\"{}\"><title>{}: {:.2} GiB</title></rect>",
                part.colour,
                part.name,
                gib(bytes_of(part, class))
            );
        }
        let middle = x + BAR / 2.0;
        let _ = writeln!(
            out,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.1}</text>",
            base - 6.0,
            gib(class.total())
        );
        let _ = writeln!(
            out,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">stage {}</text>",
            TOP + HEIGHT + 18.0,
            class.stage
        );
    }
    let edge = TOP + HEIGHT - device_bytes as f64 * scale;
    let right = LEFT + classes.len() as f64 * (BAR + GAP);
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" x2=\"{right:.1}\" y1=\"{edge:.2}\" y2=\"{edge:.2}\" stroke=\"#c00\" stroke-dasharray=\"5 3\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#c00\">{:.1} GiB</text>",
        LEFT - 10.0,
        LEFT - 12.0,
        edge + 4.0,
        gib(device_bytes)
    );
    for (i, part) in PARTS.iter().enumerate() {
        let y = TOP + 10.0 + i as f64 * 20.0;
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            right + 16.0,
            part.colour,
            right + 34.0,
            y + 10.0,
            part.name
        );
    }
    out + "</svg>\n"
}
