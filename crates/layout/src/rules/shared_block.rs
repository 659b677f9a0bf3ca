//! A block that several layers run stands on every rank whole: what it gives goes through projections of each layer's own, and no
//! engine sums its parts over tensor ranks (`shared/whole`). Sharded data parallelism shares it out like any other weight.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "shared/replicated",
    surfaces: &[Surface::SharedBlock],
    quality: Quality::Replicated,
    why: "several layers read the same weights, so that they stand once, with the token embeddings they are fed with",
    cannot_fix: "a pipeline would part layers from the block they run",
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
    use crate::legality::example::kinds;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] = &[
        held("llama3-8b", "dp=2", "shared.0.q.weight", "replicated: 32×8192").with(kinds::shared),
        held("llama3-8b", "dp=2", "layers.32.shared.join.weight", "replicated: 4096×4096").with(kinds::shared),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
