//! Multi-token prediction: each depth joins the hidden state with the next token's embedding and
//! runs a small stack of its own. It stands on the objective's suffix, behind the last layer, and
//! never changes the model's pattern.

use crate::limits;
use crate::pattern::{Layer, Pattern};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The prediction suffix.
#[derive(Clone, Debug, PartialEq)]
pub struct Mtp {
    /// How many tokens further are predicted, each by a stack of its own.
    pub depth: u64,
    /// The stack of one depth.
    pub layer: Layer,
}

impl Mtp {
    /// Reads `[features.mtp]` but for its switch, which the caller reads.
    pub(crate) fn read(mut section: Section) -> Option<Mtp> {
        let depth = section.count("depth", limits::MTP);
        let text = section.required_text("pattern");
        let layer = text.and_then(|text| match parse_layer(text) {
            Ok(layer) => Some(layer),
            Err(finding) => {
                section.report("pattern", Finding { span: None, ..finding });
                None
            }
        });
        section.finish();
        Some(Mtp { depth: depth?, layer: layer? })
    }

    /// Writes its keys into the open table.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("depth", self.depth);
        toml.text("pattern", &self.layer.to_string());
    }
}

fn parse_layer(text: &str) -> Result<Layer, Finding> {
    let mut pattern = Pattern::parse(text)?;
    match (pattern.period.len(), pattern.period.pop()) {
        (1, Some(layer)) => Ok(layer),
        _ => {
            Err(Finding::error("mtp/pattern", Blame::Recipe, "features.mtp.pattern", "a prediction depth is one layer")
                .hint("put its blocks in parentheses, as in `(AF)`"))
        }
    }
}
