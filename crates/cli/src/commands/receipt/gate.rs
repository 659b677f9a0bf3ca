//! `receipt gate`: a table and an exit code.

use super::sides::{all, changes_heading, changes_text, unlike};
use super::{StoreArgs, percent};
use crate::outcome::{NO, Outcome, Report};
use crate::table::{Table, heading};
use ::receipt::gate::{Alike, Passed, Thresholds, gate};
use case::asked::pick;
use clap::Args;
use diag::{Blame, Finding};
use serde_json::json;

/// Arguments of `receipt gate`.
#[derive(Args)]
pub struct GateArgs {
    /// The run to judge, or several of the same job
    #[arg(required = true, value_name = "RECEIPT")]
    pub receipts: Vec<String>,
    /// What it has to hold up to: a run, or several
    #[arg(long, value_name = "RECEIPT", num_args = 1.., required = true)]
    pub against: Vec<String>,
    /// Percent of seconds a step that may be added
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = share)]
    pub time: f64,
    /// Percent of peak memory that may be added
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5, value_parser = share)]
    pub memory: f64,
    /// How alike losses must be: exact, order (of accumulation), statistical (several runs a side) or any
    #[arg(long, value_parser = alike, default_value = "order")]
    pub loss: Alike,
    #[command(flatten)]
    pub store: StoreArgs,
}

fn alike(text: &str) -> Result<Alike, String> {
    pick(text, Alike::ALL)
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>().ok();
    number.filter(|n| n.is_finite() && *n >= 0.0).ok_or_else(|| format!("`{text}` is no percentage"))
}

pub fn run(args: &GateArgs) -> Outcome {
    let (baseline, candidate) = (all(&args.store, &args.against)?, all(&args.store, &args.receipts)?);
    let thresholds = Thresholds { time: args.time / 100.0, memory: args.memory / 100.0, loss: args.loss };
    let judged = match gate(&baseline, &candidate, thresholds) {
        Ok(judged) => judged,
        Err(findings) => return Ok(unlike(&findings)),
    };
    let mut table = Table::new(&["figure", "baseline", "candidate", "change", "allowed", ""]).right(&[1, 2, 3, 4]);
    for row in &judged.rows {
        let word = match row.passed {
            Passed::Yes => "ok",
            Passed::No => "WORSE",
            Passed::NotJudged => "not judged",
        };
        let change = row.change.map_or(String::new(), percent);
        table.row([row.figure.as_str(), &row.old, &row.new, &change, &row.allowed, word]);
    }
    let worse: Vec<&str> = judged.regressions().map(|row| row.figure.as_str()).collect();
    let count = judged.rows.iter().filter(|row| row.passed == Passed::Yes).count();
    let comparison = &judged.comparison;
    let mut text = heading("Gate") + &table.render();
    if !worse.is_empty() {
        text += &(changes_heading(comparison.layer) + &changes_text(&comparison.changes));
    }
    let verdict = match worse.len() {
        0 => format!("\x1b[1;32mpasses\x1b[0m: {count} figures hold\n"),
        n => format!("\x1b[1;31ma regression\x1b[0m: {n} of {} figures are worse\n", n + count),
    };
    text += &("\n".to_string() + &verdict);
    let json =
        json!({ "passes": worse.is_empty(), "thresholds": thresholds, "rows": judged.rows, "comparison": comparison });
    let report = Report::new(text, json);
    if worse.is_empty() {
        return Ok(report);
    }
    let message = format!("the candidate is worse in {}", worse.join(", "));
    Ok(report.refused(NO, [Finding::error("receipt/regression", Blame::Recipe, "gate", message)]))
}
