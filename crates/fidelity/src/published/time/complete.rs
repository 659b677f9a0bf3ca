//! What rows leave unsaid and a step's time needs: each engine's own default, named where taken.

use super::super::model::Unsaid;
use super::super::need;
use super::super::words::plain;
use super::engine::Family;
use recipe::Positions;
use recipe::kinds::Norm;
use serde_json::{Value, json};

/// The row with its model and optimizer said in full.
pub(super) fn complete(row: &Value) -> Value {
    let mut row = row.clone();
    let Some(model) = row.get_mut("model").filter(|model| model.is_object()) else { return row };
    if model["tied_embeddings"].is_null() {
        // Llama and its kin keep a head of their own; GPTs of Megatron's default share the table
        // (`training/arguments.py` --untie-embeddings-and-output-weights).
        model["tied_embeddings"] = json!(model["activation"].as_str() == Some("gelu"));
    }
    if model["activation"].is_null() {
        let is_oss = model["name"].as_str().is_some_and(|name| plain(name).starts_with("gptoss"));
        model["activation"] = json!(if is_oss { "swigluoai" } else { "swiglu" });
    }
    if row["optimizer"].is_null() {
        // Every engine of these rows defaults to Adam or AdamW.
        row["optimizer"] = json!("AdamW");
    }
    row
}

/// Norm, positions and biases, which rows never say.
pub(super) fn unsaid(row: &Value, family: Family) -> Result<Unsaid, String> {
    let model = &row["model"];
    let is_gelu = model["activation"].as_str() == Some("gelu");
    if !is_gelu || model["mla"].is_object() || model["mamba"].is_object() {
        return Ok(Unsaid::llama());
    }
    Ok(Unsaid {
        norm: Norm::LayerNorm,
        positions: Positions::Learned { count: need(&row["batch"], "seq")? },
        // MPT is built without them (llm-foundry `mpt/configuration_mpt.py` no_bias in its benchmarks).
        has_biases: family != Family::Composer && model["experts"].is_null(),
    })
}
