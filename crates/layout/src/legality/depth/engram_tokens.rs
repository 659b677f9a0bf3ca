//! Engram branches look tokens up inside the depth, and stages hand on hidden states alone.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "engram/tokens",
    blame: Blame::Missing,
    reads: Reads::PP_SPLITS,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    case.recipe.features.engram().filter(|_| case.layout.pp.splits())?;
    let message = "engram branches read tokens, and stages hand on hidden states alone";
    Some(RULE.error("features.engram", message).fix("pp", vec![1]))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, branched, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "pp=2", "engram branches read tokens, and stages hand on hidden states alone")
            .with(branched),
        silent("llama3-8b", "dp=2").with(branched),
        silent("llama3-8b", "pp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
