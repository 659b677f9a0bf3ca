//! How far a plan's times are to be trusted, and what they cannot tell apart.

use super::Solved;
use super::text::{flags_of, seconds};
use crate::table::wrap;
use cost::{Interval, Step};
use search::{Choice, Equal};
use units::{Bytes, change};

/// Between which seconds runs like it lie: `16.9 to 19.0 s in 8 of 10 such runs`.
pub fn spread(step: &Step) -> String {
    let Some(Interval { low, high, share, .. }) = &step.interval else { return "with nothing to judge it by".into() };
    let (scale, unit, digits) = match *high {
        high if high >= 100.0 => (1.0, "s", 0),
        high if high >= 10.0 => (1.0, "s", 1),
        high if high >= 1.0 => (1.0, "s", 2),
        _ => (1e3, "ms", 0),
    };
    let [low, high] = [low, high].map(|edge| format!("{:.digits$}", scale * edge));
    format!("{low} to {high} {unit} in {:.0} of 10 such runs", 10.0 * share)
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

/// Layouts that cannot be told from the best, and what would tell them apart.
pub fn equals(solved: &Solved, best: &Choice) -> String {
    let (equal, apart) = (&solved.answer.equal, &solved.answer.apart);
    let Some(first) = equal.first() else { return String::new() };
    let share = solved.space.question.offload;
    let flags = |one: &Equal| flags_of(&best.case.recipe, &one.layout, share.share(one.point.offload));
    let listed: Vec<String> = equal
        .iter()
        .map(|one| {
            let room = Bytes(one.headroom.max(0) as u64);
            format!("{} (time {}, headroom {room})", flags(one), change(one.slower))
        })
        .collect();
    let text = format!(
        "equal to it, since two layouts are told apart from {:.1}% on ({} measured pairs, {}), and with less headroom \
         or less simple: {}",
        100.0 * apart.share,
        apart.pairs,
        apart.class,
        listed.join("; ")
    );
    let decides = first.decides.map_or_else(String::new, |(part, here, there)| {
        format!(
            "; a few steps of both would tell, or `{part}` timed on the machine: {} against {}",
            seconds(here),
            seconds(there)
        )
    });
    wrap(&(text + &decides), "  ", 100)
}
