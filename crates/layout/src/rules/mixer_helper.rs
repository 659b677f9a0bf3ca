//! Helper projections such as Mamba-3's angles turn every head alike: a rank with a slice would turn its heads differently.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mixer/helper-replicated",
    surfaces: &[Surface::MixerHelper],
    quality: Quality::Replicated,
    why: "their output is broadcast to all heads",
    cannot_fix: "tensor parallelism cannot shrink them",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] =
        &[held("nam56r", "tp=2", "layers.2.mamba.angle_proj.weight", "replicated: 16×3584")];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
