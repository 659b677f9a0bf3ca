//! Prediction heads know rotary positions or none (`training/arguments.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use recipe::Positions;

pub const RULE: Rule = Rule {
    id: "megatron/mtp-positions",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[(Engine::Megatron, "The supported position embedding types are rope and none.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let is_learned = matches!(case.recipe.positions, Positions::Learned { .. });
    case.recipe.features.mtp().filter(|_| is_learned)?;
    Some(RULE.error("features.mtp", "prediction heads need rotary positions or none"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, switch_on};
    use recipe::{Feature, Positions};

    pub const EXAMPLES: &[Example] = &[
        found("deepseek-v3", "engine=megatron", "prediction heads need rotary positions or none").with(|r| {
            switch_on(r, Feature::Mtp);
            r.positions = Positions::Learned { count: 8192 };
        }),
        silent("deepseek-v3", "engine=megatron").with(|r| switch_on(r, Feature::Mtp)),
        silent("gpt3-175b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
