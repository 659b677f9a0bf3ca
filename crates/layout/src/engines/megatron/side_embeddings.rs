//! Side embeddings are added where tokens enter, by the model builder that a launch brings along.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::kinds::side::OwnerStage;

pub const RULE: Rule = Rule {
    id: "megatron/side-embeddings",
    blame: Blame::Engine,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let sides = case.recipe.features.sides().filter(|(_, side)| side.stage == OwnerStage::Last);
    let last: Vec<_> = sides.map(|(name, _)| name).collect();
    if last.is_empty() {
        return None;
    }
    let message =
        format!("side embeddings of the last stage ({}) need the final norm outside the stack", last.join(", "));
    Some(RULE.error("features", message).hint("`stage = \"first\"` in the recipe adds them to the embedded tokens"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, switch_on};
    use recipe::kinds::side::OwnerStage;
    use recipe::{Feature, Recipe};

    fn last(recipe: &mut Recipe) {
        switch_on(recipe, Feature::Structure);
        recipe.features.structure.as_mut().unwrap().value.stage = OwnerStage::Last;
    }

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r",
            "engine=megatron",
            "side embeddings of the last stage (structure) need the final norm outside the stack",
        )
        .with(last),
        silent("nam56r", "engine=megatron").with(|r| switch_on(r, Feature::Structure)),
        silent("llama3-8b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
