//! Prediction heads without pp and cp (`models/deepseek_v3/mtp.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "torchtitan/mtp",
    blame: Blame::Missing,
    reads: Reads::PP_SPLITS.and(Reads::CP),
    quotes: &[(Engine::Torchtitan, "MTP does not support pipeline parallelism yet.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.recipe.features.mtp().filter(|_| case.layout.pp.splits() || case.layout.cp.splits())?;
    Some(RULE.error("features.mtp", "prediction heads run without pp and cp only"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, switch_on};
    use recipe::Feature;

    pub const EXAMPLES: &[Example] = &[
        found("deepseek-v3", "engine=torchtitan pp=2", "prediction heads run without pp and cp only")
            .with(|r| switch_on(r, Feature::Mtp)),
        found("deepseek-v3", "engine=torchtitan cp=2", "prediction heads run without pp and cp only")
            .with(|r| switch_on(r, Feature::Mtp)),
        silent("deepseek-v3", "engine=torchtitan tp=2").with(|r| switch_on(r, Feature::Mtp)),
        silent("deepseek-v3", "engine=torchtitan pp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
