//! The emitted module keeps tied embeddings on one stage.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "fsdp2/tied",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let finding = || RULE.error("pp", "the emitted module keeps tied embeddings on one stage").fix("pp", vec![1]);
    (case.recipe.tied && case.layout.pp.splits()).then(finding)
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("gpt3-175b", "engine=fsdp2 pp=2", "the emitted module keeps tied embeddings on one stage"),
        silent("gpt3-175b", "engine=fsdp2 tp=2"),
        silent("llama3-8b", "engine=fsdp2 pp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
