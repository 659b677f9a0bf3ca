//! `fidelity`: our predictions against measured rows.

use crate::args::FidelityArgs;
use crate::files::read_rows;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading};
use diag::{Blame, Finding};
use fidelity::{Coverage, Figure, Judged, Part, Pricing, SummaryLine, Sweep, coverage, judge_parts, summarise, sweeps};
use serde_json::{Map, Value, json};

pub fn run(args: &FidelityArgs) -> Outcome {
    let parts: Vec<Part> = match args.only {
        Some(part) => vec![part],
        None => Part::ALL.iter().map(|(_, part)| *part).collect(),
    };
    let pricing = if args.as_planned { Pricing::AsPlanned } else { Pricing::AsRun };
    let rows: Vec<Judged> = read_rows(&args.rows)?.iter().map(|row| judge_parts(row, &parts, pricing)).collect();
    if rows.is_empty() {
        let message = format!("`{}` has no rows", args.rows.display());
        return Err(Finding::error("file/rows", Blame::Usage, args.rows.display().to_string(), message).into());
    }
    let (lines, ranks) = (summarise(&rows), sweeps(&rows));
    let modelled = rows.iter().filter(|r| r.is_modelled()).count();
    let covered: Vec<(Part, Coverage)> = parts.iter().map(|part| (*part, coverage(&rows, *part))).collect();
    let mut text = format!("{} rows, {modelled} modelled{}\n", rows.len(), coverage_text(&covered));
    text += &(summary_text(&lines) + &sweeps_text(&ranks) + &rows_text(&rows, args.all) + &why_not_text(&rows));
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
    let json = json!({
        "summary": summary, "rows": rows.iter().map(row_json).collect::<Vec<_>>(), "param_mismatches": mismatches,
    });
    Ok(Report::new(text, json))
}

/// Nothing where only one part of the rows could be scored.
fn coverage_text(covered: &[(Part, Coverage)]) -> String {
    let scored: Vec<_> = covered.iter().filter(|(_, c)| c.ready > 0).collect();
    if scored.len() < 2 {
        return String::new();
    }
    let words: Vec<String> =
        scored.iter().map(|(part, c)| format!("{} {} of {}", part.name(), c.modelled, c.ready)).collect();
    format!(": {}", words.join(", "))
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

fn percent(x: f64) -> String {
    format!("{:.3}%", 100.0 * x)
}

fn summary_text(lines: &[SummaryLine]) -> String {
    let mut table =
        Table::new(&["kind, source or device", "figure", "rows", "mean |error|", "median", "leans", "worst |error|"])
            .right(&[2, 3, 4, 5, 6]);
    for line in lines {
        let [mean, median, worst] = [line.mean, line.median, line.worst].map(percent);
        // Less than a twentieth of a percent leans nowhere.
        let leans = if line.bias.abs() < 5e-4 { "0.0%".to_string() } else { format!("{:+.1}%", 100.0 * line.bias) };
        table.row([&line.group, line.figure, &line.rows.to_string(), &mean, &median, &leans, &worst]);
    }
    heading("Errors") + &table.render()
}

fn rows_text(rows: &[Judged], all: bool) -> String {
    const SHOWN: usize = 10;
    let mut listed: Vec<&Judged> = rows.iter().filter(|r| r.why_not().is_none()).collect();
    if !all {
        listed.sort_by(|a, b| b.worst_error().total_cmp(&a.worst_error()));
        listed.truncate(SHOWN);
    }
    let mut table = Table::new(&["row", "kind", "figure", "measured", "predicted", "error"]).right(&[3, 4, 5]);
    for row in listed {
        for figure in &row.figures {
            let (measured, predicted) = (figure.measured.to_string(), figure.predicted.to_string());
            let error = format!("{:+.3}%", 100.0 * figure.error());
            table.row([row.name.as_str(), row.kind, figure.name, &measured, &predicted, &error]);
        }
    }
    heading(if all { "Rows" } else { "The ten furthest off (--all shows every row)" }) + &table.render()
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
    let lines: String = reasons.iter().map(|(why, times)| format!("  {times:>5}  {why}\n")).collect();
    heading("Not modelled, and why") + &lines
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
        "error": figures(|f| json!(f.error())), "why_not": row.why_not().map(ToString::to_string), "refused": refused,
    })
}
