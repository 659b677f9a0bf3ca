//! Projections into heads go to ranks by whole heads; keys and values with their group.

use super::{Cut, How, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use crate::request::Engine;
use recipe::{Segment, Surface, Tensor, Unit};

pub const RULE: Rule = Rule {
    id: "attention/heads-in",
    surfaces: &[Surface::AttentionIn],
    quality: Quality::Excellent,
    why: "predictable shapes and collectives",
    cannot_fix: "KV heads below the degree, and the latent in front of up-projections",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

/// KV heads below the degree: Megatron cuts the packed rows evenly and gathers the activations
/// (`transformer/attention.py`); our runtime gives each rank a copy of its group's KV head.
fn decide(tensor: &Tensor, layout: &Layout) -> Vec<Cut> {
    let degree = layout.tp.get();
    let few = |s: &Segment| s.unit == Unit::KvHead && s.count < degree;
    let shares_rows = layout.engine != Some(Engine::Shardwright);
    if shares_rows && tensor.dims[0].0.iter().any(few) {
        return vec![Cut { dim: 0, axis: Axis::Tp, how: How::Rows }];
    }
    cut_units(tensor, Axis::Tp)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] = &[
        held("llama3-8b", "tp=4", "layers.0.attention.qkv.weight", "tp: packed q k v: 1536×4096"),
        held("llama3-8b", "tp=16", "layers.0.attention.qkv.weight", "tp: even rows, gathered: 384×4096"),
        held("llama3-8b", "tp=16 engine=shardwright", "layers.0.attention.qkv.weight", "tp: packed q k v: 512×4096"),
        held("llama3-8b", "cp=2", "layers.0.attention.qkv.weight", "whole at tp 1, packed q k v: 6144×4096"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
