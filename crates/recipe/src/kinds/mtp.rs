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
    /// How many tokens further are predicted.
    pub depth: u64,
    /// The stack of one depth.
    pub layer: Layer,
    /// Whether all depths run one stack with one join, over and over (FastMTP, arXiv 2509.18362; Megatron's
    /// `--mtp-use-repeated-layer`): its weights stand once, its activations at every depth.
    pub shared: bool,
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
        let shared = section.flag_or("shared", false);
        section.finish();
        Some(Mtp { depth: depth?, layer: layer?, shared })
    }

    /// How many stacks there are weights of.
    pub fn stacks(&self) -> u64 {
        if self.shared { self.depth.min(1) } else { self.depth }
    }

    /// The stack that a depth runs.
    pub fn stack_of(&self, depth: usize) -> usize {
        if self.shared { 0 } else { depth }
    }

    /// Writes its keys into the open table.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("depth", self.depth);
        toml.text("pattern", &self.layer.to_string());
        toml.flag_unless("shared", self.shared, false);
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
