//! Experts are a multiple of ep.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "ep/experts",
    blame: Blame::Layout,
    reads: Reads::EP,
    quotes: &[(Engine::Megatron, "Number of experts should be a multiple of expert model parallel_size.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    RULE.must_divide("moe", "experts", case.moe()?.experts, "ep", case.layout.ep.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "ep=16", "cannot split `moe` over ep=16: 8 experts are not a multiple of 16"),
        silent("mixtral-8x7b", "ep=8"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
