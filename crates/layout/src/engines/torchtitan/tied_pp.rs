//! Tied embeddings stay on one stage (`models/common/decoder.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "torchtitan/tied-pp",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS,
    quotes: &[(Engine::Torchtitan, "Weight tying is not supported with Pipeline Parallel.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let finding = || RULE.error("pp", "tied embeddings cannot be cut into stages").fix("pp", vec![1]);
    (case.recipe.tied && case.layout.pp.splits()).then(finding)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("gpt3-175b", "engine=torchtitan pp=2", "tied embeddings cannot be cut into stages"),
        silent("gpt3-175b", "engine=torchtitan tp=2"),
        silent("llama3-8b", "engine=torchtitan pp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
