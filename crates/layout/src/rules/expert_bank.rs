//! Whole experts to expert-parallel ranks; columns inside an expert to expert-tensor-parallel ranks.

use super::{Cut, How, Quality, Rule};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "moe/bank",
    surfaces: &[Surface::ExpertIn, Surface::ExpertOut],
    quality: Quality::Excellent,
    why: "heavy weights are organised by expert, the natural unit",
    cannot_fix: "routing, imbalance and the all-to-all stay",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    let mut cuts = vec![Cut { dim: 0, axis: Axis::Ep, how: How::Units }];
    let inner = (1..tensor.dims.len()).find(|&dim| tensor.dims[dim].is_cuttable());
    cuts.extend(inner.map(|dim| Cut { dim, axis: Axis::Etp, how: How::Units }));
    cuts
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] = &[
        held("mixtral-8x7b", "ep=4", "layers.0.moe.experts.fc1.weight", "ep: by expert: 2×28672×4096"),
        held(
            "mixtral-8x7b",
            "tp=2 ep=4",
            "layers.0.moe.experts.fc1.weight",
            "ep: by expert × etp: packed gate up: 2×14336×4096",
        ),
        held("mixtral-8x7b", "tp=2 etp=1", "layers.0.moe.experts.fc1.weight", "whole at ep 1, by expert: 8×28672×4096"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
