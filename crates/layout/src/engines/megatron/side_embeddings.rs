//! There are no side embeddings; a mode names them as a seam.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/side-embeddings",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let sides: Vec<_> = case.recipe.features.sides().map(|(name, _)| name).collect();
    if sides.is_empty() || case.layout.mode.is_some() {
        return None;
    }
    let message = format!("Megatron-Core builds no side embeddings ({})", sides.join(", "));
    Some(RULE.error("features", message).hint("a mode names them as a seam"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, switch_on};
    use recipe::Feature;

    pub const EXAMPLES: &[Example] = &[
        found("nam56r", "engine=megatron", "Megatron-Core builds no side embeddings (structure)")
            .with(|r| switch_on(r, Feature::Structure)),
        silent("nam56r", "engine=megatron mode=nemo_native").with(|r| switch_on(r, Feature::Structure)),
        silent("llama3-8b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
