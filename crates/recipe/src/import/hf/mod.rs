//! Hugging Face `config.json`, by model type. Parameter lists and defaults as transformers 5.22
//! builds them (`modeling_*.py`, `configuration_*.py`); one function a model type, grouped in
//! files by lineage. A type that is not listed is refused by name.
//!
//! Prediction layers (`num_nextn_predict_layers`) come along switched off, because transformers
//! does not build them.

mod config;
mod deepseek;
mod dense;
mod hybrid;
mod moe;

use crate::limits;
use crate::recipe::Recipe;
use config::Config;
use diag::{Blame, Finding, Span, did_you_mean_name};

type Import = fn(&mut Config) -> Option<Recipe>;

/// Every model type we import.
const TYPES: &[(&str, Import)] = &[
    ("bamba", hybrid::bamba),
    ("deepseek_v2", deepseek::v2),
    ("deepseek_v3", deepseek::v3),
    ("falcon_h1", hybrid::falcon_h1),
    ("glm4_moe", moe::glm4_moe),
    ("gpt_oss", moe::gpt_oss),
    ("granitemoehybrid", hybrid::granitemoehybrid),
    ("jamba", hybrid::jamba),
    ("llama", dense::llama),
    ("mamba2", hybrid::mamba2),
    ("mistral", dense::mistral),
    ("mixtral", moe::mixtral),
    ("nemotron_h", hybrid::nemotron_h),
    ("olmoe", moe::olmoe),
    ("qwen2", dense::qwen2),
    ("qwen3", dense::qwen3),
    ("qwen3_moe", moe::qwen3_moe),
    ("qwen3_next", hybrid::qwen3_next),
];

/// The model types we import, by name.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|(name, _)| *name)
}

/// Reads a `config.json` as the recipe `name`.
pub fn import(text: &str, name: &str) -> Result<Recipe, Vec<Finding>> {
    if text.len() > limits::FILE_BYTES {
        let message = format!("the file has {} bytes, and a config at most {}", text.len(), limits::FILE_BYTES);
        return Err(vec![Finding::error("import/limit", Blame::Recipe, "file", message)]);
    }
    // transformers writes a bare Infinity, which JSON has not; no count depends on it.
    let finite = text.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null");
    let json: serde_json::Value = serde_json::from_str(&finite).map_err(|error| vec![not_json(text, &error)])?;
    let serde_json::Value::Object(map) = &json else {
        let message = "a config.json is one object with a `model_type`";
        return Err(vec![Finding::error("import/shape", Blame::Recipe, "file", message)]);
    };
    let Some(model_type) = map.get("model_type").and_then(|v| v.as_str()) else {
        let message = "the config has no `model_type`, so nothing says which model it is";
        let finding = Finding::error("import/model-type", Blame::Recipe, "model_type", message);
        return Err(vec![finding.hint("a Hugging Face config.json names it")]);
    };
    let Some((_, build)) = TYPES.iter().find(|(known, _)| *known == model_type) else {
        return Err(vec![unsupported(model_type)]);
    };
    let mut config = Config::new(map, name, model_type);
    let recipe = build(&mut config);
    config.refuse_unsupported();
    match recipe {
        Some(recipe) if config.findings.is_empty() => recipe.validated(),
        _ => Err(config.findings),
    }
}

fn not_json(text: &str, error: &serde_json::Error) -> Finding {
    let line_start: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let at = (line_start + error.column().saturating_sub(1)).min(text.len());
    let message = format!("not JSON: {error}");
    Finding::error("import/json", Blame::Recipe, "file", message).at(Some(Span { start: at, end: at + 1 }))
}

fn unsupported(model_type: &str) -> Finding {
    let shown: String = model_type.chars().take(60).collect();
    let known = model_types().collect::<Vec<_>>().join(", ");
    let message = format!("model type `{shown}` is not supported");
    let hint = match did_you_mean_name(model_type, model_types()) {
        Some(close) => format!("did you mean `{close}`? we import {known}"),
        None => format!("we import {known}"),
    };
    Finding::error("import/model-type", Blame::Recipe, "model_type", message).hint(hint)
}
