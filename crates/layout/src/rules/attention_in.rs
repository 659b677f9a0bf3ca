//! Projections into heads go to ranks by whole heads; keys and values with their group.

use super::{Cut, How, Quality, Rule, cut_units};
use crate::axis::Axis;
use crate::layout::Layout;
use crate::request::Engine;
use recipe::{Segment, Surface, Tensor, Unit};

/// The rule.
pub const RULE: Rule = Rule {
    id: "attention/heads-in",
    surfaces: &[Surface::AttentionIn],
    quality: Quality::Excellent,
    why: "predictable shapes and collectives",
    cannot_fix: "KV heads below the degree, and the latent in front of up-projections",
    decide,
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
