//! A rehearsal for people.

use crate::commands::{model_line, ranges, shorten};
use crate::table::{Table, heading, wrap};
use diag::quote;
use ledger::shardwright::Phase;
use recipe::Mixer;
use runtime::rehearse::{Ask, Ending, Number, Prepared, Rehearsal, Source, Worst};
use runtime::report::{Line, MemoryLine, PhaseLine};
use units::{change, exact};

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
    out += &format!("  {} steps in {} on {learns}; seed {}\n", ask.steps, ask.number, prepared.start.seed());
    if let Some(folder) = ask.load {
        out += &format!("  from {}, after step {}\n", quote::shown(folder), prepared.start.step());
    }
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
    let saved =
        super::saved(ask, prepared).map_or(String::new(), |folder| format!("saved {}\n", quote::shown(&folder)));
    losses(r, prepared.start.step())
        + &parity(r)
        + &traffic(r)
        + &memory(r)
        + &phases(prepared, r)
        + &load(r)
        + &verdict(ask, prepared, r)
        + &saved
}

fn losses(r: &Rehearsal, first: u64) -> String {
    let mut table = Table::new(&["step", "one rank", "all ranks", "difference"]).right(&[0, 1, 2, 3]);
    let last = r.one.len() - 1;
    let every = r.one.len().div_ceil(SHOWN_STEPS);
    for step in (0..=last).filter(|s| s % every == 0 || *s == last) {
        let (one, many) = (r.one[step], r.many[step]);
        let difference = scientific((one - many).abs() / one.abs());
        table.row([(first + step as u64).to_string(), format!("{one:.6}"), format!("{many:.6}"), difference]);
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

/// Ranks alike, together: those whose figures are the same.
fn alike<T: PartialEq>(rows: impl Iterator<Item = (usize, T)>) -> Vec<(T, Vec<usize>)> {
    let mut out: Vec<(T, Vec<usize>)> = Vec::new();
    for (rank, figures) in rows {
        match out.iter_mut().find(|(theirs, _)| *theirs == figures) {
            Some((_, ranks)) => ranks.push(rank),
            None => out.push((figures, vec![rank])),
        }
    }
    out
}

fn memory(r: &Rehearsal) -> String {
    let mut table = Table::new(&["line", "ranks", "predicted", "held", ""]).right(&[2, 3]);
    for (name, line) in Line::ALL {
        let of_line = r.memory.iter().filter(|l| l.line == *line);
        let rows = alike(of_line.map(|l| (l.rank, (l.predicted_bytes, l.held_bytes))));
        for (i, ((predicted, held), ranks)) in rows.into_iter().enumerate() {
            let name = if i == 0 { *name } else { "" };
            let ranks = shorten(&ranges(&ranks), 24);
            table.row([name, &ranks, &exact(predicted), &exact(held), same(predicted, held)]);
        }
    }
    let title = match r.load.is_empty() {
        true => "Bytes a rank holds",
        false => "Bytes a rank holds (predicted for where the routers sent tokens, in the step that kept the most)",
    };
    heading(title) + &table.render() + &excess(r)
}

/// What routing makes of saved activations, where it makes a difference.
fn excess(r: &Rehearsal) -> String {
    let over = |l: &&MemoryLine| l.held_bytes as f64 / l.balanced_bytes.max(1) as f64 - 1.0;
    let saved = r.memory.iter().filter(|l| l.line == Line::Saved);
    let Some(most) = saved.max_by(|a, b| over(a).total_cmp(&over(b))).filter(|_| !r.load.is_empty()) else {
        return String::new();
    };
    format!(
        "  balanced routing would save {} on rank {}; it saved {}, the worst of all ranks\n",
        exact(most.balanced_bytes),
        most.rank,
        change(over(&most))
    )
}

/// The most a rank had allocated in each phase: of every phase and stage the rank that is furthest
/// from its prediction.
fn phases(prepared: &Prepared, r: &Rehearsal) -> String {
    let counted: Vec<&PhaseLine> = r.phases.iter().filter(|p| p.peak_bytes.is_some()).collect();
    if counted.is_empty() {
        return String::new();
    }
    let each = prepared.layout.world / prepared.layout.pp.get();
    let mut table = Table::new(&["phase", "ranks", "predicted", "allocated", ""]).right(&[2, 3, 4]);
    for (name, phase) in Phase::ALL {
        for stage in 0..prepared.layout.pp.get() {
            let of_stage = |p: &&&PhaseLine| p.phase == *phase && p.rank as u64 / each == stage;
            let off = |p: &PhaseLine| p.error().unwrap_or(0.0);
            let furthest = counted.iter().filter(of_stage).max_by(|a, b| off(a).abs().total_cmp(&off(b).abs()));
            let Some(line) = furthest else { continue };
            let ranks: Vec<usize> = (stage * each..(stage + 1) * each).map(|r| r as usize).collect();
            table.row([
                if stage == 0 { *name } else { "" },
                &shorten(&ranges(&ranks), 24),
                &exact(line.predicted_peak_bytes),
                &exact(line.peak_bytes.unwrap_or(0)),
                &change(off(line)),
            ]);
        }
    }
    let other = counted.iter().map(|p| p.other_bytes).max().unwrap_or(0);
    heading("Most bytes at once, by phase (of each stage the rank furthest from its prediction)")
        + &table.render()
        + &format!("  beside these up to {} for names, tables, the batch and kernels\n", exact(other))
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
        let idle = if idle.is_empty() { "none".to_string() } else { ranges(&idle) };
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
    } else if is_undecided(ask, prepared, r) {
        format!("{BAD}this does not tell{RESET}: the first gradients agree, and then {world} and one part")
    } else {
        format!("{BAD}the split is not right{RESET}: {world} compute something else than one")
    };
    let traffic = match r.traffic.len() {
        0 => String::new(),
        all => format!("; {exact_axes} of {all} axes move what was predicted"),
    };
    let (one, many) = r.seconds;
    let hint = match is_undecided(ask, prepared, r) {
        true => "Experts and keys are chosen by comparison, which rounding in f32 may turn; --dtype f64 tells.\n",
        false => "",
    };
    format!("\n{word} in {}{traffic}. {one:.1} s on one rank, {many:.1} s on {world}.\n{hint}", ask.number)
}

/// Whether rounding alone may be why it failed: a wrong split shows in the first gradients.
fn is_undecided(ask: &Ask, prepared: &Prepared, r: &Rehearsal) -> bool {
    let chooses = prepared.recipe.uses(Mixer::Moe) || prepared.recipe.features.dsa().is_some();
    let agrees = r.parity.gradient() <= r.parity.tolerance;
    !r.parity.passes() && ask.number == Number::F32 && chooses && agrees
}

/// How it ended on every rank.
pub fn endings(endings: &[Ending], seconds: f64) -> String {
    let all: usize = endings.iter().map(|e| e.ranks.len()).sum();
    let mut out = heading(&format!("The run ended on {} after {seconds:.1} s", ranks(all as u64)));
    for ending in endings {
        let who = ranges(&ending.ranks);
        let word = if ending.ranks.len() == 1 { "rank" } else { "ranks" };
        out += &wrap(&format!("{word} {who}: {} [{}]", ending.finding.message, ending.finding.rule), "  ", 110);
        if let Some(hint) = &ending.finding.hint {
            out += &wrap(&format!("hint: {hint}"), "    ", 110);
        }
    }
    out
}
