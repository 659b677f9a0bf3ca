//! Selective recompute chooses operations (`distributed/activation_checkpoint.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Recompute;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "torchtitan/recompute",
    blame: Blame::Engine,
    reads: Reads::RECOMPUTE,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let message = "torchtitan's selective recompute chooses operations, not the modules named";
    let finding = || RULE.error("recompute", message).hint("recompute may be none or full");
    matches!(case.layout.recompute, Recompute::Selective(_)).then(finding)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=torchtitan recompute=selective:core_attn",
            "torchtitan's selective recompute chooses operations, not the modules named",
        ),
        silent("llama3-8b", "engine=torchtitan recompute=full"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
