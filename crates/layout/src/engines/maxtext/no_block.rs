//! Mixers without a block.

use crate::engines::refuse_mixers;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "maxtext/no-block",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    refuse_mixers(&RULE, "MaxText", &[Mixer::Mamba, Mixer::Recurrent, Mixer::Linear, Mixer::Shared], case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r-mini",
            "engine=maxtext",
            "MaxText has no mamba block (`M`, layers 2, 6, 10) | MaxText has no recurrent block (`R`, layers 11)",
        ),
        silent("llama3-8b", "engine=maxtext"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
