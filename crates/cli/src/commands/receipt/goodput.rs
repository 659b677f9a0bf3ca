//! `receipt goodput`: where a job's time went, as a table and a picture.

use super::StoreArgs;
use super::sides::all;
use crate::files::write_file;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, wrap};
use ::receipt::goodput::{Goodput, Spent, goodput};
use clap::Args;
use diag::{Blame, Finding, quote};
use std::fmt::Write;
use std::path::PathBuf;

/// Arguments of `receipt goodput`.
#[derive(Args)]
pub struct GoodputArgs {
    /// Receipts of one job: every start of it
    #[arg(required = true, value_name = "RECEIPT")]
    pub receipts: Vec<String>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Write a picture, a bar a start
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

pub fn run(args: &GoodputArgs) -> Outcome {
    let receipts = all(&args.store, &args.receipts)?;
    let found = goodput(&receipts).ok_or_else(|| {
        let message = "no step and no event of these receipts says how long it took";
        let hint = "engines log seconds a step; the hook writes start, compile and checkpoint times too";
        Finding::error("receipt/no-time", Blame::Usage, "goodput", message).hint(hint)
    })?;
    let mut text = text(&found);
    if let Some(path) = &args.svg {
        let title = format!("{}: where its time went", receipts[0].identity.recipe);
        write_file(path, &svg(&found, &title))?;
        text += &format!("wrote {}\n", quote::shown(path));
    }
    Ok(Report::new(text, serde_json::to_value(&found).unwrap_or_default()))
}

/// A length of time as people say it.
fn length(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn text(found: &Goodput) -> String {
    let mut table = Table::new(&["time", "", "share"]).right(&[1, 2]);
    for (name, kind) in Spent::ALL {
        let Some(seconds) = found.spent.get(kind.name()).filter(|s| **s > 0.0) else { continue };
        table.row([name.to_string(), length(*seconds), format!("{:.1}%", 100.0 * seconds / found.seconds)]);
    }
    let starts =
        if found.attempts.len() == 1 { "1 start".to_string() } else { format!("{} starts", found.attempts.len()) };
    let mut out = format!(
        "{:.1}% of {} went into useful steps ({starts}, {} failures)\n",
        100.0 * found.useful,
        length(found.seconds),
        found.failures
    );
    out += &(heading("Where the time went") + &table.render());
    if let Some(step) = found.step_seconds {
        out += &format!("  a usual step takes {step:.4} s: the median behind warm-up\n");
    }
    if found.is_partial {
        out += &wrap(
            "some starts were recorded without times of day: what lies between steps is not in the whole",
            "  ",
            100,
        );
    }
    if let Some(interval) = found.interval {
        let now = interval.now.map_or(String::new(), |now| format!(" (it was every {})", length(now)));
        let words = format!(
            "a checkpoint every {} would lose least{now}: one takes {}, and a failure came every {} (Young 1974, \
             √(2 · saving · between failures))",
            length(interval.best),
            length(interval.saving),
            length(interval.between_failures)
        );
        out += &(heading("Checkpoints") + &wrap(&words, "  ", 100));
    }
    out
}

fn colour(kind: Spent) -> &'static str {
    match kind {
        Spent::Useful => "#7a9a4c",
        Spent::Start => "#9a9a9a",
        Spent::Setup => "#b8b8b8",
        Spent::Compile => "#8d6cab",
        Spent::Saving => "#4878a8",
        Spent::Loading => "#6aa5a9",
        Spent::Evaluation => "#a8c0d8",
        Spent::Redone => "#c3564a",
        Spent::Down => "#7c2d24",
        Spent::Slow => "#d98b3a",
        Spent::Skipped => "#e5b98a",
        Spent::Unexplained => "#dddddd",
    }
}

/// A bar a start, as long as it lasted.
fn svg(found: &Goodput, title: &str) -> String {
    const WIDTH: f64 = 640.0;
    const LEFT: f64 = 80.0;
    const BAR: f64 = 26.0;
    const GAP: f64 = 10.0;
    const TOP: f64 = 52.0;
    let longest = found.attempts.iter().map(|a| a.spent.values().sum::<f64>()).fold(f64::MIN_POSITIVE, f64::max);
    let legend = Spent::ALL.iter().filter(|(name, _)| found.spent.contains_key(name)).count();
    let bars = TOP + found.attempts.len() as f64 * (BAR + GAP);
    let height = bars + legend as f64 * 20.0 + 24.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"28\" font-size=\"15\">{}</text>\n",
        LEFT + WIDTH + 20.0,
        quote::xml(title)
    );
    for (at, attempt) in found.attempts.iter().enumerate() {
        let y = TOP + at as f64 * (BAR + GAP);
        let _ = writeln!(out, "<text x=\"10\" y=\"{:.1}\">start {}</text>", y + BAR * 0.65, attempt.number + 1);
        let mut x = LEFT;
        for (name, kind) in Spent::ALL {
            let seconds = attempt.spent.get(name).copied().unwrap_or(0.0).max(0.0);
            let wide = seconds / longest * WIDTH;
            let _ = writeln!(
                out,
                "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{wide:.2}\" height=\"{BAR}\" fill=\"{}\"><title>{name}: {}</title></rect>",
                colour(*kind),
                length(seconds)
            );
            x += wide;
        }
    }
    let shown = Spent::ALL.iter().filter(|(name, _)| found.spent.contains_key(name));
    for (at, (name, kind)) in shown.enumerate() {
        let y = bars + 8.0 + at as f64 * 20.0;
        let share = 100.0 * found.spent[name] / found.seconds;
        let _ = writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">{name}: {share:.1}%</text>",
            colour(*kind),
            LEFT + 18.0,
            y + 10.0
        );
    }
    out + "</svg>\n"
}
