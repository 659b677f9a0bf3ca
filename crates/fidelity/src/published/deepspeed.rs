//! Rows of DeepSpeed around a Hugging Face model. What its configuration does not say is
//! DeepSpeed's default (`deepspeed/runtime/zero/config.py`, `deepspeed/runtime/constants.py`).

use super::model::{self, Unsaid};
use super::{Expressed, Peaks, need};
use layout::{Engine, LayoutRequest, Recompute, StagePlan, ZeroStage};
use ledger::deepspeed::{DeepspeedOptions, Job, replay};
use serde_json::Value;

pub(super) fn predict(row: &Value) -> Result<Peaks, String> {
    if uses_liger(row) {
        // Its patch of Llama takes the loss without ever making all logits
        // (`liger_kernel/transformers/monkey_patch.py`, on by default).
        return Err("Liger's fused linear cross-entropy is not replayed".to_string());
    }
    let recipe = model::recipe(row, &Unsaid::llama())?;
    let expressed = Expressed::new(recipe, &request(row)?)?;
    let Expressed { recipe, layout } = &expressed;
    let stages = StagePlan::new(recipe, layout, None).map_err(|finding| finding.message)?;
    let options = DeepspeedOptions::defaults();
    // Data-parallel ranks hold the same.
    let job = Job { recipe, layout, stages: &stages, rank: 0, options: &options };
    let replay = replay(&job).map_err(|e| e.to_string())?;
    Ok(Peaks::of(&expressed, &[replay]))
}

fn uses_liger(row: &Value) -> bool {
    match row["features"].as_str() {
        Some(features) => features.contains("Liger") && !features.contains("no Liger"),
        None => row["notes"].as_str().is_some_and(|notes| notes.contains("Liger")),
    }
}

fn request(row: &Value) -> Result<LayoutRequest, String> {
    let (layout, batch) = (&row["layout"], &row["batch"]);
    let zero = match layout["zero"].as_u64() {
        Some(0) => ZeroStage::Zero,
        Some(1) => ZeroStage::One,
        Some(2) => ZeroStage::Two,
        Some(3) => ZeroStage::Three,
        _ => return Err("the row does not say its ZeRO stage".to_string()),
    };
    Ok(LayoutRequest {
        world: Some(need(&row["hardware"], "count")?),
        tp: Some(need(layout, "tp")?),
        pp: layout["pp"].as_u64(),
        zero: Some(zero),
        micro_batch: Some(need(batch, "micro")?),
        microbatches: Some(batch["grad_accum"].as_u64().unwrap_or(1)),
        sequence: Some(need(batch, "seq")?),
        recompute: Some(Recompute::parse(row["recompute"].as_str().unwrap_or("none"))?),
        engine: Some(Engine::Deepspeed),
        ..LayoutRequest::default()
    })
}
