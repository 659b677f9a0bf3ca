//! Rows of DeepSpeed around a Hugging Face model. What its configuration does not say is
//! DeepSpeed's default (`deepspeed/runtime/zero/config.py`, `deepspeed/runtime/constants.py`).

use super::model::{self, Unsaid};
use super::recompute::recompute;
use super::words::Clauses;
use super::{Peaks, lay_out, need};
use crate::Why;
use layout::{Engine, LayoutRequest, Recompute, ZeroStage};
use ledger::Ledger;
use serde_json::Value;

pub(super) fn predict(row: &Value, allowed: u64) -> Result<Peaks, Why> {
    if uses_liger(row) {
        // Its patch of Llama takes the loss without ever making all logits
        // (`liger_kernel/transformers/monkey_patch.py`, on by default).
        return Err("Liger's fused linear cross-entropy is not replayed".into());
    }
    let recipe = model::recipe(row, &Unsaid::llama())?;
    let case = lay_out(recipe, &request(row)?, None)?.with_options(|options| *options = options.with_script());
    let ledger = Ledger::of_case(&case)?;
    // Data-parallel ranks hold the same.
    Peaks::replayed(case, &ledger, &[0], allowed)
}

fn uses_liger(row: &Value) -> bool {
    let says = |field: &str| row[field].as_str().and_then(|text| Clauses::of(text).say(&["liger", "liger kernel"]));
    says("features").or_else(|| says("notes")) == Some(true)
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
        recompute: Some(recompute(row)?.unwrap_or(Recompute::None)),
        engine: Some(Engine::Deepspeed),
        ..LayoutRequest::default()
    })
}
