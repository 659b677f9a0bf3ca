//! Attention sinks have no flag that we emit.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/sinks",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let finding = || RULE.error("attention", "attention sinks are not emitted for Megatron-Core");
    case.attention()?.sinks.then(finding)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=megatron", "attention sinks are not emitted for Megatron-Core")
            .with(|r| r.attention.as_mut().unwrap().sinks = true),
        silent("llama3-8b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
