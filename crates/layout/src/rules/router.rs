//! Every rank routes its own tokens, so every rank keeps the router.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "moe/router-replicated",
    surfaces: &[Surface::Router],
    quality: Quality::Replicated,
    why: "live token distribution drives it; weights are small",
    cannot_fix: "expert parallelism distributes banks, never the choice",
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
        &[held("mixtral-8x7b", "tp=2 ep=4", "layers.0.moe.router.weight", "replicated: 8×4096")];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
