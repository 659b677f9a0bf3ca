//! How far a plan's times are to be trusted, and what they cannot tell apart.

use super::Solved;
use super::text::{difference, seconds};
use crate::commands::shorten;
use crate::table::wrap;
use cost::{Apart, Interval, Step};
use search::{Choice, ModeAnswer, decides};
use units::{Bytes, change, exact};

/// Equals that a screen shows.
const SHOWN: usize = 2;

/// Between which seconds runs like it lie: `16.9 to 19.0 s in 8 of 10 such runs`.
pub fn spread(step: &Step) -> String {
    match &step.interval {
        Some(interval) => format!("{} in {:.0} of 10 such runs", range(interval), 10.0 * interval.share),
        None => "with nothing to judge it by".to_string(),
    }
}

/// The seconds of an interval, both in the unit of the longer.
pub fn range(interval: &Interval) -> String {
    let (scale, unit, digits) = match interval.high {
        high if high >= 100.0 => (1.0, "s", 0),
        high if high >= 10.0 => (1.0, "s", 1),
        high if high >= 1.0 => (1.0, "s", 2),
        _ => (1e3, "ms", 0),
    };
    let [low, high] = [interval.low, interval.high].map(|edge| format!("{:.digits$}", scale * edge));
    format!("{low} to {high} {unit}")
}

/// Which runs those are.
pub fn such_runs(step: &Step) -> String {
    match &step.interval {
        Some(Interval { rows, class, .. }) if *rows > 0 => {
            format!("such runs: {rows} published ones, {class} (docs/time.md)")
        }
        _ => "no published run is like it (docs/time.md)".to_string(),
    }
}

/// Why this layout and no other: that none is faster, or how far that is known, and what it is chosen for.
pub fn proof(solved: &Solved, best: &Choice) -> String {
    let Some(answer) = solved.answer.modes.first() else { return String::new() };
    let Some(fastest) = &answer.fastest else { return String::new() };
    let legal = exact(solved.found.counts.legal);
    let text = match (answer.unproved > 0.0, fastest.point == best.point) {
        (true, _) => {
            let most = 100.0 * (1.0 - 1.0 / (1.0 + answer.unproved));
            format!("no proof that it is the fastest: what was left at --work-limit may take up to {most:.1}% less")
        }
        (false, true) => format!("the fastest of {legal} legal layouts: none that is modelled faster fits"),
        (false, false) => {
            let faster = 100.0 * (1.0 - 1.0 / (1.0 + slower(fastest, best)));
            let moves = |choice: &Choice| choice.case.options.offload > best.case.options.offload;
            match best.complexity < fastest.complexity {
                _ if moves(fastest) => format!(
                    "the best of {legal} legal layouts that keeps its state on the device: on the host a step is modelled to \
                     take {faster:.1}% less, which is less than such steps were found to be wrong by"
                ),
                true => format!(
                    "the simplest within the noise of the fastest of {legal} legal layouts, which takes {faster:.1}% less"
                ),
                false => format!(
                    "of most room within the noise of the fastest of {legal} legal layouts, which takes {faster:.1}% less"
                ),
            }
        }
    };
    let left_out: Vec<&str> = solved.space.trimmed.iter().map(|finding| finding.message.as_str()).collect();
    let text = if left_out.is_empty() { text } else { format!("{text}; {}", left_out.join("; ")) };
    wrap(&text, "  ", 100)
}

/// Layouts that cannot be told from the best, and what would tell them apart.
pub fn equals(solved: &Solved, best: &Choice) -> String {
    let Some(ModeAnswer { equal, apart, .. }) = solved.answer.modes.first() else { return String::new() };
    let Some(first) = equal.first() else { return String::new() };
    let listed: Vec<String> = equal
        .iter()
        .take(SHOWN)
        .map(|one| {
            let room = Bytes(one.fit.tightest().headroom.max(0) as u64);
            let flags = shorten(&difference(solved, best, &one.point), 60);
            format!("{flags} (time {}, headroom {room})", change(slower(best, one)))
        })
        .collect();
    let mut text =
        format!("equal to it, less simple or with less headroom: {}; {}", listed.join("; "), told_apart(apart));
    if let Some((part, here, there)) = decides(&best.step, &first.step) {
        let (here, there) = (seconds(here), seconds(there));
        text += &format!("; a few steps of both would tell: they differ most in {part}, {here} here and {there} there");
    }
    wrap(&text, "  ", 100)
}

/// What two layouts must differ by, and who says so.
pub fn told_apart(apart: &Apart) -> String {
    format!(
        "two layouts are told apart from {:.1}% on ({} measured pairs, {})",
        100.0 * apart.share,
        apart.pairs,
        apart.class
    )
}

/// Of the best one's time a sequence, less one.
pub fn slower(best: &Choice, other: &Choice) -> f64 {
    other.per_sequence() / best.per_sequence() - 1.0
}
