//! The step for a terminal: a row a stage, time from left to right.

use super::events::{Event, Events};
use crate::commands::case_text;
use crate::commands::plan::text::seconds;
use crate::commands::plan::trust::spread;
use crate::table::{Table, heading, wrap};
use crate::width::columns;
use case::Case;
use cost::Step;
use cost::trace::Trace;

/// Rows of stages at most; of more, the first and last.
const MOST_STAGES: usize = 24;

/// Columns before a row.
const BEFORE: usize = 12;

/// Everything that is shown.
pub fn of(case: &Case, trace: &Trace, step: Option<&Step>, events: &Events) -> String {
    let layout = &case.layout;
    let stages = trace.stages.len();
    let trusted = step.map_or(String::new(), |step| format!(", {}", spread(step)));
    let counted = |number: u64, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    let mut text = format!(
        "\x1b[1ma step takes {}\x1b[0m{trusted}: {} of {}, {}\n",
        seconds(trace.seconds),
        counted(stages as u64, "stage"),
        counted(layout.microbatches, "microbatch").replace("batchs", "batches"),
        layout.schedule.name()
    );
    if let Some(step) = step {
        text += &format!("bound by {}\n", step.bound);
    }
    text += &chart(trace, events);
    text += &stages_text(trace);
    text += &traffic_text(step);
    text += "\n";
    text += &case_text(case);
    text
}

/// How an event is drawn: its letter, what fills its cells, and in which style.
fn look(kind: &str) -> (char, char, &'static str) {
    match kind {
        "forward" => ('F', '─', "\x1b[34m"),
        "backward" => ('B', '═', "\x1b[33m"),
        "backward-input" => ('I', '═', "\x1b[33m"),
        "backward-weight" => ('W', '┄', "\x1b[32m"),
        "overlapped" => ('X', '≡', "\x1b[35m"),
        "send" => ('>', '>', "\x1b[2m"),
        "folded" => ('…', '…', "\x1b[2m"),
        "update" => ('U', 'u', "\x1b[36m"),
        "reserve" => ('.', '.', "\x1b[2m"),
        _ => (' ', ' ', ""),
    }
}

/// The rows.
fn chart(trace: &Trace, events: &Events) -> String {
    let wide = columns().min(160).saturating_sub(BEFORE + 1).max(20);
    let stages = trace.stages.len();
    let shown: Vec<usize> = match stages {
        0..=MOST_STAGES => (0..stages).collect(),
        _ => (0..MOST_STAGES / 2).chain(stages - MOST_STAGES / 2..stages).collect(),
    };
    let mut out = heading("Stages over time");
    for (at, stage) in shown.iter().enumerate() {
        if at > 0 && shown[at - 1] + 1 < *stage {
            out += &format!("  {} stages between are not shown; --json has them\n", stage - shown[at - 1] - 1);
        }
        let row = events.all.iter().filter(|e| e.track == "schedule" && e.stage as usize == *stage);
        out += &format!("  stage {stage:>3} {}\n", row_of(row, trace.seconds, wide));
    }
    let kinds: Vec<&str> = events.all.iter().filter(|e| e.track == "schedule").map(|e| e.kind).collect();
    let key = [
        ("forward", "F forward"),
        ("backward", "B backward"),
        ("backward-input", "I backward of inputs"),
        ("backward-weight", "W backward of weights"),
        ("overlapped", "X a forward beside a backward"),
        ("folded", "… passes not drawn"),
        ("update", "U gradients, optimizer, weights"),
        ("reserve", ". data, logging"),
    ];
    let legend: Vec<&str> = key.iter().filter(|(kind, _)| kinds.contains(kind)).map(|(_, words)| *words).collect();
    out += &wrap(&format!("{}; blank: waits; the number is the microbatch", legend.join("  ")), "  ", 80);
    if let Some(left_out) = events.left_out() {
        out += &wrap(&left_out, "  ", 80);
    }
    out
}

/// One stage. Each event takes the cells that its start and end fall into, and the first of them carry its letter
/// and microbatch, where there is room.
fn row_of<'a>(events: impl Iterator<Item = &'a Event>, total: f64, wide: usize) -> String {
    let cell = |seconds: f64| ((seconds / total * wide as f64).round() as usize).min(wide);
    let (mut out, mut at) = (String::new(), 0);
    for event in events {
        let (from, to) = (cell(event.start).max(at), cell(event.end));
        if to <= from {
            continue;
        }
        out += &" ".repeat(from - at);
        let (letter, fill, style) = look(event.kind);
        let mut words = letter.to_string();
        words += &event.microbatch.map_or(String::new(), |number| number.to_string());
        let shown: String = if words.chars().count() <= to - from { words } else { letter.to_string() };
        let rest = to - from - shown.chars().count();
        out += &format!("{style}{shown}{}\x1b[0m", fill.to_string().repeat(rest));
        at = to;
    }
    out
}

fn stages_text(trace: &Trace) -> String {
    let mut table =
        Table::new(&["stage", "computes", "waits", "only sends", "waits, of the step"]).right(&[0, 1, 2, 3, 4]);
    for (number, stage) in trace.stages.iter().enumerate() {
        let share = format!("{:.1}%", 100.0 * stage.idle / trace.seconds);
        table.row([number.to_string(), seconds(stage.busy), seconds(stage.idle), seconds(stage.sending), share]);
    }
    heading("Time of each stage up to its last pass") + &table.render()
}

fn traffic_text(step: Option<&Step>) -> String {
    let Some(step) = step.filter(|step| !step.traffic.is_empty()) else { return String::new() };
    let mut table = Table::new(&["axis", "ranks", "shows", "hidden", "crosses islands"]).right(&[1, 2, 3]);
    for axis in &step.traffic {
        let crosses = match &axis.rails {
            Some(rails) => format!("yes, {}", rails.words()),
            None if axis.crosses_island => "yes".to_string(),
            None => "no".to_string(),
        };
        let members = axis.spread.members.to_string();
        table.row([axis.axis, &members, &seconds(axis.exposed), &seconds(axis.hidden), &crosses]);
    }
    heading("Collectives") + &table.render()
}
