//! Mixers without a block.

use crate::engines::refuse_mixers;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "nanotron/no-block",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    let missing = [Mixer::Mamba, Mixer::Recurrent, Mixer::GatedDelta, Mixer::Linear, Mixer::Shared];
    refuse_mixers(&RULE, "nanotron", &missing, case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r-mini",
            "engine=nanotron",
            "nanotron has no mamba block (`M`, layers 2, 6, 10) | nanotron has no recurrent block (`R`, layers 11)",
        ),
        found("llama3-8b", "engine=nanotron", "nanotron has no gated_delta block (`G`, layers 32)")
            .with(kinds::gated_delta),
        silent("llama3-8b", "engine=nanotron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
