//! The same question over several clusters and sequence lengths: a table, CSV, and a plot.

use super::text::{flags_of, seconds, ways_out};
use super::trust::range;
use super::{Wanted, with_solution};
use crate::args::PlanArgs;
use crate::commands::model_line;
use crate::files::write_file;
use crate::outcome::{DOES_NOT_FIT, Outcome, Refusal, Report};
use crate::table::{Table, heading, wrap};
use cost::Interval;
use diag::{Blame, Finding, quote};
use launch::header::Header;
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
}

/// The clusters of `8,16,32xH200`, each as one.
pub fn clusters(on: &str) -> Result<Vec<String>, Refusal> {
    let Some((counts, rest)) = on.split_once('x').filter(|(counts, _)| counts.contains(',')) else {
        return Ok(vec![on.to_string()]);
    };
    let clusters: Vec<String> = counts.split(',').map(|count| format!("{}x{rest}", count.trim())).collect();
    const MOST: usize = 64;
    if clusters.len() > MOST {
        let message = format!("{} clusters are more than a sweep of {MOST}", clusters.len());
        let hint = "ask for fewer counts in --on, or in several sweeps";
        return Err(Finding::error("plan/sweep", Blame::Usage, "on", message).hint(hint).into());
    }
    Ok(clusters)
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
    let mut head = String::new();
    for &sequence in &sequences {
        for on in clusters {
            let wanted = Wanted::new(args, on, sequence)?;
            if head.is_empty() {
                head = model_line(&wanted.recipe) + "\n";
            }
            rows.push(with_solution(args, &wanted, |solved| {
                let best = solved.answer.best().map(|best| Best {
                    flags: flags_of(&best.case.recipe, &best.case.layout, best.case.options.offload),
                    seconds: best.step.seconds,
                    interval: best.step.interval.clone(),
                    tokens: best.step.tokens_per_second_per_device,
                    mfu: best.step.mfu,
                    headroom: best.fit.worst().headroom,
                    header: Header::of(&best.case),
                });
                Ok(Row { on: on.clone(), devices: solved.space.world, sequence: solved.space.sequence, best })
            })?);
        }
    }
    if let Some(path) = &args.search.csv {
        write_file(path, &csv(&rows))?;
    }
    if let Some(path) = &args.search.svg {
        write_file(path, &svg(&args.recipe.recipe, &rows))?;
    }
    let json = json!({ "sweep": rows.iter().map(value).collect::<Vec<_>>() });
    if rows.iter().any(|row| row.best.is_some()) {
        return Ok(Report::new(head + &table(&rows), json));
    }
    let verdict = "No layout fits on any of these clusters";
    let finding = Finding::error("plan/none", Blame::Layout, "layout", verdict.to_lowercase())
        .hint(ways_out(&args.layout.request(), args.search.headroom.bytes(u64::MAX)));
    let text = format!("\x1b[1;31m{verdict}\x1b[0m\n\n{head}{}", table(&rows));
    Ok(Report::new(text, json).refused(DOES_NOT_FIT, [finding]))
}

fn table(rows: &[Row]) -> String {
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

fn value(row: &Row) -> Value {
    let best = row.best.as_ref().map(|best| {
        json!({ "flags": best.flags, "seconds": best.seconds, "interval": best.interval, "tokens_per_second_per_device": best.tokens,
            "mfu": best.mfu, "headroom_bytes": best.headroom, "header": best.header })
    });
    json!({ "on": row.on, "devices": row.devices, "seq": row.sequence, "best": best })
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

/// Colours that stay apart in print.
const COLOURS: &[&str] = &["#4878a8", "#d98b3a", "#6aa5a9", "#c3564a", "#8d6cab", "#7a9a4c"];

/// Tokens a second on one device against devices, a line for every sequence length. Devices stand
/// on a logarithmic axis, so that equal factors are equal steps.
fn svg(recipe: &str, rows: &[Row]) -> String {
    const LEFT: f64 = 90.0;
    const TOP: f64 = 56.0;
    const WIDTH: f64 = 560.0;
    const HEIGHT: f64 = 300.0;
    let most = rows.iter().filter_map(|r| r.best.as_ref()).map(|b| b.tokens).fold(0.0, f64::max).max(1.0) * 1.1;
    let devices = |f: fn(f64, f64) -> f64, start: f64| rows.iter().map(|r| (r.devices as f64).log2()).fold(start, f);
    let (low, high) = (devices(f64::min, f64::INFINITY), devices(f64::max, 0.0));
    let x = |n: u64| LEFT + WIDTH * if high > low { ((n as f64).log2() - low) / (high - low) } else { 0.5 };
    let y = |tokens: f64| TOP + HEIGHT * (1.0 - tokens / most);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"15\">{}: tokens/s on one device, best layout of each cluster</text>\n",
        LEFT + WIDTH + 150.0,
        TOP + HEIGHT + 60.0,
        quote::xml(recipe)
    );
    for step in 0..=4 {
        let tokens = most * f64::from(step) / 4.0;
        let at = y(tokens);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + WIDTH,
            LEFT - 8.0,
            at + 4.0,
            count(tokens as u64)
        );
    }
    let mut counts: Vec<u64> = rows.iter().map(|row| row.devices).collect();
    counts.sort_unstable();
    counts.dedup();
    for n in counts {
        let _ =
            writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{n}</text>", x(n), TOP + HEIGHT + 20.0);
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">devices</text>",
        LEFT + WIDTH / 2.0,
        TOP + HEIGHT + 44.0
    );
    let mut sequences: Vec<u64> = rows.iter().map(|row| row.sequence).collect();
    sequences.dedup();
    for (i, sequence) in sequences.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let here = rows.iter().filter(|row| row.sequence == *sequence);
        let points: Vec<(f64, f64)> =
            here.filter_map(|row| row.best.as_ref().map(|best| (x(row.devices), y(best.tokens)))).collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in &points {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
        }
        let legend = TOP + 12.0 + 20.0 * i as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{legend:.1}\">sequence {sequence}</text>",
            LEFT + WIDTH + 16.0,
            legend - 10.0,
            LEFT + WIDTH + 34.0
        );
    }
    out + "</svg>\n"
}
