//! Rows read off real ranks of Megatron-Core jobs: static memory, allocated and reserved peaks.

use crate::measured::{self, Case};
use crate::{Figure, Judged, Part, Refusal, kind};
use layout::{StagePlan, check};
use ledger::megatron::{Job, replay};
use serde_json::Value;

const SOURCE: &str = "megatron-h200";

/// Judges a row with a `case`: memory only, for its collectives return at once.
pub(super) fn judge(row: &Value, parts: &[Part]) -> Judged {
    let mut judged = Judged {
        name: row["case"]["name"].as_str().unwrap_or("unnamed").to_string(),
        kind: "dense",
        source: SOURCE.to_string(),
        device: "H200".to_string(),
        is_pretraining: true,
        sweep: String::new(),
        tokens_per_device: 0.0,
        figures: Vec::new(),
        refusals: Vec::new(),
        params_differ: None,
    };
    if !parts.contains(&Part::Memory) {
        return judged;
    }
    let predicted = Case::read(&row["case"]).and_then(|case| {
        judged.kind = kind(&case.recipe);
        predict(&case, row)
    });
    match predicted {
        Ok((figures, params)) => {
            judged.figures = figures;
            judged.params_differ = row["params"].as_u64().filter(|m| *m != params).map(|m| (params, m));
        }
        Err(why) => judged.refusals.push(Refusal { part: Some(Part::Memory), why }),
    }
    judged
}

fn predict(case: &Case, row: &Value) -> Result<(Vec<Figure>, u64), String> {
    if row.get("error").is_some() {
        return Err("the run failed and measured nothing".to_string());
    }
    let checked = check(&case.recipe, &case.request);
    let layout = checked.layout.clone().filter(|_| checked.is_legal());
    let Some(layout) = layout else {
        return Err(format!("the layout is refused: {}", checked.findings.first().map_or("", |f| f.message.as_str())));
    };
    let stages = StagePlan::new(&case.recipe, &layout, None).map_err(|f| f.message)?;
    let options = measured::options(case).map_err(|e| e.to_string())?;
    let job = Job { recipe: &case.recipe, layout: &layout, stages: &stages, rank: case.rank, options: &options };
    let replay = replay(&job).map_err(|e| e.to_string())?;
    let mut figures = Vec::new();
    let mut add = |name, measured: Option<u64>, predicted| {
        figures.extend(measured.map(|measured| Figure::bytes(name, measured, predicted)));
    };
    let fixed = replay.phase(replay::PhaseKind::Optimizer).map_or(0, |phase| phase.allocated);
    add("static", row["optimizer"]["alloc"].as_u64(), fixed);
    add("allocated", highest(row, "peak", is_step), replay.allocated_peak());
    add("reserved", highest(row, "reserved_peak", |_| true), replay.reserved_peak());
    if figures.is_empty() {
        return Err("the row holds no figure we predict".to_string());
    }
    Ok((figures, replay.params))
}

fn is_step(phase: &str) -> bool {
    phase.starts_with("fwdbwd") || (phase.starts_with("opt") && phase != "optimizer")
}

/// The highest value of a key over the phases that count.
fn highest(row: &Value, key: &str, counts: fn(&str) -> bool) -> Option<u64> {
    let phases = row.as_object()?.iter().filter(|(name, _)| counts(name));
    phases.filter_map(|(_, phase)| phase.get(key)?.as_u64()).max()
}
