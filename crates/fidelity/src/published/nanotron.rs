//! Rows of nanotron.

use super::model::{self, Unsaid};
use super::{Expressed, Peaks, need};
use layout::{Engine, LayoutRequest, Recompute, ZeroStage};
use ledger::nanotron::{Job, NanotronOptions, PipelineEngine, replay};
use serde_json::Value;

pub(super) fn predict(row: &Value) -> Result<Peaks, String> {
    let recipe = model::recipe(row, &Unsaid::llama())?;
    let expressed = Expressed::new(recipe, &request(row)?)?;
    let options = NanotronOptions { engine: engine(row)?, steps: 3 };
    let job = Job { recipe: &expressed.recipe, layout: &expressed.layout, options: &options };
    let replay = replay(&job).map_err(|e| e.to_string())?;
    Ok(Peaks::of(&expressed, &[replay]))
}

/// Unsaid, it is nanotron's default (`config/parallelism_config.py`).
fn engine(row: &Value) -> Result<PipelineEngine, String> {
    match row["layout"]["schedule"].as_str() {
        None | Some("1F1B") => Ok(PipelineEngine::OneForwardOneBackward),
        Some("AFAB") => Ok(PipelineEngine::AllForwardAllBackward),
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
        recompute: Some(Recompute::None),
        engine: Some(Engine::Nanotron),
        ..LayoutRequest::default()
    })
}
