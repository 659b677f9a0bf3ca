//! What a row computes again.

use case::options::Again;
use layout::Recompute;
use serde_json::Value;

/// How the engine reads the layout's policy: torchtitan checkpoints by operator, or every other layer.
pub(super) fn again(row: &Value) -> Again {
    match row["recompute"].as_str().unwrap_or_default() {
        text if text.starts_with("selective op") => Again::ByOperator,
        text if text.starts_with("selective every 2nd layer") => Again::EveryOther,
        _ => Again::Layout,
    }
}

/// The layout's policy, where the row says one: `none`, `full`, `selective` (the attention core, as
/// Megatron means it), or a list of modules.
pub(super) fn recompute(row: &Value) -> Result<Option<Recompute>, String> {
    let Some(text) = row["recompute"].as_str() else { return Ok(None) };
    let policy = match (again(row), text.split_once(':')) {
        (Again::EveryOther, _) => Recompute::Full,
        (Again::ByOperator, _) => Recompute::None,
        (Again::Layout, Some(("selective", list))) if list.contains("empty") => Recompute::None,
        (Again::Layout, Some(("selective", list))) => {
            let words: Vec<&str> = list.split([',', ' ', '[', ']']).filter(|word| !word.is_empty()).collect();
            Recompute::parse(&format!("selective:{}", words.join("+")))?
        }
        (Again::Layout, None) if text == "selective" => Recompute::parse("selective:core_attn")?,
        (Again::Layout, _) => Recompute::parse(text)?,
    };
    Ok(Some(policy))
}
