//! A run on one page.

use super::Run;
use crate::args::BudgetArgs;
use crate::commands::plan::text::{difference, overload, seconds};
use crate::commands::plan::{Solved, trust};
use crate::commands::shorten;
use crate::table::{Table, heading, wrap};
use case::asked::PrecisionChoice;
use case::options::{Format, Scaling};
use memory::fit::{Fit, Verdict};
use search::Choice;
use units::{Bytes, count, exact};

/// Days, hours or minutes, as people say them.
pub fn length(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => "no end".to_string(),
        s if s < 1.0 => format!("{:.0} ms", 1e3 * s),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 2.0 * 86_400.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// A number of days.
pub fn days(days: f64) -> String {
    match days {
        d if !d.is_finite() => "never".to_string(),
        d if d < 10.0 => format!("{d:.2}"),
        d if d < 1000.0 => format!("{d:.1}"),
        d => exact(d as u64),
    }
}

/// Money, without a currency: in the unit of the price.
pub fn money(cost: f64) -> String {
    if cost.is_finite() { count(cost as u64) } else { "no end".to_string() }
}

fn large(value: f64) -> String {
    if !value.is_finite() {
        return "no end".to_string();
    }
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v => count(v as u64),
    }
}

/// The run: how long, how much, how much of it counts.
pub fn run(args: &BudgetArgs, run: &Run) -> String {
    let budget = &run.budget;
    let mut text = heading(&format!("{} tokens", count(run.tokens)));
    let mut table = Table::new(&["", "", ""]).right(&[1]);
    let span = format!("{} to {} in 8 of 10 such runs", days(budget.days_low), days(budget.days_high));
    table.row(["days".to_string(), days(budget.days), span]);
    table.row(["steps".to_string(), exact(run.steps()), batches(run)]);
    let useful = format!("{:.1}%", 100.0 * run.goodput.useful);
    table.row(["useful".to_string(), useful, "of the time goes into steps that count".to_string()]);
    table.row(["device-hours".to_string(), large(budget.device_hours), String::new()]);
    match (budget.energy_mwh, run.watts) {
        (Some(energy), Some(watts)) => {
            let with = if run.has_node_power { "its part of the node with it" } else { "the device alone" };
            let how = format!("{watts:.0} W a device at most, {with}, PUE {}", run.pue);
            table.row(["MWh".to_string(), large(energy), how]);
        }
        _ => table.row(["MWh", "-", "the device's file does not say what it draws"]),
    }
    match (budget.cost, run.price) {
        (Some(cost), Some(price)) => {
            table.row(["cost".to_string(), money(cost), format!("at {price} a device-hour")]);
        }
        _ if args.price_per_device_hour.is_some() => table.row(["cost", "-", "no price of this device was given"]),
        _ => {}
    }
    text += &body(&table);
    text + &goodput(run)
}

/// A table whose columns need no names.
fn body(table: &Table) -> String {
    table.render().lines().skip(1).map(|line| format!("{line}\n")).collect()
}

fn batches(run: &Run) -> String {
    match run.levels.as_slice() {
        [only] => format!("of {} sequences", exact(only.batch)),
        [first, .., last] => format!(
            "the batch grows from {} to {} sequences in {} sizes",
            exact(first.batch),
            exact(last.batch),
            run.levels.len()
        ),
        [] => String::new(),
    }
}

