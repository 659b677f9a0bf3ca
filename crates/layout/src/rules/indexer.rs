//! The sparse indexer scores pairs for every head, so every rank keeps it whole.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "attention/indexer-replicated",
    surfaces: &[Surface::SparseIndexer],
    quality: Quality::Replicated,
    why: "one score table serves all heads; its gradients are averaged over the tensor axis",
    cannot_fix: "tensor parallelism cannot shrink it",
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
        &[held("nam56r", "tp=2", "layers.4.attention.indexer.wq.weight", "replicated: 2048×64").with(|r| {
            switch_on(r, Feature::Mla);
            switch_on(r, Feature::Dsa);
        })];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
