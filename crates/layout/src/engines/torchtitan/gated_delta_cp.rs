//! Gated delta nets are not cut in time (`models/qwen3_5/parallelize.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use recipe::Mixer;

pub const RULE: Rule = Rule {
    id: "torchtitan/gated-delta-cp",
    blame: Blame::Engine,
    reads: Reads::CP,
    quotes: &[(Engine::Torchtitan, "Context Parallel is not yet supported for Qwen3.5.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let finding = || RULE.error("cp", "gated delta nets cannot be cut in time").fix("cp", vec![1]);
    (case.recipe.uses(Mixer::GatedDelta) && case.layout.cp.splits()).then(finding)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=torchtitan cp=2", "gated delta nets cannot be cut in time").with(kinds::gated_delta),
        silent("llama3-8b", "engine=torchtitan tp=2").with(kinds::gated_delta),
        silent("llama3-8b", "engine=torchtitan cp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
