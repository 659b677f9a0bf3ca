//! `receipt list`: what is in the store.

use super::{StoreArgs, percent, short, word};
use crate::commands::plan::text::seconds;
use crate::outcome::{Outcome, Report};
use crate::table::Table;
use ::receipt::store::Row;
use clap::Args;
use serde_json::json;
use units::Bytes;

/// Arguments of `receipt list`.
#[derive(Args)]
pub struct ListArgs {
    /// Only receipts of this recipe
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
    /// Superseded ones as well
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

pub fn run(args: &ListArgs) -> Outcome {
    let store = args.store.open()?;
    let listed = store.list()?;
    let is_wanted = |row: &&Row| args.recipe.as_ref().is_none_or(|name| *name == row.recipe);
    let wanted: Vec<&Row> = listed.rows.iter().filter(is_wanted).collect();
    let is_old = |row: &Row| listed.superseded.contains_key(&row.id);
    let shown: Vec<&Row> = wanted.iter().copied().filter(|row| args.all || !is_old(row)).collect();
    let mut table = Table::new(&[
        "receipt",
        "recorded",
        "kind",
        "recipe",
        "on",
        "ended",
        "steps",
        "a step",
        "off",
        "held",
        "off",
        "superseded",
    ])
    .right(&[6, 7, 8, 9, 10])
    .spare(&[&[2], &[4], &[1], &[11]]);
    for row in &shown {
        let off = |measured: Option<f64>, promised: Option<f64>| match (measured, promised) {
            (Some(measured), Some(promised)) if promised > 0.0 => percent(measured / promised - 1.0),
            _ => String::new(),
        };
        let held = row.allocated_peak.or(row.reserved_peak);
        let promised = if row.allocated_peak.is_some() { row.promised_allocated } else { row.promised_reserved };
        let old = listed.superseded.get(&row.id).map_or(String::new(), |(with, why)| match with {
            Some(with) => format!("by {}: {why}", short(with)),
            None => format!("retracted: {why}"),
        });
        let state = row.state.as_deref().unwrap_or("").split(',').next().unwrap_or("");
        table.row([
            short(&row.id).to_string(),
            row.recorded.trim_end_matches('Z').replace('T', " "),
            word(row.kind),
            row.recipe.clone(),
            row.topology.as_deref().map_or("", |text| text.split('/').next().unwrap_or("")).to_string(),
            state.to_string(),
            row.steps.to_string(),
            row.step_seconds.map_or(String::new(), seconds),
            off(row.step_seconds, row.promised_seconds),
            held.map_or(String::new(), |bytes| Bytes(bytes).to_string()),
            off(held.map(|bytes| bytes as f64), promised.map(|bytes| bytes as f64)),
            old,
        ]);
    }
    let hidden = wanted.len() - shown.len();
    let mut text = if shown.is_empty() { String::new() } else { table.render() };
    let place = diag::quote::shown(store.root());
    text += &match (shown.len(), hidden) {
        (0, 0) => format!("no receipts in {place}\n`shardwright receipt record LAUNCH_DIR` records a run\n"),
        (n, 0) => format!("{n} in {place}\n"),
        (n, hidden) => format!("{n} in {place}, and {hidden} superseded (--all lists them)\n"),
    };
    let receipts: Vec<_> = wanted
        .iter()
        .map(|row| {
            let old = listed.superseded.get(&row.id);
            let mut value = json!(row);
            value["superseded"] = json!(old.map(|(with, because)| json!({ "with": with, "because": because })));
            value
        })
        .collect();
    let json = json!({
        "store": store.root().display().to_string(), "receipts": receipts, "findings": listed.notes,
    });
    Ok(Report::new(text, json).with_findings(&listed.notes))
}
