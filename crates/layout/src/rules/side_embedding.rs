//! Side channels belong to the stage the recipe names; no tensor axis knows their structure.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "side/owner-stage",
    surfaces: &[Surface::SideEmbedding],
    quality: Quality::Explicit,
    why: "an ownership problem first: one stage materialises them, and checkpoints find them there when the split changes",
    cannot_fix: "their size: only an owner of its own, or sharded state, makes them smaller",
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
    use crate::legality::example::switch_on;
    use crate::rules::example::{Example, held};
    use recipe::Feature;

    pub const EXAMPLES: &[Example] =
        &[held("nam56r", "tp=2", "side.ngram_hash.table.weight", "replicated: 7998862×16")
            .with(|r| switch_on(r, Feature::NgramHash))];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
