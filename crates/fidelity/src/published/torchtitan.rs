//! Rows of torchtitan, whose base is FSDP2.
//!
//! Rows do not name its version. Those that can be replayed are of early 2025, when it left the
//! edges to the group of the whole model (`torchtitan/parallelisms/parallelize_llama.py`; groups of
//! their own since its #1094, July 2025) and had no gradient accumulation: a step is one microbatch.

use super::model::{self, Unsaid};
use super::{Expressed, Peaks, need};
use layout::{Engine, LayoutRequest, Recompute, StagePlan, ZeroStage};
use ledger::fsdp2::{Edges, Fsdp2Options, Job, Reshard, replay};
use serde_json::Value;

pub(super) fn predict(row: &Value) -> Result<Peaks, String> {
    if row["precision"].as_str().is_some_and(|text| text.starts_with("FP8")) {
        return Err("torchao's fp8 products are not replayed".to_string());
    }
    let recipe = model::recipe(row, &Unsaid::llama())?;
    let expressed = Expressed::new(recipe, &request(row)?)?;
    let Expressed { recipe, layout } = &expressed;
    let options = Fsdp2Options {
        // The last layer is kept for backward, which would gather it at once. The root keeps its
        // own whatever it is told (torch 2.6, `_fully_shard/_fsdp_state.py` _lazy_init).
        reshard: Reshard { layers: true, last_layer: false, edges: false },
        edges: Edges::InRoot,
        compile: is_compiled(row)?,
        ..Fsdp2Options::of(layout)
    };
    let stages = StagePlan::new(recipe, layout, None).map_err(|finding| finding.message)?;
    // Without a pipeline all ranks hold the same.
    let job = Job { recipe, layout, stages: &stages, rank: 0, options: &options };
    let replay = replay(&job).map_err(|e| e.to_string())?;
    Ok(Peaks::of(&expressed, &[replay]))
}

fn is_compiled(row: &Value) -> Result<bool, String> {
    match row["features"].as_str() {
        Some("compile") => Ok(true),
        Some("eager") => Ok(false),
        Some(other) => Err(format!("option `{other}` is not known")),
        None => Err("the row does not say whether layers are compiled".to_string()),
    }
}

fn request(row: &Value) -> Result<LayoutRequest, String> {
    let (layout, batch) = (&row["layout"], &row["batch"]);
    if layout["zero"].as_u64() != Some(3) {
        return Err("the row's ZeRO stage is not torchtitan's default".to_string());
    }
    if layout["pp"].as_u64().is_some_and(|pp| pp > 1) {
        return Err("torchtitan's pipeline is not expressed: rows do not say its microbatches".to_string());
    }
    Ok(LayoutRequest {
        world: Some(need(&row["hardware"], "count")?),
        tp: Some(need(layout, "tp")?),
        sp: layout["sp"].as_bool(),
        cp: layout["cp"].as_u64(),
        zero: Some(ZeroStage::Three),
        micro_batch: Some(need(batch, "micro")?),
        microbatches: Some(1),
        sequence: Some(need(batch, "seq")?),
        recompute: Some(recompute(row)?),
        engine: Some(Engine::Torchtitan),
        ..LayoutRequest::default()
    })
}

/// Whole layers or none; what `selective op` saves by operator is not replayed.
fn recompute(row: &Value) -> Result<Recompute, String> {
    match row["recompute"].as_str().unwrap_or_default() {
        "none" => Ok(Recompute::None),
        "full" => Ok(Recompute::Full),
        text if text.starts_with("selective op") => {
            Err("torchtitan's selective checkpointing by operator is not replayed".to_string())
        }
        text if text.starts_with("selective every") => {
            Err("torchtitan's checkpointing of every other layer is not replayed".to_string())
        }
        other => Err(format!("checkpointing `{other}` is not known")),
    }
}
