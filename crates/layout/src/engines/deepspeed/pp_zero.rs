//! Stages keep their gradients and weights whole (`runtime/pipe/engine.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::{Engine, ZeroStage};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "deepspeed/pp-zero",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS.and(Reads::ZERO),
    quotes: &[(Engine::Deepspeed, "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (layout, zero) = (case.layout, case.layout.zero);
    if !layout.pp.splits() || zero < ZeroStage::Two {
        return None;
    }
    let message = format!("a pipeline runs with zero 0 or 1, and zero is {zero}");
    Some(RULE.error("zero", message).fix("zero", vec![0, 1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=deepspeed pp=2 zero=2", "a pipeline runs with zero 0 or 1, and zero is 2"),
        silent("llama3-8b", "engine=deepspeed pp=2 zero=1"),
        silent("llama3-8b", "engine=deepspeed zero=3"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
