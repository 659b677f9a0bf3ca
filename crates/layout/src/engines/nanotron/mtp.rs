//! There are no prediction heads.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "nanotron/mtp",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.recipe.features.mtp().map(|_| RULE.error("features.mtp", "nanotron has no prediction heads"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, switch_on};
    use recipe::Feature;

    pub const EXAMPLES: &[Example] = &[
        found("deepseek-v3", "engine=nanotron", "nanotron has no prediction heads")
            .with(|r| switch_on(r, Feature::Mtp)),
        silent("llama3-8b", "engine=nanotron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
