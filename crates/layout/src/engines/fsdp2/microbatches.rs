//! 1F1B has a microbatch for every stage.

use crate::engines::{UNFILLED, refuse_unfilled};
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "fsdp2/microbatches",
    blame: Blame::Engine,
    reads: Reads::PP.and(Reads::SCHEDULE).and(Reads::MICROBATCHES),
    quotes: &[(Engine::Fsdp2, UNFILLED)],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    refuse_unfilled(&RULE, case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=fsdp2 pp=4 microbatches=3",
            "1f1b needs at least pp 4 microbatches, and there are 3",
        ),
        silent("llama3-8b", "engine=fsdp2 pp=4 microbatches=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
