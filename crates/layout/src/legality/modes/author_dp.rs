//! `author_dp` keeps custom mixers, which know no tensor axis.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mode;

pub const RULE: Rule = Rule {
    id: "mode/author-dp-tp",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let tp = case.layout.tp;
    if case.layout.mode != Some(Mode::AuthorDp) || !tp.splits() {
        return None;
    }
    let message = format!("mode author_dp keeps the custom mixers, which know no tensor axis, and tp is {tp}");
    Some(RULE.error("tp", message).fix("tp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r",
            "mode=author_dp tp=2",
            "mode author_dp keeps the custom mixers, which know no tensor axis, and tp is 2",
        ),
        silent("nam56r", "mode=author_dp"),
        silent("nam56r", "tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
