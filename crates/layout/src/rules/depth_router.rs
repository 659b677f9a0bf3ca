//! The router of a layer that takes some tokens only gives one number a token, and every rank needs it.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "mod/router",
    surfaces: &[Surface::DepthRouter],
    quality: Quality::Replicated,
    why: "one row as long as the hidden state",
    cannot_fix: "its choice reads whole sequences (`mod/whole-sequences`)",
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
    use crate::legality::example::some_tokens;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] =
        &[held("llama3-8b", "dp=2", "layers.1.mod.weight", "replicated: 1×4096").with(some_tokens)];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
