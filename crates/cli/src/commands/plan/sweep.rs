//! The same question over several clusters and sequence lengths: a table, CSV, and a plot.

use super::budget::{Run, text as budget};
use super::text::{flags_of, seconds, ways_out};
use super::trust::range;
use super::{Aim, Wanted, with_solution};
use crate::args::PlanArgs;
use crate::commands::model_line_at;
use crate::files::write_file;
use crate::outcome::{DOES_NOT_FIT, Outcome, Report};
use crate::pictures;
use crate::table::{Table, heading, wrap};
use cost::Interval;
use diag::{Blame, Finding, quote};
use draw::Picture;
use launch::header::Header;
use search::Choice;
use serde_json::{Value, json};
use std::fmt::Write;
use units::{Bytes, count};

/// One point of a sweep.
struct Row {
    on: String,
    devices: u64,
    sequence: u64,
    /// What was found; none when nothing fits.
    best: Option<Best>,
}

struct Best {
    flags: String,
    seconds: f64,
    interval: Option<Interval>,
    tokens: f64,
    mfu: f64,
    headroom: i64,
    header: Header,
    /// What the whole run comes to, where it was asked for.
    run: Option<Run>,
}

pub fn run(args: &PlanArgs, clusters: &[String]) -> Outcome {
    if let Some(flag) = args.seen.first() {
        let message = format!("`{flag}` writes one job, and a sweep has several");
        let finding = Finding::error("plan/sweep-seen", Blame::Usage, flag, message);
        return Err(finding
            .hint("ask for one cluster and one sequence, or `shardwright fit` one of the layouts")
            .into());
    }
    let sequences: Vec<Option<u64>> = match args.search.sequences.as_slice() {
        [] => vec![None],
        list => list.iter().map(|sequence| Some(*sequence)).collect(),
    };
    let mut rows = Vec::new();
    let (mut head, mut name) = (String::new(), Value::Null);
    for &sequence in &sequences {
        for on in clusters {
            let wanted = Wanted::new(args, on, sequence)?;
            if head.is_empty() {
                let one = wanted.pinned.sequence.filter(|_| sequences.len() == 1);
                head = model_line_at(&wanted.recipe, one) + "\n";
                name = json!(wanted.recipe.name);
            }
            rows.push(with_solution(args, &wanted, Aim::of(args), |solved| {
                let of = |best: &Choice| {
                    let run = |tokens| Run::of(&args.budget, tokens, &best.case, &best.step);
                    args.budget.tokens.map(run).transpose()
                };
                let run = solved.answer.best().map(of).transpose()?.flatten();
                let best = solved.answer.best().map(|best| Best {
                    run,
                    flags: flags_of(&best.case),
                    seconds: best.step.seconds,
                    interval: best.step.interval.clone(),
                    tokens: best.step.tokens_per_second_per_device,
                    mfu: best.step.mfu,
                    headroom: best.fit.tightest().headroom,
                    header: Header::of(&best.case),
                });
                Ok(Row { on: on.clone(), devices: solved.space.world, sequence: solved.space.sequence, best })
            })?);
        }
    }
    if let Some(path) = &args.search.csv {
        write_file(path, &csv(&rows))?;
    }
    let json = json!({ "recipe": name, "sweep": rows.iter().map(value).collect::<Vec<_>>() });
    pictures::write(&args.pictures, Picture::Sweep, &json)?;
    if rows.iter().any(|row| row.best.is_some()) {
        return Ok(Report::new(head + &table(&rows) + &bend(&rows), json));
    }
    let verdict = "No layout fits on any of these clusters";
    let finding = Finding::error("plan/none", Blame::Layout, "layout", verdict.to_lowercase())
        .hint(ways_out(&args.layout.request(), args.search.headroom.bytes(u64::MAX)));
    let text = format!("\x1b[1;31m{verdict}\x1b[0m\n\n{head}{}", table(&rows));
    Ok(Report::new(text, json).refused(DOES_NOT_FIT, [finding]))
}

