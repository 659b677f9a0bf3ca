//! Mixers without a block.

use crate::engines::refuse_mixers;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "torchtitan/no-block",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    refuse_mixers(&RULE, "torchtitan", &[Mixer::Mamba, Mixer::Recurrent, Mixer::Linear, Mixer::Shared], case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r-mini",
            "engine=torchtitan",
            "torchtitan has no mamba block (`M`, layers 2, 6, 10) | torchtitan has no recurrent block (`R`, layers 11)",
        ),
        silent("llama3-8b", "engine=torchtitan").with(kinds::gated_delta),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
