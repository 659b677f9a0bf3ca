//! Heads of M2RNN are a multiple of tp.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "recurrent/heads-over-tp",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    RULE.must_divide("recurrent", "recurrent heads", case.recurrent()?.heads, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("nam56r-mini", "tp=8", "cannot split `recurrent` over tp=8: 44 recurrent heads are not a multiple of 8"),
        silent("nam56r-mini", "tp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
