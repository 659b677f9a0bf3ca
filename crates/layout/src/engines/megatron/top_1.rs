//! One expert a token under a softmax router (`transformer/transformer_config.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use recipe::kinds::moe::ScoreFunction;

pub const RULE: Rule = Rule {
    id: "megatron/top-1",
    blame: Blame::Engine,
    reads: Reads::NOTHING,
    quotes: &[(Engine::Megatron, "Please use --moe-router-pre-softmax when topk is 1.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let moe = case.moe().filter(|m| m.top_k == 1 && m.router.score == ScoreFunction::Softmax);
    moe.map(|_| RULE.note("moe.top_k", "one expert a token with a softmax router needs the scores before the choice"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "mixtral-8x7b",
            "engine=megatron",
            "one expert a token with a softmax router needs the scores before the choice",
        )
        .with(|r| r.moe.as_mut().unwrap().top_k = 1),
        silent("mixtral-8x7b", "engine=megatron"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
