//! One mixer stands behind a norm.

use crate::engines::refuse_parallel;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "maxtext/parallel-block",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    refuse_parallel(&RULE, "MaxText", case)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=maxtext", "MaxText runs one mixer behind a norm, and layer 32 has several")
            .with(kinds::side_by_side),
        silent("llama3-8b", "engine=maxtext"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
