//! Biases of experts that are cut (`transformer/transformer_config.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/expert-bias",
    blame: Blame::Engine,
    reads: Reads::ETP,
    quotes: &[(Engine::Megatron, "Bias in Moe is only supported when ETP==1")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let is_cut = case.moe()?.bias && case.layout.etp.splits();
    let message = format!("experts with biases are not cut, and etp is {}", case.layout.etp);
    is_cut.then(|| RULE.error("etp", message).fix("etp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "engine=megatron tp=2 etp=2", "experts with biases are not cut, and etp is 2")
            .with(|r| r.moe.as_mut().unwrap().bias = true),
        silent("mixtral-8x7b", "engine=megatron tp=2 etp=1").with(|r| r.moe.as_mut().unwrap().bias = true),
        silent("mixtral-8x7b", "engine=megatron tp=2 etp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
