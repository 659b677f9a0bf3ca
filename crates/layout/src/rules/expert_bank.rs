//! Whole experts to expert-parallel ranks; columns inside an expert to expert-tensor-parallel ranks.

use super::{Cut, How, Quality, Rule};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

/// The rule.
pub const RULE: Rule = Rule {
    id: "moe/bank",
    surfaces: &[Surface::ExpertIn, Surface::ExpertOut],
    quality: Quality::Excellent,
    why: "heavy weights are organised by expert, the natural unit",
    cannot_fix: "routing, imbalance and the all-to-all stay",
    decide,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    let mut cuts = vec![Cut { dim: 0, axis: Axis::Ep, how: How::Units }];
    let inner = (1..tensor.dims.len()).find(|&dim| tensor.dims[dim].is_cuttable());
    cuts.extend(inner.map(|dim| Cut { dim, axis: Axis::Etp, how: How::Units }));
    cuts
}
