//! Hugging Face `config.json`, by model type. Parameter lists and defaults as transformers 5.22
//! builds them (`modeling_*.py`, `configuration_*.py`): described as data in `models.rs` where layers are
//! attention and a feed-forward block, one function a model type otherwise. A type of a config with a known
//! `text_config` is read as that; any other is refused by name, with the reason where we know it.
//!
//! Prediction layers (`num_nextn_predict_layers`) come along switched off, because transformers
//! does not build them.

mod common;
mod config;
mod deepseek;
mod delta;
mod dense;
mod described;
mod hybrid;
mod keys;
mod linear;
mod models;
mod moe;
mod qwen;
mod refused;
mod rope;
mod then;
mod zamba;

use crate::limits;
use crate::recipe::Recipe;
use config::Config;
use diag::{Blame, Finding, Span, did_you_mean_name, quote};

pub use keys::{Fate, Key};

type Import = fn(&mut Config) -> Option<Recipe>;

/// Model types that a function of their own reads.
const TYPES: &[(&str, Import)] = &[
    ("bailing_hybrid", delta::bailing_hybrid),
    ("bamba", hybrid::bamba),
    ("deepseek_v2", deepseek::v2),
    ("deepseek_v3", deepseek::v3),
    ("falcon_h1", hybrid::falcon_h1),
    ("falcon_mamba", hybrid::mamba1),
    ("glm4_moe", moe::glm4_moe),
    ("gpt_oss", moe::gpt_oss),
    ("granitemoehybrid", hybrid::granitemoehybrid),
    ("jamba", hybrid::jamba),
    // Moonshot's own code: DeepSeek-V3 with other figures.
    ("kimi_k2", deepseek::v3),
    ("kimi_linear", linear::kimi_linear),
    ("lfm2", linear::lfm2),
    ("lfm2_moe", linear::lfm2_moe),
    ("llama", dense::llama),
    ("mamba", hybrid::mamba1),
    ("mamba2", hybrid::mamba2),
    ("minimax", linear::minimax),
    ("mistral", dense::mistral),
    ("mixtral", moe::mixtral),
    ("nemotron_h", hybrid::nemotron_h),
    ("olmo_hybrid", delta::olmo_hybrid),
    ("olmoe", moe::olmoe),
    ("qwen2", dense::qwen2),
    ("qwen3", dense::qwen3),
    ("qwen3_moe", moe::qwen3_moe),
    ("qwen3_5_moe_text", qwen::routed),
    ("qwen3_5_text", qwen::dense),
    ("qwen3_next", qwen::qwen3_next),
    ("recurrent_gemma", linear::recurrent_gemma),
    // flash-linear-attention's.
    ("rwkv7", delta::rwkv7),
    ("xlstm", linear::xlstm),
    ("zamba", zamba::zamba),
    ("zamba2", zamba::zamba2),
];

/// The model types we import, by name.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    let own = TYPES.iter().map(|(name, _)| *name);
    own.chain(models::MODELS.iter().map(|model| model.name)).collect::<std::collections::BTreeSet<_>>().into_iter()
}

/// How a model type is read.
enum Reader {
    Own(Import),
    Described(&'static described::Model),
}

fn reader(model_type: &str) -> Option<Reader> {
    let own = TYPES.iter().find(|(known, _)| *known == model_type).map(|(_, build)| Reader::Own(*build));
    own.or_else(|| models::MODELS.iter().find(|model| model.name == model_type).map(Reader::Described))
}

/// Model types of transformers' causal models that we do not import, each with the reason.
pub fn refused_types() -> impl Iterator<Item = (&'static str, &'static str)> {
    refused::REFUSED.iter().flat_map(|(why, names)| names.iter().map(move |name| (*name, *why)))
}

/// What the user says of a config besides its text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The recipe's name.
    pub name: Option<&'a str>,
    /// Name of the place it lies in, for a config that does not name itself.
    pub place: Option<&'a str>,
    /// Sequence to train on.
    pub sequence: Option<u64>,
}

