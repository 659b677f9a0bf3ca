//! RWKV-7's layers stand on one stage: each reads the values of the first, and no engine here sends them from stage to stage.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use recipe::Mixer;
use recipe::kinds::linear::Linear;

pub const RULE: Rule = Rule {
    id: "linear/first-values",
    blame: Blame::Missing,
    reads: Reads::PP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let pp = case.layout.pp;
    let reads_first = case.recipe.uses(Mixer::Linear) && matches!(case.recipe.linear, Some(Linear::Rwkv7(_)));
    let message = format!("every layer reads the values of the first, and nobody sends them over pp={pp} stages");
    (pp.splits() && reads_first).then(|| RULE.error("linear", message).fix("pp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::kinds;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "pp=2", "every layer reads the values of the first, and nobody sends them over pp=2 stages")
            .with(kinds::rwkv7),
        silent("llama3-8b", "tp=2").with(kinds::rwkv7),
        silent("llama3-8b", "pp=2").with(kinds::linear),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
