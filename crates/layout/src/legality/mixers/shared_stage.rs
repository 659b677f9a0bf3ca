//! Layers that share a block stand on one stage, with the token embeddings that it reads at every use: no engine here sends those, or
//! the block's gradients, from stage to stage.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "shared/stage",
    blame: Blame::Missing,
    reads: Reads::PP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let pp = case.layout.pp;
    let message = format!("pp={pp} would part layers from the block they share and from the token embeddings it reads");
    (pp.splits() && case.recipe.uses(Mixer::Shared)).then(|| RULE.error("shared", message).fix("pp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "pp=2",
            "pp=2 would part layers from the block they share and from the token embeddings it reads",
        )
        .with(kinds::shared),
        silent("llama3-8b", "dp=2").with(kinds::shared),
        silent("llama3-8b", "pp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
