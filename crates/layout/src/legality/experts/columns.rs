//! Columns of an expert are a multiple of etp.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "etp/expert-ffn",
    blame: Blame::Layout,
    reads: Reads::ETP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    RULE.must_divide("moe", "expert columns", case.moe()?.ffn, "etp", case.layout.etp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "etp=3", "cannot split `moe` over etp=3: 14336 expert columns are not a multiple of 3"),
        silent("mixtral-8x7b", "etp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
