//! Rows of nanotron.

use super::model::{self, Unsaid};
use super::{Peaks, lay_out, need};
use crate::Why;
use layout::{Engine, LayoutRequest, Recompute, Schedule, ZeroStage};
use ledger::Ledger;
use serde_json::Value;

/// Steps of a row's run that are replayed: it had more, and the third no longer differs from later ones.
const STEPS: u32 = 3;

pub(super) fn predict(row: &Value, allowed: u64) -> Result<Peaks, Why> {
    let recipe = model::recipe(row, &Unsaid::llama())?;
    let case = lay_out(recipe, &request(row)?, None)?;
    let ledger = Ledger::of_case(&case)?.over_steps(STEPS);
    Peaks::replayed(case, &ledger, &[0], allowed)
}

/// Unsaid, it is nanotron's default (`config/parallelism_config.py`).
fn schedule(row: &Value) -> Result<Schedule, String> {
    match row["layout"]["schedule"].as_str() {
        None | Some("1F1B") => Ok(Schedule::OneF1b),
        Some("AFAB") => Ok(Schedule::GPipe),
        Some(_) => Err("the row's schedule is not one of nanotron's".to_string()),
    }
}

fn request(row: &Value) -> Result<LayoutRequest, String> {
    let (layout, batch) = (&row["layout"], &row["batch"]);
    let zero = match layout["zero"].as_u64() {
        Some(0) => ZeroStage::Zero,
        Some(1) => ZeroStage::One,
        _ => return Err("the row's ZeRO stage is not one of nanotron's".to_string()),
    };
    if row["recompute"].as_str().unwrap_or("none") != "none" {
        return Err("nanotron's checkpointed layers are not replayed".to_string());
    }
    Ok(LayoutRequest {
        world: Some(need(&row["hardware"], "count")?),
        tp: Some(need(layout, "tp")?),
        sp: layout["sp"].as_bool(),
        cp: layout["cp"].as_u64(),
        pp: layout["pp"].as_u64(),
        ep: layout["ep"].as_u64(),
        dp: layout["dp"].as_u64(),
        zero: Some(zero),
        micro_batch: Some(need(batch, "micro")?),
        microbatches: Some(need(batch, "grad_accum")?),
        sequence: Some(need(batch, "seq")?),
        schedule: Some(schedule(row)?),
        recompute: Some(Recompute::None),
        engine: Some(Engine::Nanotron),
        ..LayoutRequest::default()
    })
}
