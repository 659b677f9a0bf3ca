//! Scalars and norms of heads follow their heads; a norm shared by all heads stays whole.

use super::{Cut, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "attention/head-vectors",
    surfaces: &[Surface::AttentionSink, Surface::AttentionNorm],
    quality: Quality::Good,
    why: "small, and cut exactly where heads are cut",
    cannot_fix: "",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    cut_units(tensor, Axis::Tp)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] = &[
        held("llama3-8b", "tp=4", "layers.0.attention.sinks", "tp: by head: 8")
            .with(|r| r.attention.as_mut().unwrap().sinks = true),
        held("qwen3-30b-a3b", "tp=4", "layers.0.attention.q_norm.weight", "replicated: 128"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
