//! The optimizer state alone is shared out (`optim/zero.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::ZeroStage;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "nanotron/zero",
    blame: Blame::Engine,
    reads: Reads::ZERO,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let zero = case.layout.zero;
    if zero < ZeroStage::Two {
        return None;
    }
    let message = format!("zero {zero} is not there; the optimizer state alone can be shared out");
    Some(RULE.error("zero", message).fix("zero", vec![0, 1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=nanotron zero=2",
            "zero 2 is not there; the optimizer state alone can be shared out",
        ),
        silent("llama3-8b", "engine=nanotron zero=1"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
