//! Shared experts have no biases (`transformer/moe/shared_experts.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/shared-bias",
    blame: Blame::Missing,
    reads: Reads::NOTHING,
    quotes: &[(Engine::Megatron, "bias is not supported in the shared experts")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let shared = case.moe()?.shared.as_ref().filter(|shared| shared.bias);
    shared.map(|_| RULE.error("moe.shared", "a shared expert cannot have biases"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("deepseek-v2-lite", "engine=megatron", "a shared expert cannot have biases")
            .with(|r| r.moe.as_mut().unwrap().shared.as_mut().unwrap().bias = true),
        silent("deepseek-v2-lite", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
