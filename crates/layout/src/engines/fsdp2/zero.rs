//! `fully_shard` shards weights; what it may leave gathered is the forward's copy.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::ZeroStage;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "fsdp2/zero",
    blame: Blame::Engine,
    reads: Reads::ZERO,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let zero = case.layout.zero;
    if zero >= ZeroStage::Two {
        return None;
    }
    let message = format!("fully_shard shards weights, gradients and optimizer state, and zero is {zero}");
    let finding = RULE.error("zero", message).fix("zero", vec![2, 3]);
    Some(Finding { hint: Some("zero may be 3, or 2 (weights kept gathered after forward)".to_string()), ..finding })
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=fsdp2 zero=1",
            "fully_shard shards weights, gradients and optimizer state, and zero is 1",
        ),
        silent("llama3-8b", "engine=fsdp2 zero=2"),
        silent("llama3-8b", "engine=fsdp2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