impl<'a> Asked<'a> {
    /// Nothing but a name.
    pub fn named(name: &'a str) -> Asked<'a> {
        Asked { name: Some(name), ..Asked::default() }
    }
}

/// A recipe, and what became of every key of the config it was made from.
#[derive(Debug)]
pub struct Imported {
    /// The model; keys that it does not carry stand in it too.
    pub recipe: Recipe,
    /// Every key, by name.
    pub keys: Vec<Key>,
}

/// Reads a `config.json`.
pub fn import(text: &str, asked: &Asked) -> Result<Imported, Vec<Finding>> {
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
    let inner = map.get("text_config").and_then(|inner| inner.as_object()).filter(|_| reader(model_type).is_none());
    let inner_type = inner.and_then(|inner| inner.get("model_type")).and_then(|v| v.as_str());
    if let (Some(inner), Some(inner_type)) = (inner, inner_type)
        && reader(inner_type).is_some()
    {
        return text_model(map, inner, asked);
    }
    let Some(reader) = reader(model_type) else {
        return Err(vec![unsupported(model_type)]);
    };
    let mut config = Config::new(map, model_type, asked.sequence);
    let recipe = match reader {
        Reader::Own(build) => build(&mut config),
        Reader::Described(model) => described::import(&mut config, model),
    };
    config.refuse_unsupported();
    let own_name = config.text("_name_or_path").map(str::to_string);
    match recipe {
        Some(mut recipe) if config.findings.is_empty() => {
            recipe.name = name(&recipe, asked, own_name.as_deref()).into();
            let keys = config.keys(&recipe);
            let lost = keys.iter().filter(|key| key.fate == Fate::NotCarried);
            recipe.not_carried = lost.map(|key| (key.name.clone(), quote::json_document(&key.value))).collect();
            Ok(Imported { recipe: recipe.validated()?, keys })
        }
        _ => Err(config.findings),
    }
}

/// The text model of a config that has towers for other inputs; those are not carried.
fn text_model(
    map: &serde_json::Map<String, serde_json::Value>,
    inner: &serde_json::Map<String, serde_json::Value>,
    asked: &Asked,
) -> Result<Imported, Vec<Finding>> {
    let mut inner = inner.clone();
    // Classes look for these outside as well as inside.
    for key in ["tie_word_embeddings", "_name_or_path"] {
        if let (Some(value), false) = (map.get(key), inner.contains_key(key)) {
            inner.insert(key.to_string(), value.clone());
        }
    }
    let mut imported = import(&serde_json::Value::Object(inner).to_string(), asked)?;
    for key in imported.keys.iter_mut() {
        key.name = format!("text_config.{}", key.name);
    }
    imported.recipe.not_carried.iter_mut().for_each(|(key, _)| *key = format!("text_config.{key}"));
    for (name, value) in map.iter().filter(|(name, _)| *name != "text_config") {
        let is_part = name.ends_with("_config") && value.is_object() && name != "quantization_config";
        let fate = match is_part {
            true => Fate::NotCarried,
            false => Fate::Irrelevant("of the model around the text model"),
        };
        let said = value.to_string();
        if is_part {
            imported.recipe.not_carried.push((name.clone(), quote::json_document(&said)));
        }
        imported.keys.push(Key { name: name.clone(), value: said, fate });
    }
    // As a recipe that is read has them.
    imported.recipe.not_carried.sort();
    Ok(imported)
}

/// The name that was asked for, the config's own, that of its place, or the model type and size.
fn name(recipe: &Recipe, asked: &Asked, own: Option<&str>) -> String {
    let last = |path: &str| path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_string();
    let own = own.map(last).filter(|name| !name.is_empty());
    let given = asked.name.map(str::to_string).or(own).or_else(|| asked.place.map(str::to_string));
    given.unwrap_or_else(|| format!("{}-{}", recipe.name.raw(), size(recipe.counts().all.total)))
}

/// A size as model names spell it: `8b`, `1.7b`, `500m`.
fn size(parameters: u64) -> String {
    let (unit, letter) = if parameters >= 1_000_000_000 { (1e9, 'b') } else { (1e6, 'm') };
    let count = parameters as f64 / unit;
    if count >= 9.95 { format!("{count:.0}{letter}") } else { format!("{count:.1}{letter}").replace(".0", "") }
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
    let message = match refused_types().find(|(name, _)| *name == model_type) {
        Some((_, why)) => format!("model type `{shown}` is not supported: {why}"),
        None => format!("model type `{shown}` is not supported"),
    };
    let hint = match did_you_mean_name(model_type, model_types()) {
        Some(close) => format!("did you mean `{close}`? we import {known}"),
        None => format!("we import {known}"),
    };
    Finding::error("import/model-type", Blame::Recipe, "model_type", message).hint(hint)
}
