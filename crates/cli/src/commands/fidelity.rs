//! `fidelity`: our predictions against measured rows.

mod row;

use crate::args::FidelityArgs;
use crate::files::read_rows;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, wrap};
use diag::{Blame, Finding, quote};
use fidelity::{
    Coverage, Figure, Judged, LeftOut, Mistyped, Part, Pricing, Regret, SummaryLine, Sweep, TIME_TARGET, Why, coverage,
    judge_within, leave_one_out, mistyped, regrets, residuals, summarise, sweeps,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub fn run(args: &FidelityArgs) -> Outcome {
    let parts: Vec<Part> = match args.only {
        Some(part) => vec![part],
        None => Part::ALL.iter().map(|(_, part)| *part).collect(),
    };
    let pricing = if args.as_planned { Pricing::AsPlanned } else { Pricing::AsRun };
    let read = read_rows(&args.rows)?;
    let wrong = wrong_types(args, &read);
    if !wrong.is_empty() {
        return Err(wrong.into());
    }
    if let Some(name) = &args.row {
        return row::shown(args, name, &read, pricing);
    }
    let allowed = args.work.of_an_answer().operations;
    let rows: Vec<Judged> = read.iter().map(|(_, row)| judge_within(row, &parts, pricing, allowed)).collect();
    if rows.is_empty() {
        let message = format!("`{}` has no rows", args.rows.display());
        return Err(Finding::error("file/rows", Blame::Usage, args.rows.display().to_string(), message).into());
    }
    if args.residuals {
        return Ok(residuals_report(args, &rows));
    }
    let (lines, ranks) = (summarise(&rows), sweeps(&rows));
    let regret = regrets(&rows);
    let left_out = if args.leave_one_out { leave_one_out(&rows, &residuals(&rows)) } else { Vec::new() };
    let modelled = rows.iter().filter(|r| r.is_modelled()).count();
    let covered: Vec<(Part, Coverage)> = parts.iter().map(|part| (*part, coverage(&rows, *part))).collect();
    let mut text = format!("{} rows, {modelled} modelled{}\n", rows.len(), coverage_text(&covered, rows.len()));
    if let agreed @ 1.. = agreed(&rows).count() {
        text += &format!("{agreed} of them ran out of memory, and we say that it does not fit\n");
    }
    if args.as_planned {
        let who = "Steps are priced with the options `plan` has for their engine, in the rows' formats, and not with \
                   what the rows say they ran.";
        text += &wrap(who, "", WIDTH);
    }
    text += &(summary_text(&lines) + &sweeps_text(&ranks) + &regret_text(&regret) + &undecided_text(&rows));
    text += &left_out_text(&left_out);
    text += &rows_text(&rows, args.all);
    text += &(agreed_text(&rows) + &why_not_text(&rows));
    let differ = |r: &Judged| {
        r.params_differ.map(|(ours, theirs)| json!({ "name": r.name, "predicted": ours, "measured": theirs }))
    };
    let mismatches: Vec<Value> = rows.iter().filter_map(differ).collect();
    if !mismatches.is_empty() {
        text += &format!("\n{} rows hold another number of parameters than we say\n", mismatches.len());
    }
    let mut summary = summary_json(&lines, rows.len(), modelled);
    summary["coverage"] =
        covered.iter().map(|(part, c)| (part.name().to_string(), json!(c))).collect::<Map<_, _>>().into();
    summary["sweeps"] = json!(ranks);
    summary["regret"] = json!(regret);
    summary["undecided"] = json!(undecided(&rows));
    if args.leave_one_out {
        summary["leave_one_out"] = json!(left_out);
    }
    let json = json!({
        "as_planned": args.as_planned, "summary": summary, "rows": rows.iter().map(row_json).collect::<Vec<_>>(),
        "param_mismatches": mismatches,
    });
    Ok(Report::new(text, json))
}

/// Residuals as a file, behind the command that wrote it.
fn residuals_report(args: &FidelityArgs, rows: &[Judged]) -> Report {
    let made = residuals(rows);
    let only = if args.only == Some(Part::Time) { " --only step_time" } else { "" };
    let text = format!(
        "# How far priced steps lay from published ones: logarithms of measured over priced, by class and source,\n\
         # and of ratios within sweeps. `cost::interval` reads it. Written by\n\
         #   shardwright fidelity {}{only} --residuals > data/time/residuals.toml\n{}",
        quote::typed(&args.rows),
        made.write()
    );
    Report::file(text, json!(made))
}

/// How much slower the layout we would pick was than the fastest measured.
fn regret_text(regret: &[Regret]) -> String {
    if regret.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["source", "sweeps", "within 2%", "mean", "worst"]).right(&[1, 2, 3, 4]);
    for one in regret {
        let rows = match (one.without_stages, one.with_undecided) {
            (true, _) => ", without stages",
            (_, true) => ", undecided rows too",
            (false, false) => "",
        };
        let source = format!("{}{rows}", one.source);
        let [near, mean, worst] = [one.near, one.mean, one.worst].map(|share| format!("{:.1}%", 100.0 * share));
        table.row([source, one.sweeps.to_string(), near, mean, worst]);
    }
    let what = "one model, engine, format, batch and sequence on one cluster, four layouts or more: time of the one we \
                price lowest beyond the fastest measured";
    heading("Regret within sweeps") + &table.render() + &wrap(what, "  ", WIDTH)
}

