//! A rehearsal for people.

use crate::commands::{model_line, shorten};
use crate::table::{Table, heading, wrap};
use runtime::rehearse::{Ask, Ending, Prepared, Rehearsal, Source, Worst};
use runtime::report::Line;
use units::exact;

/// Tensors named in a list of the worst.
pub const WORST: usize = 5;
/// Lines of a long curve.
const SHOWN_STEPS: usize = 10;
const GOOD: &str = "\x1b[1;32m";
const BAD: &str = "\x1b[1;31m";
const RESET: &str = "\x1b[0m";

/// What is rehearsed.
pub fn head(ask: &Ask, prepared: &Prepared) -> String {
    let layout = &prepared.layout;
    let mut out = model_line(&prepared.recipe) + "\n";
    out += &format!("  {} as {}: {}\n", ranks(layout.world), ask.ranks, layout.all_flags());
    let learns = match &ask.source {
        Source::Synthetic => "a synthetic sequence; a loss of 0.693 (ln 2) is perfect".to_string(),
        Source::Text(text) => format!("a text of {} bytes, a token each", exact(text.len() as u64)),
    };
    out += &format!("  {} steps in {} on {learns}; seed {}\n", ask.steps, ask.number, ask.seed);
    if !prepared.changes.is_empty() {
        let sizes: Vec<String> = prepared.changes.iter().map(|c| format!("{} {} → {}", c.what, c.from, c.to)).collect();
        out += &heading("Made small; pattern, ratios and what the layout divides are kept (--dims NAME=SIZE,… sets)");
        out += &wrap(&sizes.join(", "), "  ", 110);
    }
    out
}

fn ranks(n: u64) -> String {
    if n == 1 { "1 rank".to_string() } else { format!("{n} ranks") }
}

/// What came of it.
pub fn body(ask: &Ask, prepared: &Prepared, r: &Rehearsal) -> String {
    losses(r) + &parity(r) + &traffic(r) + &memory(r) + &load(r) + &verdict(ask, prepared, r)
}

fn losses(r: &Rehearsal) -> String {
    let mut table = Table::new(&["step", "one rank", "all ranks", "difference"]).right(&[0, 1, 2, 3]);
    let last = r.one.len() - 1;
    let every = r.one.len().div_ceil(SHOWN_STEPS);
    for step in (0..=last).filter(|s| s % every == 0 || *s == last) {
        let (one, many) = (r.one[step], r.many[step]);
        let difference = scientific((one - many).abs() / one.abs());
        table.row([step.to_string(), format!("{one:.6}"), format!("{many:.6}"), difference]);
    }
    heading("Loss") + &table.render()
}

/// A difference, or nothing to speak of.
fn scientific(difference: f64) -> String {
    if difference == 0.0 { "0".to_string() } else { format!("{difference:.1e}") }
}

fn parity(r: &Rehearsal) -> String {
    let p = &r.parity;
    let mut table = Table::new(&["", "largest", "may be", "worst tensor"]).right(&[1, 2]);
    let worst = |all: &[Worst]| all.first().filter(|w| w.difference > 0.0).map_or(String::new(), |w| w.path.clone());
    let steps = format!("loss, steps 0-{}", p.steps - 1);
    let behind = format!("weights after step {}", p.steps - 1);
    let rows = [
        (steps, p.loss, String::new()),
        ("gradient of step 0".to_string(), p.gradient(), worst(&p.gradients)),
        (behind, p.weight(), worst(&p.weights)),
    ];
    for (what, difference, path) in rows {
        table.row([what, scientific(difference), scientific(p.tolerance), path]);
    }
    let mut out = heading("Parity with one rank (relative to each tensor's largest value)") + &table.render();
    if r.one.len() as u64 > p.steps {
        out += &format!("  over all {} steps the losses drift apart by {}\n", r.one.len(), scientific(p.drift));
    }
    for (what, all) in [("gradients", &p.gradients), ("weights", &p.weights)] {
        let wrong: Vec<&Worst> = all.iter().filter(|w| w.difference > p.tolerance).collect();
        if wrong.is_empty() {
            continue;
        }
        out += &heading(&format!("{} of {} {what} differ", wrong.len(), all.len()));
        let mut table = Table::new(&["tensor", "difference"]).right(&[1]);
        wrong.iter().take(WORST).for_each(|w| table.row([w.path.clone(), scientific(w.difference)]));
        out += &table.render();
    }
    out
}

