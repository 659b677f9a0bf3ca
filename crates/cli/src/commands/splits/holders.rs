//! `splits --tensor`: one tensor, and which ranks hold which part of it.

use super::row_json;
use crate::commands::{case_text, layout_json, ranges};
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, shape, wrap};
use case::Case;
use diag::{Blame, Finding};
use layout::ownership::Row;
use layout::{Axis, Mesh};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A stage, and ranges of each dimension.
type Part = (u64, Vec<Vec<(u64, u64)>>);

/// Ranks that hold the same part.
struct Holders {
    ranks: Vec<usize>,
    stage: u64,
}

pub fn run(path: &str, case: &Case, mesh: &Mesh) -> Outcome {
    let (layout, table) = (&case.layout, &case.table);
    let row = table.rows.iter().find(|row| row.tensor.path == path).ok_or_else(|| unknown(path, &table.rows))?;
    let mut parts: BTreeMap<Part, Holders> = BTreeMap::new();
    for rank in 0..layout.world {
        let at = mesh.coordinates(rank);
        let stage = at.on(Axis::Pp);
        if table.copies_on_stage(row, stage as usize) == 0 {
            continue;
        }
        let dims = row.part(layout, &at).dims;
        let part = dims.iter().map(|dim| dim.iter().map(|r| (r.start, r.end)).collect()).collect();
        parts.entry((stage, part)).or_insert_with(|| Holders { ranks: Vec::new(), stage }).ranks.push(rank as usize);
    }
    let mut out = Table::new(&["stage", "holds", "shape", "ranks"]).right(&[0]);
    let mut holders: Vec<Value> = Vec::new();
    for ((_, part), held) in &parts {
        let first = held.ranks[0] as u64;
        let at = mesh.coordinates(first);
        let holds = row.holds(layout, &at);
        let holds = if holds.is_empty() { "the whole".to_string() } else { holds };
        out.row([held.stage.to_string(), holds.clone(), shape(&row.part(layout, &at).shape()), ranges(&held.ranks)]);
        holders.push(json!({
            "stage": held.stage, "holds": holds, "part": part, "first_rank": first,
            "count": held.ranks.len(), "ranks": ranges(&held.ranks),
        }));
    }
    let mut text = case_text(case);
    text += &heading(&format!("Who holds `{path}`, {} in all", shape(&row.tensor.shape())));
    text += &out.render();
    text += &wrap(&format!("{}: {}", row.rule.id, row.rule.why), "  ", 110);
    text += &wrap(&format!("it cannot fix: {}", row.rule.cannot_fix), "  ", 110);
    let first = parts.values().next().map_or(0, |held| held.ranks[0] as u64);
    let json = json!({
        "recipe": case.recipe.name, "layout": layout_json(layout, &case.defaults),
        "tensor": row_json(row, table, layout, mesh, first), "holders": holders,
        "why": row.rule.why, "cannot_fix": row.rule.cannot_fix,
    });
    Ok(Report::new(text, json).with_findings(&case.findings))
}

fn unknown(path: &str, rows: &[Row]) -> Finding {
    let message = format!("the recipe has no tensor `{path}`");
    let finding = Finding::error("splits/tensor", Blame::Usage, "tensor", message);
    match diag::did_you_mean_name(path, rows.iter().map(|row| row.tensor.path.as_str())) {
        Some(close) => finding.hint(format!("did you mean `{close}`?")),
        None => finding.hint("`splits` lists every tensor with its path"),
    }
}
