//! The projection that joins a prediction head's two inputs is cut by columns.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "tp/mtp-join",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.recipe.features.mtp()?;
    RULE.must_divide("mtp", "hidden columns", case.recipe.hidden, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent, switch_on};
    use recipe::Feature;

    pub const EXAMPLES: &[Example] = &[
        found("deepseek-v3", "tp=3", "cannot split `mtp` over tp=3: 7168 hidden columns are not a multiple of 3")
            .with(|r| switch_on(r, Feature::Mtp)),
        silent("deepseek-v3", "tp=4").with(|r| switch_on(r, Feature::Mtp)),
        silent("llama3-8b", "tp=3"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
