//! What a row computes again.

use super::words::{plain, tokens};
use case::options::Again;
use layout::Recompute;
use serde_json::Value;

/// How the engine reads the layout's policy: torchtitan checkpoints by operator, or every other layer.
pub(super) fn again(row: &Value) -> Again {
    let words = tokens(row["recompute"].as_str().unwrap_or_default());
    let starts = |with: &[&str]| words.iter().zip(with).filter(|(a, b)| a == b).count() == with.len();
    match () {
        () if starts(&["selective", "op"]) => Again::ByOperator,
        () if starts(&["selective", "every", "2nd", "layer"]) => Again::EveryOther,
        () => Again::Layout,
    }
}

/// The layout's policy, where the row says one: `none`, `full`, `selective` (the attention core, as
/// Megatron means it), or a list of modules.
pub(super) fn recompute(row: &Value) -> Result<Option<Recompute>, String> {
    let Some(said) = row["recompute"].as_str() else { return Ok(None) };
    let text = said.trim().to_ascii_lowercase();
    let policy = match (again(row), text.split_once(':')) {
        (Again::EveryOther, _) => Recompute::Full,
        (Again::ByOperator, _) => Recompute::None,
        (Again::Layout, Some(("selective", list))) if tokens(list).contains(&"empty".to_string()) => Recompute::None,
        (Again::Layout, Some(("selective", list))) => {
            let words: Vec<&str> = list.split([',', ' ', '[', ']']).filter(|word| !word.is_empty()).collect();
            Recompute::parse(&format!("selective:{}", words.join("+")))?
        }
        (Again::Layout, _) => match plain(&text).as_str() {
            "selective" | "selectiverecompute" | "selectiverecomputation" => Recompute::parse("selective:core_attn")?,
            "full" | "fullrecompute" | "fullrecomputation" | "uniform" => Recompute::Full,
            "none" | "no" | "off" | "false" | "disabled" => Recompute::None,
            _ => Recompute::parse(said)?,
        },
    };
    Ok(Some(policy))
}
