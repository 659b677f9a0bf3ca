//! An engram branch hashes the tokens before each token and convolves along the sequence: a rank must hold all of it.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "engram/whole-sequences",
    blame: Blame::Missing,
    reads: Reads::TP.and(Reads::CP),
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    let axes = [("tp", case.layout.tp), ("cp", case.layout.cp)];
    let dealt = axes.into_iter().filter(|(_, degree)| degree.splits() && case.recipe.features.engram().is_some());
    dealt
        .map(|(name, degree)| {
            let message =
                format!("engram branches read whole sequences, and no rule deals them out over {name}={degree}");
            RULE.error("features.engram", message).fix(name, vec![1])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, branched, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "tp=2", "engram branches read whole sequences, and no rule deals them out over tp=2")
            .with(branched),
        silent("llama3-8b", "dp=2").with(branched),
        silent("llama3-8b", "tp=2 cp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