/// Failures, checkpoints and what they leave, in the words of `receipt goodput`.
fn goodput(run: &Run) -> String {
    let (terms, share) = (&run.terms, &run.goodput);
    let of = |share: f64| format!("{:.1}%", 100.0 * share);
    let mut text = heading("Goodput");
    text += &wrap(
        &format!(
            "useful steps {}, down after failures {}, work redone {}, checkpoints saved {}",
            of(share.useful),
            of(share.down),
            of(share.redone),
            of(share.saved)
        ),
        "  ",
        100,
    );
    let borrowed = if run.failures.is_borrowed { ", H100's rate: none of this device was published" } else { "" };
    text += &wrap(
        &format!(
            "an interruption every {} ({} over {} nodes{borrowed}), each {} down",
            length(terms.between),
            length(run.failures.node_seconds),
            exact(run.nodes),
            length(terms.down)
        ),
        "  ",
        100,
    );
    let wait = if terms.lag > 0.0 {
        format!("steps wait {} for it, and it is safe {} later", length(terms.stall), length(terms.lag))
    } else {
        format!("steps wait {} for it", length(terms.stall))
    };
    text += &wrap(
        &format!(
            "set a checkpoint every {} steps ({}): {}, {} of it on the rank that writes most; {wait}",
            exact(run.every),
            length(run.every as f64 * run.step_seconds),
            Bytes(run.saves.bytes),
            Bytes(run.saves.rank_bytes)
        ),
        "  ",
        100,
    );
    text + &wrap(
        "sources: data/hardware/failures.toml; --node-mtbf, --restart, --storage-rate and --async-save say otherwise",
        "  ",
        100,
    )
}

/// What another batch, recompute or fp8 would buy.
pub fn instead(args: &BudgetArgs, solved: &Solved, best: &Choice, run: &Run) -> String {
    let row = |what: String, case: &case::Case| -> Option<[String; 5]> {
        let step = cost::step(case).ok()?;
        let other = Run::of(&BudgetArgs { ramp: None, ..args.clone() }, run.tokens, case, &step).ok()?;
        let cost = other.budget.cost.map_or(String::new(), money);
        let memory = match Fit::price(case, solved.space.question.margin()) {
            Ok(fit) if fit.verdict == Verdict::DoesNotFit => fit.verdict.name().to_string(),
            Ok(fit) => format!("{} left", Bytes(fit.tightest().headroom.max(0) as u64)),
            Err(_) => "unknown".to_string(),
        };
        Some([what, seconds(step.seconds), days(other.budget.days), cost, memory])
    };
    let mut rows = Vec::new();
    if best.case.options.format == Format::Bf16 {
        let fp8 = best.case.with(|asked| asked.state.precision = Some(PrecisionChoice::Scaled(Scaling::Tensorwise)));
        rows.extend(fp8.ok().and_then(|case| row("--precision fp8".to_string(), &case)));
    }
    for microbatches in [best.case.layout.microbatches / 2, best.case.layout.microbatches * 2] {
        let other = best.case.with(|asked| {
            asked.layout.gbs = None;
            asked.layout.microbatches = Some(microbatches);
        });
        if let Ok(case) = other
            && microbatches > 0
        {
            rows.extend(row(format!("--gbs {}", case.layout.global_batch), &case));
        }
    }
    let recompute = solved.answer.neighbours.iter().find(|neighbour| neighbour.axis == "recompute");
    if let Some(neighbour) = recompute
        && let Ok(case) = solved.space.case(&neighbour.point)
    {
        rows.extend(row(shorten(&difference(solved, best, &neighbour.point), 44), &case));
    }
    if rows.is_empty() {
        return String::new();
    }
    // A column that nothing stands in has no name either, and is not shown.
    let cost = if rows.iter().any(|row| !row[3].is_empty()) { "cost" } else { "" };
    let mut table = Table::new(&["instead", "step", "days", cost, "memory"]).right(&[1, 2, 3, 4]);
    rows.into_iter().for_each(|cells| table.row(cells));
    heading("What would change it") + &table.render()
}

/// How far the step is to be trusted, in a line.
pub fn step(solved: &Solved, best: &Choice) -> String {
    let step = &best.step;
    let mut text = format!(
        "  step {}, {}\n  {} tokens/s a device, {:.0} TFLOP/s (MFU {:.1}%), bubble {:.1}%; bound by {}\n",
        seconds(step.seconds),
        trust::spread(step),
        count(step.tokens_per_second_per_device as u64),
        step.tflops_per_device,
        100.0 * step.mfu,
        100.0 * step.bubble,
        step.bound
    );
    let worst = best.fit.worst();
    let left = Bytes(worst.headroom.max(0) as u64);
    text += &format!("  {} on the fullest rank (stage {}), {left} left\n", Bytes(worst.total()), worst.stage);
    text += &overload(solved, best);
    text + &wrap(&trust::such_runs(step), "  ", 100)
}
