//! `fidelity`: our predictions against measured rows.

use crate::args::FidelityArgs;
use crate::files::read_rows;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading};
use diag::{Blame, Finding};
use memory::fidelity::{Judged, SummaryLine, judge, summarise};
use serde_json::{Map, Value, json};
use units::Bytes;

pub fn run(args: &FidelityArgs) -> Outcome {
    let rows: Vec<Judged> = read_rows(&args.rows)?.iter().map(judge).collect();
    if rows.is_empty() {
        let message = format!("`{}` has no rows", args.rows.display());
        return Err(Finding::error("file/rows", Blame::Usage, args.rows.display().to_string(), message).into());
    }
    let lines = summarise(&rows);
    let modelled = rows.iter().filter(|r| r.why_not.is_none()).count();
    let mut text = format!("{} rows, {modelled} modelled\n", rows.len()) + &summary_text(&lines);
    text += &rows_text(&rows, args.all);
    text += &why_not_text(&rows);
    let differ = |r: &Judged| {
        r.params_differ.map(|(ours, theirs)| json!({ "name": r.name, "predicted": ours, "measured": theirs }))
    };
    let mismatches: Vec<Value> = rows.iter().filter_map(differ).collect();
    if !mismatches.is_empty() {
        text += &format!("\n{} rows hold another number of parameters than we say\n", mismatches.len());
    }
    let json = json!({
        "summary": summary_json(&lines, rows.len(), modelled), "rows": rows.iter().map(row_json).collect::<Vec<_>>(),
        "param_mismatches": mismatches,
    });
    Ok(Report::new(text, json))
}

fn percent(x: f64) -> String {
    format!("{:.3}%", 100.0 * x)
}

fn summary_text(lines: &[SummaryLine]) -> String {
    let mut table = Table::new(&["kind or source", "figure", "rows", "mean |error|", "median", "worst |error|"])
        .right(&[2, 3, 4, 5]);
    for line in lines {
        let rows = line.rows.to_string();
        table.row([&line.group, line.figure, &rows, &percent(line.mean), &percent(line.median), &percent(line.worst)]);
    }
    heading("Errors") + &table.render()
}

fn rows_text(rows: &[Judged], all: bool) -> String {
    const SHOWN: usize = 10;
    let mut listed: Vec<&Judged> = rows.iter().filter(|r| r.why_not.is_none()).collect();
    if !all {
        listed.sort_by(|a, b| b.worst_error().total_cmp(&a.worst_error()));
        listed.truncate(SHOWN);
    }
    let mut table = Table::new(&["row", "kind", "figure", "measured", "predicted", "error"]).right(&[3, 4, 5]);
    for row in listed {
        for figure in &row.figures {
            let (measured, predicted) = (Bytes(figure.measured).to_string(), Bytes(figure.predicted).to_string());
            let error = format!("{:+.3}%", 100.0 * figure.error());
            table.row([row.name.as_str(), row.kind, figure.name, &measured, &predicted, &error]);
        }
    }
    heading(if all { "Rows" } else { "The ten furthest off (--all shows every row)" }) + &table.render()
}

fn why_not_text(rows: &[Judged]) -> String {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for why in rows.iter().filter_map(|r| r.why_not.as_deref()) {
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
    let figures = |value: fn(&memory::fidelity::Figure) -> Value| {
        Value::Object(row.figures.iter().map(|f| (f.name.to_string(), value(f))).collect::<Map<_, _>>())
    };
    json!({
        "name": row.name, "kind": row.kind, "source": row.source, "measured": figures(|f| json!(f.measured)),
        "predicted": figures(|f| json!(f.predicted)), "error": figures(|f| json!(f.error())), "why_not": row.why_not,
    })
}