fn traffic(r: &Rehearsal) -> String {
    if r.traffic.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["axis", "predicted", "moved", ""]).right(&[1, 2]);
    for m in &r.traffic {
        table.row([m.axis, &exact(m.predicted_bytes), &exact(m.moved_bytes), same(m.predicted_bytes, m.moved_bytes)]);
    }
    heading("Bytes put into calls in a step, all ranks together") + &table.render()
}

fn same(a: u64, b: u64) -> &'static str {
    if a == b { "exact" } else { "\x1b[1;31mdiffers\x1b[0m" }
}

/// Ranks that hold the same stand on one line.
fn memory(r: &Rehearsal) -> String {
    let mut table = Table::new(&["line", "ranks", "counted", "held", ""]).right(&[2, 3]);
    for (name, line) in Line::ALL {
        let mut rows: Vec<(u64, u64, Vec<usize>)> = Vec::new();
        for l in r.memory.iter().filter(|l| l.line == *line) {
            match rows.iter_mut().find(|(c, h, _)| *c == l.predicted_bytes && *h == l.held_bytes) {
                Some((.., ranks)) => ranks.push(l.rank),
                None => rows.push((l.predicted_bytes, l.held_bytes, vec![l.rank])),
            }
        }
        let is_routed = *line == Line::Saved && !r.load.is_empty();
        for (i, (counted, held, ranks)) in rows.into_iter().enumerate() {
            let name = if i == 0 { *name } else { "" };
            let verdict = if counted == held {
                "exact".to_string()
            } else if is_routed {
                format!("{:+.1}% by routing", 100.0 * (held as f64 / counted as f64 - 1.0))
            } else {
                same(counted, held).to_string()
            };
            table.row([name, &shorten(&crate::commands::ranges(&ranks), 24), &exact(counted), &exact(held), &verdict]);
        }
    }
    let title =
        if r.load.is_empty() { "Bytes a rank holds" } else { "Bytes a rank holds (counted for balanced routing)" };
    heading(title) + &table.render()
}

fn load(r: &Rehearsal) -> String {
    if r.load.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["expert layer", "fewest", "mean", "most", "most / mean", "experts without tokens"])
        .right(&[0, 1, 2, 3, 4]);
    for l in &r.load {
        let (least, most) = (l.tokens.iter().min().unwrap_or(&0), l.tokens.iter().max().unwrap_or(&0));
        let mean = l.tokens.iter().sum::<u64>() as f64 / l.tokens.len() as f64;
        let idle: Vec<usize> = (0..l.tokens.len()).filter(|e| l.tokens[*e] == 0).collect();
        let idle = if idle.is_empty() { "none".to_string() } else { crate::commands::ranges(&idle) };
        let over = format!("{:.2}", *most as f64 / mean.max(f64::MIN_POSITIVE));
        table.row([l.layer.to_string(), least.to_string(), format!("{mean:.0}"), most.to_string(), over, idle]);
    }
    heading("Router load: tokens an expert got, all steps") + &table.render()
}

fn verdict(ask: &Ask, prepared: &Prepared, r: &Rehearsal) -> String {
    let world = ranks(prepared.layout.world);
    let exact_axes = r.traffic.iter().filter(|m| m.predicted_bytes == m.moved_bytes).count();
    let word = if r.parity.passes() {
        format!(
            "{GOOD}the split is right{RESET}: {world} compute what one computes, to {}",
            scientific(r.parity.tolerance)
        )
    } else {
        format!("{BAD}the split is not right{RESET}: {world} compute something else than one")
    };
    let traffic = match r.traffic.len() {
        0 => String::new(),
        all => format!("; {exact_axes} of {all} axes move what was predicted"),
    };
    let (one, many) = r.seconds;
    format!("\n{word} in {}{traffic}. {one:.1} s on one rank, {many:.1} s on {world}.\n", ask.number)
}

/// How it ended on every rank.
pub fn endings(endings: &[Ending], seconds: f64) -> String {
    let all: usize = endings.iter().map(|e| e.ranks.len()).sum();
    let mut out = heading(&format!("The run ended on {} after {seconds:.1} s", ranks(all as u64)));
    for ending in endings {
        let who = crate::commands::ranges(&ending.ranks);
        let word = if ending.ranks.len() == 1 { "rank" } else { "ranks" };
        out += &wrap(&format!("{word} {who}: {} [{}]", ending.finding.message, ending.finding.rule), "  ", 110);
        if let Some(hint) = &ending.finding.hint {
            out += &wrap(&format!("hint: {hint}"), "    ", 110);
        }
    }
    out
}