/// Rows by what they do not say although it would decide their step.
fn undecided(rows: &[Judged]) -> BTreeMap<&'static str, usize> {
    let mut found = BTreeMap::new();
    rows.iter().filter_map(|row| row.undecided).for_each(|why| *found.entry(why).or_insert(0) += 1);
    found
}

fn undecided_text(rows: &[Judged]) -> String {
    let found = undecided(rows);
    if found.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["rows", "do not say"]).right(&[0]);
    found.iter().for_each(|(why, count)| table.row([count.to_string(), (*why).to_string()]));
    let what = "it would decide their step: they have an error above, and no part in ranks, regret and intervals";
    heading("Undecided") + &table.render() + &wrap(what, "  ", WIDTH)
}

fn left_out_text(left_out: &[LeftOut]) -> String {
    if left_out.is_empty() {
        return String::new();
    }
    let head = ["source left out", "rows", "median error", "inside the interval", "half its width"];
    let mut table = Table::new(&head).right(&[1, 2, 3, 4]);
    for one in left_out {
        let [median, inside, width] = [one.median, one.inside, one.width].map(|share| format!("{:.1}%", 100.0 * share));
        table.row([one.source.clone(), one.rows.to_string(), median, inside, width]);
    }
    let what = "intervals are made of all other sources, and should hold 8 of 10 rows";
    heading("Every source by what the others say") + &table.render() + &wrap(what, "  ", WIDTH)
}

/// Findings listed of a file that is wrong throughout.
const MOST_NAMED: usize = 20;

/// Fields of another type than their row's kind has, each with its line.
fn wrong_types(args: &FidelityArgs, rows: &[(usize, Value)]) -> Vec<Finding> {
    let file = args.rows.display();
    let finding = |line: usize, wrong: Mistyped| {
        let message = format!("line {line} of `{file}`: {}", wrong.why);
        Finding::error("fidelity/type", Blame::Usage, format!("{file}:{line}:{}", wrong.field), message)
            .hint("leave a field out, or null, where nothing is known of it")
    };
    let all = rows.iter().flat_map(|(line, row)| mistyped(row).into_iter().map(move |wrong| finding(*line, wrong)));
    all.take(MOST_NAMED).collect()
}

/// Of the rows that could be scored, how many were; nothing where that is all rows and one part.
fn coverage_text(covered: &[(Part, Coverage)], rows: usize) -> String {
    let scored: Vec<_> = covered.iter().filter(|(_, c)| c.ready > 0).collect();
    if scored.len() < 2 && scored.iter().all(|(_, c)| c.ready == rows) {
        return String::new();
    }
    let words: Vec<String> =
        scored.iter().map(|(part, c)| format!("{} {} of {}", part.name(), c.modelled, c.ready)).collect();
    format!(": {}{}", words.join(", "), if scored.len() == 1 { " that say enough" } else { "" })
}

fn sweeps_text(ranks: &[Sweep]) -> String {
    if ranks.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["sweep", "rows", "step time", "tokens a second and device"]).right(&[1, 2, 3]);
    for sweep in ranks {
        let [time, rate] = [sweep.step_time, sweep.tokens_per_second].map(|r| format!("{r:.3}"));
        table.row([&sweep.name, &sweep.rows.to_string(), &time, &rate]);
    }
    heading("Rank correlation within sweeps") + &table.render()
}

/// Columns that a terminal has at least.
const WIDTH: usize = 80;

/// A share with its sign, none where it rounds to nothing.
fn signed(share: f64, digits: usize) -> String {
    let text = format!("{:+.digits$}%", 100.0 * share);
    let is_zero = text.chars().all(|c| !c.is_ascii_digit() || c == '0');
    if is_zero { text[1..].to_string() } else { text }
}

fn percent(share: f64) -> String {
    format!("{:.3}%", 100.0 * share)
}

/// The group of the target by a short name: its own is longer than a line.
const TARGET: &str = "target";

fn summary_text(lines: &[SummaryLine]) -> String {
    let mut table = Table::new(&["kind, source or device", "figure", "rows", "mean", "median", "leans", "worst"])
        .right(&[2, 3, 4, 5, 6]);
    let is_target = |line: &SummaryLine| line.group.starts_with(TIME_TARGET);
    for line in lines {
        let [mean, median, worst] = [line.mean, line.median, line.worst].map(percent);
        let group = line.group.replace(TIME_TARGET, TARGET);
        table.row([&group, line.figure, &line.rows.to_string(), &mean, &median, &signed(line.bias, 1), &worst]);
    }
    let note = match lines.iter().any(is_target) {
        true => wrap(&format!("{TARGET}: {TIME_TARGET}"), "  ", WIDTH),
        false => String::new(),
    };
    heading("Errors without their sign; `leans` is the median with it") + &table.render() + &note
}

