//! Annotated weights are sharded over data.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::ZeroStage;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "xla-spmd/zero",
    blame: Blame::Engine,
    reads: Reads::ZERO,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let zero = case.layout.zero;
    let message = format!("annotated weights are sharded over data, and zero is {zero}");
    (zero != ZeroStage::Three).then(|| RULE.error("zero", message).fix("zero", vec![3]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=xla-spmd zero=2", "annotated weights are sharded over data, and zero is 2"),
        silent("llama3-8b", "engine=xla-spmd"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
