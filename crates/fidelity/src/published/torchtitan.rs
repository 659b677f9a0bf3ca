//! Rows of torchtitan, whose base is FSDP2.
//!
//! Rows do not name its version. Those that can be replayed are of early 2025, when it left the
//! edges to the group of the whole model (`torchtitan/parallelisms/parallelize_llama.py`; groups of
//! their own since its #1094, July 2025) and had no gradient accumulation: a step is one microbatch.

use super::model::{self, Unsaid};
use super::precision::Precision;
use super::recompute::{again, recompute};
use super::words::plain;
use super::{Peaks, lay_out, need};
use crate::Why;
use case::options::{Elementwise, Format};
use layout::{Engine, LayoutRequest, ZeroStage};
use ledger::Ledger;
use ledger::fsdp2::{Edges, Reshard};
use serde_json::Value;

pub(super) fn predict(row: &Value, allowed: u64) -> Result<Peaks, Why> {
    if Precision::of(row)?.format != Format::Bf16 {
        return Err("torchao's fp8 products are not replayed".into());
    }
    let recipe = model::recipe(row, &Unsaid::llama())?;
    let is_compiled = is_compiled(row)?;
    let case = lay_out(recipe, &request(row)?, None)?.with_options(|options| {
        options.kernels.elementwise = if is_compiled { Elementwise::Compiled } else { Elementwise::Eager };
        options.again = again(row);
    });
    let mut ledger = Ledger::of_case(&case)?;
    if let Ledger::Fsdp2(options) = &mut ledger {
        // The last layer is kept for backward, which would gather it at once. The root keeps its
        // own whatever it is told (torch 2.6, `_fully_shard/_fsdp_state.py` _lazy_init).
        options.reshard = Reshard { layers: true, last_layer: false, edges: false };
        options.edges = Edges::InRoot;
    }
    // Without a pipeline all ranks hold the same.
    Peaks::replayed(case, &ledger, &[0], allowed)
}

fn is_compiled(row: &Value) -> Result<bool, String> {
    let features = row["features"].as_str();
    match features.map(plain).as_deref() {
        Some("compile" | "torchcompile") => Ok(true),
        Some("eager" | "nocompile") => Ok(false),
        Some(_) => Err(format!("option `{}` is not known", features.unwrap_or_default())),
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
        recompute: Some(recompute(row)?.ok_or("the row does not say what is computed again")?),
        engine: Some(Engine::Torchtitan),
        ..LayoutRequest::default()
    })
}
