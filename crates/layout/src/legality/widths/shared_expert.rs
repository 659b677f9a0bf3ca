//! Columns of the shared expert are a multiple of tp: it is cut like a dense MLP, whatever etp is.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "tp/shared-expert",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    RULE.must_divide("moe.shared", "columns", case.moe()?.shared.as_ref()?.ffn, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "deepseek-v2-lite",
            "tp=3 etp=1",
            "cannot split `moe.shared` over tp=3: 2816 columns are not a multiple of 3",
        ),
        silent("deepseek-v2-lite", "tp=16"),
        silent("mixtral-8x7b", "tp=3"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
