//! Microbatches go round in whole rounds (`configs/types.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "maxtext/microbatches",
    blame: Blame::Engine,
    reads: Reads::PP.and(Reads::MICROBATCHES),
    quotes: &[(Engine::Maxtext, "must be divisible by the number of ")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (layout, pp) = (case.layout, case.layout.pp.get());
    if layout.microbatches.is_multiple_of(pp) {
        return None;
    }
    let message = format!("{} microbatches are not a multiple of pp {pp}", layout.microbatches);
    Some(RULE.error("microbatches", message).fix("microbatches", (1..=4).map(|i| i * pp).collect()))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=maxtext pp=4 microbatches=6", "6 microbatches are not a multiple of pp 4"),
        silent("llama3-8b", "engine=maxtext pp=4 microbatches=8"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