fn rows_text(rows: &[Judged], all: bool) -> String {
    const SHOWN: usize = 10;
    let mut listed: Vec<&Judged> = rows.iter().filter(|r| r.why_not().is_none()).collect();
    let is_cut = !all && listed.len() > SHOWN;
    if !all {
        listed.sort_by(|a, b| b.worst_error().total_cmp(&a.worst_error()));
        listed.truncate(SHOWN);
    }
    let mut table = Table::new(&["row", "kind", "figure", "measured", "predicted", "error"]).right(&[3, 4, 5]);
    for row in listed {
        for figure in &row.figures {
            let (measured, predicted) = (figure.measured.to_string(), figure.predicted.to_string());
            let error = signed(figure.error(), 3);
            table.row([row.name.as_str(), row.kind, figure.name, &measured, &predicted, &error]);
        }
    }
    heading(if is_cut { "The ten furthest off (--all shows every row)" } else { "Rows" }) + &table.render()
}

/// Runs that found no memory, and that we refuse too.
fn agreed(rows: &[Judged]) -> impl Iterator<Item = (&Judged, &Why)> {
    rows.iter().filter_map(|row| Some((row, row.why_not().filter(|why| why.is_agreement())?)))
}

fn agreed_text(rows: &[Judged]) -> String {
    let lines: String =
        agreed(rows).map(|(row, why)| format!("  {}\n", quote::sentence(&format!("{}: {why}", row.name)))).collect();
    if lines.is_empty() { lines } else { heading("Ran out of memory") + &lines }
}

fn why_not_text(rows: &[Judged]) -> String {
    let mut reasons: Vec<(String, usize)> = Vec::new();
    for refusal in rows.iter().flat_map(|r| &r.refusals).filter(|r| !r.why.is_agreement()) {
        let why = refusal.why.to_string();
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, times)) => *times += 1,
            None => reasons.push((why, 1)),
        }
    }
    if reasons.is_empty() {
        return String::new();
    }
    reasons.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    let lines: String = reasons.iter().map(|(why, times)| counted(*times, why)).collect();
    heading("Not modelled, and why") + &lines
}

/// A reason behind how often it was met, its later lines below the first.
fn counted(times: usize, why: &str) -> String {
    const INDENT: &str = "         ";
    format!("  {times:>5}  {}", wrap(why, INDENT, WIDTH).trim_start())
}

/// Figures of one group as an object, by a value of their lines.
fn by_figure(lines: &[SummaryLine], group: &str, value: fn(&SummaryLine) -> Value) -> Value {
    let mine = lines.iter().filter(|l| l.group == group);
    Value::Object(mine.map(|l| (l.figure.to_string(), value(l))).collect::<Map<_, _>>())
}

fn group_json(lines: &[SummaryLine], group: &str) -> Value {
    json!({
        "rows": by_figure(lines, group, |l| json!(l.rows)), "mean_abs_error": by_figure(lines, group, |l| json!(l.mean)),
        "median_abs_error": by_figure(lines, group, |l| json!(l.median)),
        "worst_abs_error": by_figure(lines, group, |l| json!(l.worst)),
    })
}

fn summary_json(lines: &[SummaryLine], rows: usize, modelled: usize) -> Value {
    let mut groups: Vec<&str> = lines.iter().map(|l| l.group.as_str()).filter(|g| *g != "all").collect();
    groups.dedup();
    let by_kind: Map<String, Value> = groups.iter().map(|g| (g.to_string(), group_json(lines, g))).collect();
    json!({
        "rows": rows, "modelled": modelled, "mean_abs_error": by_figure(lines, "all", |l| json!(l.mean)),
        "worst_abs_error": by_figure(lines, "all", |l| json!(l.worst)), "by_kind": by_kind,
    })
}

fn row_json(row: &Judged) -> Value {
    let figures = |value: fn(&Figure) -> Value| {
        Value::Object(row.figures.iter().map(|f| (f.name.to_string(), value(f))).collect::<Map<_, _>>())
    };
    let refused: Map<String, Value> =
        row.refusals.iter().filter_map(|r| Some((r.part?.name().to_string(), json!(r.why.to_string())))).collect();
    json!({
        "name": row.name, "kind": row.kind, "source": row.source, "device": row.device,
        "measured": figures(|f| f.measured.json()), "predicted": figures(|f| f.predicted.json()),
        "error": figures(|f| json!(f.error())), "why_not": row.why_not().map(ToString::to_string),
        "modelled": row.is_modelled(), "refused": refused, "undecided": row.undecided,
    })
}
