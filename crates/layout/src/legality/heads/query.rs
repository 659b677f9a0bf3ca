//! Query heads are a multiple of tp.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "tp/heads",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[(Engine::Megatron, "must be a multiple of tensor_model_parallel_size")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    RULE.must_divide("attention", "query heads", case.attention()?.heads, "tp", case.layout.tp.get())
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "tp=64", "cannot split `attention` over tp=64: 32 query heads are not a multiple of 64"),
        found("llama3-8b", "tp=3", "cannot split `attention` over tp=3: 32 query heads are not a multiple of 3"),
        silent("llama3-8b", "tp=32"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
