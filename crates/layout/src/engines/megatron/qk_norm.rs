//! Norms of queries and keys are as wide as a head (`transformer/attention.py`).

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::kinds::attention::QkNorm;

pub const RULE: Rule = Rule {
    id: "megatron/qk-norm",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let finding = || RULE.error("attention", "Megatron-Core normalises queries and keys head by head");
    (case.attention()?.qk_norm == QkNorm::Full).then(finding)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};
    use recipe::kinds::attention::QkNorm;

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=megatron", "Megatron-Core normalises queries and keys head by head")
            .with(|r| r.attention.as_mut().unwrap().qk_norm = QkNorm::Full),
        silent("qwen3-30b-a3b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