/// A run on every cluster: one line each.
fn runs(rows: &[Row]) -> String {
    let columns = ["cluster", "step", "tokens/s a device", "MFU", "useful", "days", "device-hours", "MWh", "cost"];
    let mut table = Table::new(&columns).right(&[1, 2, 3, 4, 5, 6, 7, 8]).spare(&[&[7], &[3]]);
    for row in rows {
        let Some((best, run)) = row.best.as_ref().and_then(|best| Some((best, best.run.as_ref()?))) else {
            table.row([row.on.as_str(), "nothing fits", "", "", "", "", "", "", ""]);
            continue;
        };
        table.row([
            row.on.clone(),
            seconds(best.seconds),
            count(best.tokens as u64),
            format!("{:.1}%", 100.0 * best.mfu),
            format!("{:.1}%", 100.0 * run.goodput.useful),
            budget::days(run.budget.days),
            count(run.budget.device_hours as u64),
            run.budget.energy_mwh.map_or(String::new(), |energy| count(energy as u64)),
            run.budget.cost.map_or(String::new(), budget::money),
        ]);
    }
    heading("The run on each") + &table.render()
}

fn table(rows: &[Row]) -> String {
    if rows.iter().flat_map(|row| &row.best).any(|best| best.run.is_some()) {
        return runs(rows);
    }
    let columns =
        ["cluster", "sequence", "step", "8 of 10 such runs", "tokens/s a device", "MFU", "headroom", "best layout"];
    let mut table = Table::new(&columns).right(&[1, 2, 3, 4, 5, 6]);
    for row in rows {
        let cells = match &row.best {
            None => {
                ["-", "-", "-", "-", "-"].map(str::to_string).into_iter().chain(["nothing fits".to_string()]).collect()
            }
            Some(best) => vec![
                seconds(best.seconds),
                best.interval.as_ref().map_or_else(|| "-".to_string(), range),
                count(best.tokens as u64),
                format!("{:.1}%", 100.0 * best.mfu),
                Bytes(best.headroom.max(0) as u64).to_string(),
                best.flags.clone(),
            ],
        };
        table.row([row.on.clone(), row.sequence.to_string()].into_iter().chain(cells));
    }
    // One MFU never ranks lanes: whose figures these are stands below them.
    let mut headers: Vec<String> = rows.iter().flat_map(|row| &row.best).map(|best| best.header.to_string()).collect();
    headers.dedup();
    let headers: String = headers.iter().map(|header| wrap(header, "  ", 100)).collect();
    heading("Sweep") + &table.render() + &headers
}

/// Of the rate of a device on the best fleet, what still counts as scaling.
const SCALES: f64 = 0.9;

/// The largest fleet on which a device still does nearly what it does on the best.
fn bend(rows: &[Row]) -> String {
    let rates: Vec<(&Row, f64)> = rows.iter().filter_map(|row| Some((row, row.best.as_ref()?.tokens))).collect();
    let is_one_sequence = rates.iter().all(|(row, _)| row.sequence == rates[0].0.sequence);
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let scales = rates.iter().filter(|(_, rate)| *rate >= SCALES * best).max_by_key(|(row, _)| row.devices);
    let beyond = |last: u64| rates.iter().filter(move |(row, _)| row.devices > last).min_by_key(|(row, _)| row.devices);
    match scales.map(|(row, _)| (row, beyond(row.devices))) {
        Some((row, Some((next, rate)))) if rates.len() > 2 && is_one_sequence => wrap(
            &format!(
                "scaling bends behind {}: on {} a device does {:.0}% of what it does at best",
                row.on,
                next.on,
                100.0 * rate / best
            ),
            "  ",
            100,
        ),
        _ => String::new(),
    }
}

fn value(row: &Row) -> Value {
    let best = row.best.as_ref().map(|best| {
        json!({ "flags": best.flags, "seconds": best.seconds, "interval": best.interval, "tokens_per_second_per_device": best.tokens,
            "mfu": best.mfu, "headroom_bytes": best.headroom, "header": best.header })
    });
    let run = row.best.as_ref().and_then(|best| best.run.as_ref()).map(Run::json);
    let mut value = json!({ "on": row.on, "devices": row.devices, "seq": row.sequence, "best": best });
    if let Some(run) = run {
        value["budget"] = run;
    }
    value
}

fn csv(rows: &[Row]) -> String {
    let mut out =
        String::from("cluster,devices,seq,step_seconds,tokens_per_second_per_device,mfu,headroom_bytes,layout\n");
    for row in rows {
        let on = quote::csv(&row.on);
        let _ = match &row.best {
            None => writeln!(out, "{on},{},{},,,,,nothing fits", row.devices, row.sequence),
            Some(b) => writeln!(
                out,
                "{on},{},{},{:.6},{:.1},{:.4},{},{}",
                row.devices,
                row.sequence,
                b.seconds,
                b.tokens,
                b.mfu,
                b.headroom,
                quote::csv(&b.flags)
            ),
        };
    }
    out
}
